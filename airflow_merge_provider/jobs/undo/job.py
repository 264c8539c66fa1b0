"""Undo runs: restore the side tables, then the target, in one commit that says so.

Source: docs/undo.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.decisions.undo import UndoDecision, open_run
from airflow_merge_provider.core.population import WRITER
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.run.progress import Progress
from airflow_merge_provider.core.run.reporter import RunResult
from airflow_merge_provider.core.run.table_log import PinnedDataset
from airflow_merge_provider.core.run_mode import RunMode
from airflow_merge_provider.core.table_history import NO_VERSION, RESTORED_VERSION, UNDO
from airflow_merge_provider.core.undo.choice import UndoChoice
from airflow_merge_provider.core.undo.side_tables import SideTableVersion
from airflow_merge_provider.jobs.delta.log import read_properties
from airflow_merge_provider.jobs.delta.side_table import SideTable
from airflow_merge_provider.jobs.delta.table import SparkLog, count_live_rows, read_dataset
from airflow_merge_provider.jobs.delta.writer import delete_all_rows, restore_table
from airflow_merge_provider.jobs.run.change_set import ChangeSet, replace_all_rows
from airflow_merge_provider.jobs.run.job_run import JobRun
from airflow_merge_provider.jobs.run.retry import commit_run


def run(spark: SparkSession, request: JobRequest, progress: Progress) -> dict[str, Any]:
    """Undo runs of a target, and return the report.

    :raises ConfigError: when the configuration is wrong.
    :raises DataError: when the undo is not possible; nothing is written then.
    :raises ConflictError: when another run committed first.
    """
    with progress.time_step("resolve inputs"):
        decision = open_run(SparkLog(spark), request, progress)
    return _Undo(spark, decision).run_to_end()


@dataclass(frozen=True)
class _Undo(JobRun):
    """One undo."""

    spark: SparkSession
    decision: UndoDecision

    @property
    def target(self) -> Dataset:
        """The table whose runs are undone."""
        return self.reporter.target

    @property
    def is_overwrite(self) -> bool:
        return False

    def describe_plan(self) -> dict[str, Any]:
        """Return the runs that would be undone."""
        return dict(self.decision.build_result().details)

    def execute(self, run_mode: RunMode, reason: str) -> dict[str, Any]:
        """Restore the target and its side tables."""
        result = self.decision.build_result()
        choice = self.decision.choice
        if choice is None:
            raise ValueError("there is nothing to undo")
        if self.reporter.is_dry_run:
            # As before Spark starts: a dry run of an undo reads no rows.
            return self.reporter.build_report(result)
        write = partial(self._commit_undo, choice, result)
        return self.commit_result(result, write, partial(self._list_changes, choice))

    def count_live_rows(self) -> int:
        """Return how many rows the undo found in the target."""
        version = None if self.last is None else self.last.version
        return count_live_rows(self.spark, PinnedDataset(self.target, version))

    def _list_changes(self, choice: UndoChoice) -> ChangeSet:
        """Return the rows that the target loses and gets back."""
        version = None if self.last is None else self.last.version
        rows = read_dataset(self.spark, PinnedDataset(self.target, version))
        if choice.version == NO_VERSION:
            return replace_all_rows(rows, rows.limit(0))
        return replace_all_rows(rows, read_dataset(self.spark, PinnedDataset(self.target, choice.version)))

    def _commit_undo(self, choice: UndoChoice, result: RunResult) -> dict[str, Any]:
        """Restore the side tables, then the target, whose commit names the version that it restores."""
        with self.reporter.progress.time_step("restore side tables"):
            for side_table in self.decision.side_tables:
                self._restore_side_table(side_table)
        state = {**self.reporter.build_state(result), UNDO: {RESTORED_VERSION: choice.version}}
        if choice.version == NO_VERSION:
            restore = partial(delete_all_rows, self.spark, self.target)
        else:
            restore = partial(restore_table, self.spark, self.target, choice.version)
        with self.reporter.progress.time_step("restore"):
            commit = commit_run(self.spark, self.target, self.decision.capability, self.last, state, restore)
        return self.reporter.build_report(result, version=commit.version, changed=True)

    def _restore_side_table(self, side_table: SideTableVersion) -> None:
        """Restore a side table; an attempt that is killed after this leaves what the next run repairs."""
        dataset, version = side_table
        restored_run = self.decision.restored_run
        table = SideTable(
            self.spark,
            dataset,
            read_properties(self.spark, dataset).get(WRITER, ""),
            version,
            run_number=restored_run.state["number"] if restored_run else 0,
            next_number=self.next_number,
        )
        if version is not None:
            table.restore()
        elif table.latest_version is not None:
            delete_all_rows(self.spark, dataset)
