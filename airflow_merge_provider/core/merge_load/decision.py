"""Decide whether a merge load has anything to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from airflow_merge_provider.core.dataset import Dataset, resolve_dataset
from airflow_merge_provider.core.errors import ConfigError, Problem
from airflow_merge_provider.core.merge_load.columns import (
    check_compared_types,
    check_layout,
    check_named_columns,
    check_reserved,
    check_target_form,
)
from airflow_merge_provider.core.merge_load.config import (
    COUNTS,
    AnyConfig,
    AnyLoad,
    Scd2CheckConfig,
    compute_signature,
)
from airflow_merge_provider.core.merge_load.requirements import PREFIX, build_requirements
from airflow_merge_provider.core.merge_load.scd2 import Scd2Config
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.run.columns import ReadFields, list_types
from airflow_merge_provider.core.run.decision import RequiresSparkError, RunDecision
from airflow_merge_provider.core.run.previous_run import load_previous_run
from airflow_merge_provider.core.run.reporter import Progress, RunReporter
from airflow_merge_provider.core.run.table_log import (
    PinnedDataset,
    TableLog,
    count_pinned,
    pin_source,
    refuse_missing_dataset,
)
from airflow_merge_provider.core.run_mode import (
    CONFIG_CHANGED,
    FULL_REFRESH,
    NO_TARGET,
    NOTHING_CHANGED,
    TARGET_CHANGED,
    RunMode,
    describe_changed_sources,
)
from airflow_merge_provider.core.schema.key_types import FindExample
from airflow_merge_provider.core.source_offset import is_same_reads

JOB = "merge_load"


@dataclass(frozen=True)
class LoadDecision(RunDecision):
    """The decision about one load of a source into a target."""

    config: AnyLoad
    source: PinnedDataset
    reporter: RunReporter
    find_example: FindExample = lambda _: None

    @property
    def is_repeatable(self) -> bool:
        """Whether loading the same rows again is safe; it is not for appended rows."""
        return not self.config.is_append

    @property
    def has_repairs(self) -> bool:
        """Whether a run without work restores the tables of nested lists."""
        return self.config.nested == "tables" and self.request.until == "commit"

    def choose_run_mode(self) -> tuple[RunMode, str]:
        """Return the run mode and its reason; ``noop`` if source, target and configuration are unchanged."""
        last = self.last
        if last is None:
            return "initial", NO_TARGET
        if self.request.full_refresh:
            return "full", FULL_REFRESH
        if last.is_adopted:
            return "incremental", last.missing_state_reason
        if last.changed_by is not None:
            return "incremental", TARGET_CHANGED
        if last.state.get("fingerprint") != compute_signature(self.config):
            return "incremental", CONFIG_CHANGED if last.state else last.missing_state_reason
        if is_same_reads(last.state, [self.source.offset]):
            if self.config.is_idempotent:
                return "noop", NOTHING_CHANGED
            return "incremental", "no source has changed, but the load is not idempotent"
        sources = {self.source.dataset.id: self.source.offset}
        return "incremental", describe_changed_sources(last.state, sources)

    def check_inputs(self, read_fields: ReadFields) -> None:
        if self.request.until == "plan":
            return
        if not self.source.exists:
            raise refuse_missing_dataset(self.source.dataset)
        config, dataset = self.config, self.source.dataset.id
        stored_fields = None if self.pinned_target is None else read_fields(self.pinned_target)
        if stored_fields is not None:
            check_target_form(config, stored_fields, self.reporter.target.id)
        stored = None if stored_fields is None else list_types(stored_fields)
        source, name = list_types(read_fields(self.source)), f"the source {dataset}"
        requirements = build_requirements(config)
        check_named_columns(list(source), requirements.list_named(config, list(stored or ())), name, config)
        check_reserved(list(source), PREFIX, name)
        check_compared_types(source, requirements, config, name)
        if config.nested == "columns":
            added = config.added_columns if isinstance(config, Scd2Config) else ()
            optional = (config.hard_delete,) if config.hard_delete else ()
            keys = config.identity_columns
            evolution, find_example = config.evolution, self.find_example
            check_layout(
                source, stored, added, evolution, dataset, optional, keys=keys, find_example=find_example
            )


def decide_load(
    config: AnyLoad, source: PinnedDataset, reporter: RunReporter, find_example: FindExample = lambda _: None
) -> LoadDecision:
    """Return the decision about a load whose source and target were found, with its warnings."""
    last = reporter.previous
    reporter.add_warnings([*config.list_warnings(), *(last.warnings if last else [])])
    return LoadDecision(config, source, reporter, find_example)


def check_dispatch(request: JobRequest) -> None:
    """Check that a load of several tables needs no plan, which has one target.

    :raises ConfigError: if it does.
    """
    if request.save_plan or request.apply_plan is not None or request.approval != "never":
        message = "saved plans and approvals are not supported with dispatch_by"
        hint = "use one operator for each table, or set on_risk='fail' without plan and approve"
        raise ConfigError.from_problems([Problem("dispatch_by", "unsupported", message, hint)])


def open_run(log: TableLog, config: AnyConfig, request: JobRequest, progress: Progress) -> LoadDecision:
    """Find the source and the target of a load, and return the decision about it.

    :raises ConfigError: if a dataset is not valid, or if saved plans are not supported.
    :raises DataError: when the source or the target is something other than expected.
    :raises RequiresSparkError: if rows decide what the run does.
    """
    if isinstance(config, Scd2CheckConfig):
        raise RequiresSparkError("a check reads rows")
    if config.dispatch_by is not None:
        resolve_load(log, config, request)
        raise RequiresSparkError("the rows name the targets")
    target = resolve_dataset(config.target, request.warehouse, at="target")
    return open_load(log, config, request, progress, target, partial(_pin_source, log, config, request))


def _pin_source(log: TableLog, config: AnyLoad, request: JobRequest) -> PinnedDataset:
    return pin_source(log, resolve_dataset(config.source, request.warehouse, at="source"), request)


def resolve_load(log: TableLog, config: AnyLoad, request: JobRequest) -> tuple[Dataset, PinnedDataset]:
    """Return what contains the tables that rows name, and the source at the version that the run reads.

    :raises ConfigError: if a dataset is not valid, or if saved plans are not supported.
    :raises DataError: if the source is something other than expected.
    """
    target = resolve_dataset(config.target, request.warehouse, at="target")
    source = _pin_source(log, config, request)
    check_dispatch(request)
    return target, source


def open_load(
    log: TableLog,
    config: AnyLoad,
    request: JobRequest,
    progress: Progress,
    target: Dataset,
    find_source: Callable[[], PinnedDataset],
) -> LoadDecision:
    """Find the previous run of a target and then the source, and return the decision about the load.

    In this order, a run that loads a newer version of the source meanwhile is a conflict.

    :raises DataError: if the target or the source is something other than expected.
    """
    last = load_previous_run(log, target, JOB, request, adopts=config.adopt)
    source = find_source()
    sources = {source.dataset.id: source}
    reporter = RunReporter(count_pinned(log), request, progress, COUNTS, target, sources, last)
    return decide_load(config, source, reporter, partial(log.read_example, source))
