"""Has the configuration changed so that everything must be looked at again: equal signatures mean no."""

from __future__ import annotations

import hashlib
import json

from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.equality import planned_rules


def signature(config: MergeSourceConfig) -> str:
    """Give a text that differs when the results can; comments, limits and schedules are not in it.

    The rules count as a set, whatever their order, direction and way of writing. The columns that hold id,
    deletion and entity count too: with others, unchanged rows are other entities.
    """
    content = {
        "version": config.version,
        "datasets": config.dataset_ids,
        "identity": config.identity,
        "strategy": config.strategy,
        "include_internal_properties": config.include_internal_properties,
        "rules": [rule.source for rule in planned_rules(config)],
        "columns": [config.id_column, config.deleted_column, config.entity_column],
    }
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
