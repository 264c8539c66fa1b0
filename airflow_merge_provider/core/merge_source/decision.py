"""Decide whether a merge source has anything to do, and by the signature of its configuration how much."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from airflow_merge_provider.core.dataset import Dataset, resolve_dataset
from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.expectations.config import parse_expectations
from airflow_merge_provider.core.merge_source import refusals
from airflow_merge_provider.core.merge_source.columns import (
    check_lost_columns,
    check_rule_columns,
    check_survivorship_columns,
    find_column_problems,
    find_entity_column,
    list_property_names,
)
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.equality import get_rule_setting, plan_rules
from airflow_merge_provider.core.merge_source.survivorship import parse_choices
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.report import Measure
from airflow_merge_provider.core.run.columns import ReadFields, list_types
from airflow_merge_provider.core.run.decision import RequiresSparkError, RunDecision
from airflow_merge_provider.core.run.previous_run import load_previous_run
from airflow_merge_provider.core.run.reporter import Progress, RunReporter
from airflow_merge_provider.core.run.table_log import PinnedDataset, TableLog, count_pinned, pin_source
from airflow_merge_provider.core.run_mode import (
    CONFIG_CHANGED,
    FULL_REFRESH,
    NO_TARGET,
    NOTHING_CHANGED,
    STATE_EXPIRED,
    TARGET_CHANGED,
    RunMode,
    describe_changed_sources,
)
from airflow_merge_provider.core.source_offset import RunState, SourceOffset, is_same_reads

JOB = "merge_source"
COUNTS = (
    Measure("entities", "entities", "Entities of all datasets, including deleted ones.", "target"),
    Measure(
        "deleted_entities", "entities", "Entities that are marked as deleted in their dataset.", "target"
    ),
    Measure("live_rows", "rows", "Rows of the target that are not deleted.", "target"),
    Measure("merged_rows", "rows", "Rows of the target that contain several entities.", "target"),
    Measure("outputs", "rows", "Rows of the target that contain entities, live or deleted.", "target"),
    Measure("entities_changed", "entities", "Entities that have changed since the previous run."),
    Measure("rows_evaluated", "entities", "Entities whose clusters were evaluated."),
    Measure("rows_written", "rows", "Rows written with a new `_updated`, except tombstones of IDs."),
    Measure("ids_replaced", "rows", "IDs that no longer exist because another row contains their entities."),
    Measure("ids_removed", "rows", "IDs that no longer exist because none of their entities exists."),
)
OVERRIDES_HASH = "overrides_hash"
# The way in which Python computes keys: those of earlier releases may differ.
_KEY_VERSION = 2
_OPEN_CLUSTERS = {
    "suppressed": "several deleted entities have the same ID, which requires a scan of all sources",
    "quarantined": "keys are quarantined, and their effect depends on all entities",
    "cut": "overrides split a cluster, and the split depends on all of its entities",
}


@dataclass(frozen=True)
class MergeDecision(RunDecision):
    """The decision about one merge of datasets; ``hash_overrides`` reads the overrides that hold now."""

    config: MergeSourceConfig
    sources: Sequence[PinnedDataset]
    reporter: RunReporter
    hash_overrides: Callable[[], str]

    @property
    def offsets(self) -> dict[str, SourceOffset]:
        """The offset up to which every dataset is read."""
        return {source.dataset.id: source.offset for source in self.sources}

    def check_inputs(self, read_fields: ReadFields) -> None:
        sources = [source for source in self.sources if source.exists]
        types = {source.dataset.id: list_types(read_fields(source)) for source in sources}
        properties = {name: list_property_names(list(columns)) for name, columns in types.items()}
        check_lost_columns(self.config, self.state, properties)
        typed: dict[int, Sequence[str]] = {
            offset: list(types[name])
            for offset, name in enumerate(self.config.dataset_ids)
            if name in types and find_entity_column(types[name], self.config) is None
        }
        self.reporter.add_warnings(check_survivorship_columns(self.config, typed))
        if self.request.until == "plan":
            return
        for name in (self.config.dataset_ids[offset] for offset in typed):
            if problems := list(find_column_problems(types[name], name, self.config)):
                raise DataError.from_problems(problems)
        check_rule_columns(self.config, typed, is_complete=len(typed) == len(sources) > 0)

    def choose_run_mode(self) -> tuple[RunMode, str]:
        """Return how much is evaluated, and why.

        :raises ConfigError: if version 1 would have to move a dataset.
        :raises DataError: if the configuration has changed and ``on_config_change`` is ``fail``.
        """
        last = self.last
        self.reporter.add_warnings(last.warnings if last else [])
        return choose_run_mode(
            self.config,
            last.state if last else None,
            self.offsets,
            full_refresh=self.request.full_refresh,
            overrides_hash=self.hash_overrides(),
            is_target_changed=last is not None and last.changed_by is not None,
            missing_state_reason=STATE_EXPIRED if last is None else last.missing_state_reason,
        )


def decide_merge(
    config: MergeSourceConfig,
    sources: Sequence[PinnedDataset],
    reporter: RunReporter,
    hash_overrides: Callable[[], str],
) -> MergeDecision:
    """Return the decision about a merge whose datasets and target were found, with its warnings.

    :raises DataError: if datasets are missing and the configuration does not allow it.
    """
    reporter.add_warnings([*config.list_warnings(), *_check_missing(sources, config)])
    return MergeDecision(config, sources, reporter, hash_overrides)


def open_run(
    log: TableLog,
    config: MergeSourceConfig,
    request: JobRequest,
    progress: Progress,
    hash_overrides: Callable[[], str] | None = None,
) -> MergeDecision:
    """Find the datasets and the target of a merge, and return the decision about it.

    :param hash_overrides: reads the overrides that hold now; by default they require Spark.
    :raises ConfigError: if a dataset is not valid.
    :raises DataError: if a dataset or the target is something other than expected.
    :raises RequiresSparkError: if only Spark can read one of them.
    """
    target = resolve_dataset(config.target or "", request.warehouse, at="target")
    last = load_previous_run(log, target, JOB, request)
    sources = [pin_source(log, dataset, request) for dataset in list_datasets(config, request)]

    def refuse_overrides() -> str:
        if config.overrides is not None and request.until != "plan":
            raise RequiresSparkError("the overrides have to be read")
        return ""

    named = {source.dataset.id: source for source in sources}
    reporter = RunReporter(count_pinned(log), request, progress, COUNTS, target, named, last)
    return decide_merge(config, sources, reporter, hash_overrides or refuse_overrides)


def list_datasets(config: MergeSourceConfig, request: JobRequest) -> list[Dataset]:
    """Return the datasets that a run merges.

    :raises ConfigError: if one of them is not valid.
    """
    return [
        resolve_dataset(name, request.warehouse, at=f"datasets[{position}]")
        for position, name in enumerate(config.dataset_ids)
    ]


def _check_missing(sources: Sequence[PinnedDataset], config: MergeSourceConfig) -> list[str]:
    """Treat a missing dataset as empty, unless all are missing or the configuration requires it to exist."""
    absent = [source.dataset for source in sources if not source.exists]
    if absent and (len(absent) == len(sources) or not config.ignore_non_existent_datasets):
        hint = "check the name and the warehouse, or first run the task that writes it"
        raise DataError.from_problems(
            [
                Problem("datasets", "missing", f"dataset {table.id!r} does not exist at {table.uri}", hint)
                for table in absent
            ]
        )
    return [f"dataset {table.id!r} does not exist at {table.uri}: treated as empty" for table in absent]


def choose_run_mode(
    config: MergeSourceConfig,
    previous_state: RunState | None,
    sources: Mapping[str, SourceOffset],
    *,
    full_refresh: bool,
    overrides_hash: str = "",
    is_target_changed: bool = False,
    missing_state_reason: str = STATE_EXPIRED,
) -> tuple[RunMode, str]:
    """Return the run mode and the reason for it.

    :param previous_state: None if there is no target, empty if the commit of the previous run has expired.
    :param sources: how far this run reads every dataset.
    :param overrides_hash: a hash of the overrides that hold now.
    :param is_target_changed: whether another writer has changed rows of the target.
    :param missing_state_reason: why ``previous_state`` is empty.
    :raises ConfigError: if version 1 would have to move a dataset.
    :raises DataError: if the configuration has changed and ``on_config_change`` is ``fail``.
    """
    if previous_state is None:
        return "initial", NO_TARGET
    if config.reset:
        return "full", "reset is set"
    if not previous_state:
        return "full", missing_state_reason
    has_changed = _has_changed(config, previous_state, full_refresh=full_refresh)
    reasons = {
        CONFIG_CHANGED: has_changed,
        FULL_REFRESH: full_refresh,
        TARGET_CHANGED: is_target_changed,
        "the overrides have changed since the previous run": _get_hash(previous_state) != overrides_hash,
        "match keys are computed in another way since the previous run": _has_former_keys(previous_state),
    }
    if reason := next((reason for reason, holds in reasons.items() if holds), None):
        return "full", reason
    if is_same_reads(previous_state, sources.values()):
        return "noop", NOTHING_CHANGED
    if reason := next((why for key, why in _OPEN_CLUSTERS.items() if previous_state.get(key)), None):
        return "full", reason
    return "incremental", describe_changed_sources(previous_state, sources)


def _has_changed(config: MergeSourceConfig, previous_state: RunState, *, full_refresh: bool) -> bool:
    """Return whether the configuration differs from that of the previous run."""
    if config.version == 1:
        error = refusals.refuse_moved_dataset(previous_state.get("datasets", ()), config.dataset_ids)
        if error is not None:
            raise error
    # Positions are values of one column, and versions are ordered by it.
    sequence_column = previous_state.get("sequence_column", config.sequence_column)
    has_changed: bool = previous_state.get("fingerprint") != compute_signature(config)
    has_changed = has_changed or sequence_column != config.sequence_column
    if has_changed and config.on_config_change == "fail" and not full_refresh:
        raise _refuse_change()
    return has_changed


def has_same_rules(config: MergeSourceConfig, previous_state: RunState) -> bool:
    """Return whether the previous run had this configuration, and computed keys as this release does."""
    is_same_config: bool = previous_state.get("fingerprint") == compute_signature(config)
    return is_same_config and not _has_former_keys(previous_state)


def describe_scan(config: MergeSourceConfig) -> dict[str, Any]:
    """Return the part of a state that tells whether its keys and positions are those of a later run."""
    return {"key_version": _KEY_VERSION, "sequence_column": config.sequence_column}


def _has_former_keys(previous_state: RunState) -> bool:
    """Return whether the previous run computed keys in Python as an earlier release."""
    return bool(previous_state.get("evaluated")) and previous_state.get("key_version") != _KEY_VERSION


def _get_hash(previous_state: RunState) -> str:
    return str(previous_state.get(OVERRIDES_HASH, ""))


def _refuse_change() -> DataError:
    return DataError.from_problems(
        [
            Problem(
                "on_config_change",
                "changed",
                "the configuration has changed since the previous run",
                "run once with full_refresh=True, or set on_config_change to 'refresh'",
            )
        ]
    )


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
