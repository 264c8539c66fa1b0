"""The signature of a merge source's configuration: a full run is needed only if the signature differs."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

from airflow_merge_provider.core.expectations.config import parse_expectations
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.equality import get_rule_setting, plan_rules
from airflow_merge_provider.core.merge_source.survivorship import parse_choices


def compute_signature(config: MergeSourceConfig) -> str:
    """Return a text that differs if the results may differ; it excludes comments, limits and schedules.

    The rules count as a set, whatever their order, direction and spelling. The columns that hold the ID, the
    deletion flag and the entity also count: with other columns, unchanged rows are other entities.
    """
    content: dict[str, Any] = {
        "version": config.version,
        "datasets": config.dataset_ids,
        "identity": config.identity,
        "strategy": config.strategy,
        "include_internal_properties": config.include_internal_properties,
        "rules": [rule.source for rule in plan_rules(config)],
        "columns": [config.id_column, config.deleted_column, config.entity_column],
    }
    # An option that is off by default is included only if it is on, so that a new option does not change the
    # signature of existing targets.
    if config.on_over_merge == "quarantine" and not isinstance(config.max_key_fanout, dict):
        content["quarantine"] = config.max_key_fanout
    elif quarantined := _list_quarantine_limits(config):
        content["quarantine"] = quarantined
    if config.values != "entity":
        content["values"] = config.values
    if config.survivorship:
        content["survivorship"] = [asdict(choice) for choice in parse_choices(config.survivorship)]
    for name in ("stable_id", "replaced_by"):
        if getattr(config, name):
            content[name] = True
    if left_out := [repr(item) for item in parse_expectations(config.expect) if item.action == "quarantine"]:
        content["expect"] = sorted(left_out)
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _list_quarantine_limits(config: MergeSourceConfig) -> list[int | None]:
    """Return the fan-out limit of each rule that quarantines values; empty if no rule has a limit."""
    limits = [
        get_rule_setting(config.max_key_fanout, rule)
        if get_rule_setting(config.on_over_merge, rule) == "quarantine"
        else None
        for rule in plan_rules(config)
    ]
    return limits if any(limits) else []
