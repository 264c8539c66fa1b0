"""Decide whether a copy has anything to do."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.expectations.config import find_unknown_columns
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.run.columns import ReadFields
from airflow_merge_provider.core.run.decision import RunDecision
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
    NO_TARGET,
    NOTHING_CHANGED,
    RunMode,
    describe_changed_sources,
)
from airflow_merge_provider.core.source_offset import is_same_reads
from tests.sixth_capability.config import COUNTS, CopyConfig

JOB = "copy"


@dataclass(frozen=True)
class CopyDecision(RunDecision):
    """The decision about one copy."""

    config: CopyConfig
    source: PinnedDataset
    reporter: RunReporter

    def choose_run_mode(self) -> tuple[RunMode, str]:
        if self.last is None or not self.state:
            return "initial", NO_TARGET if self.last is None else self.last.missing_state_reason
        if is_same_reads(self.state, [self.source.offset]) and not self.request.full_refresh:
            return "noop", NOTHING_CHANGED
        return "full", describe_changed_sources(self.state, {self.source.dataset.id: self.source.offset})

    def check_inputs(self, read_fields: ReadFields) -> None:
        if not self.source.exists:
            raise refuse_missing_dataset(self.source.dataset)
        names = [field["name"] for field in read_fields(self.source)]
        key, source = (self.config.primary_key,), f"the source {self.source.dataset.id}"
        if problems := find_unknown_columns(key, names, "primary_key", source):
            raise DataError.from_problems(problems)


def open_run(log: TableLog, config: CopyConfig, request: JobRequest, progress: Progress) -> CopyDecision:
    target = resolve_dataset(config.target, request.warehouse, at="target")
    source = pin_source(log, resolve_dataset(config.source, request.warehouse, at="source"), request)
    last, sources = load_previous_run(log, target, JOB, request), {source.dataset.id: source}
    reporter = RunReporter(count_pinned(log), request, progress, COUNTS, target, sources, last)
    reporter.add_warnings(last.warnings if last else [])
    return CopyDecision(config, source, reporter)
