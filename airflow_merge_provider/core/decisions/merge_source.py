"""Decide whether a merge source has anything to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from airflow_merge_provider.core.dataset import Dataset, resolve_dataset
from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig, list_warnings
from airflow_merge_provider.core.merge_source.counts import COUNTS
from airflow_merge_provider.core.merge_source.run_mode import choose_run_mode
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.run.decision import RequiresSparkError, RunDecision
from airflow_merge_provider.core.run.previous_run import load_previous_run
from airflow_merge_provider.core.run.progress import Progress
from airflow_merge_provider.core.run.reporter import RunReporter
from airflow_merge_provider.core.run.table_log import (
    PinnedDataset,
    TableLog,
    count_pinned,
    pin_table,
)
from airflow_merge_provider.core.run_mode import RunMode
from airflow_merge_provider.core.source_offset import SourceOffset

CAPABILITY = "merge_source"


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
    reporter.add_warnings([*list_warnings(config), *_check_missing(sources, config)])
    return MergeDecision(config, sources, reporter, hash_overrides)


def open_run(log: TableLog, request: JobRequest, progress: Progress) -> MergeDecision:
    """Find the datasets and the target of a merge, and return the decision about it.

    :raises ConfigError: if the configuration is wrong.
    :raises DataError: if a dataset or the target is something other than expected.
    :raises RequiresSparkError: if only Spark can read one of them.
    """
    config = MergeSourceConfig.parse(request.config)
    target = resolve_dataset(config.target or "", request.warehouse, at="target")
    last = load_previous_run(log, target, CAPABILITY, request)
    sources = [pin_table(log, dataset) for dataset in list_datasets(config, request)]

    def hash_overrides() -> str:
        if config.overrides is not None and request.until != "plan":
            raise RequiresSparkError("the overrides have to be read")
        return ""

    named = {source.dataset.id: source for source in sources}
    reporter = RunReporter(count_pinned(log), request, progress, COUNTS, target, named, last)
    return decide_merge(config, sources, reporter, hash_overrides)


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
