"""Undo runs: restore the side tables, then the target, in one commit that says so.

A load in the middle of a history is taken out by changing the versions that it made instead.

Source: docs/undo.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from pyspark.sql import SparkSession

from airflow_merge_provider.core.dataset import Dataset, resolve_dataset
from airflow_merge_provider.core.merge_load.columns import check_target_form
from airflow_merge_provider.core.population import WRITER
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.report import Details, Report
from airflow_merge_provider.core.run.population_check import has_flag
from airflow_merge_provider.core.run.previous_run import RESULT, SIDE_TABLE_VERSIONS, TOKEN
from airflow_merge_provider.core.run.reporter import APPROVED_BY, CHANGED, Progress, RunResult
from airflow_merge_provider.core.run.table_log import PinnedDataset
from airflow_merge_provider.core.run_mode import RunMode
from airflow_merge_provider.core.table_history import (
    NO_VERSION,
    REMOVES_FLAG,
    RESTORED_VERSION,
    UNDO,
    UNDONE_VERSION,
)
from airflow_merge_provider.core.undo.choice import SideTableVersion, UndoChoice
from airflow_merge_provider.core.undo.config import UndoConfig
from airflow_merge_provider.core.undo.decision import UndoDecision, open_run
from airflow_merge_provider.core.undo.load_removal import LoadRemoval
from airflow_merge_provider.jobs.delta.log import read_properties
from airflow_merge_provider.jobs.delta.log_store import require_safe_commits
from airflow_merge_provider.jobs.delta.side_table import SideTable
from airflow_merge_provider.jobs.delta.table import SparkLog, count_live_rows, read_dataset
from airflow_merge_provider.jobs.delta.transaction import set_user_metadata
from airflow_merge_provider.jobs.delta.writer import change_flag, delete_all_rows, restore_table, unset_flag
from airflow_merge_provider.jobs.merge_load.changes import list_changed_rows
from airflow_merge_provider.jobs.merge_load.report import VERSION_KINDS, count_rows
from airflow_merge_provider.jobs.merge_load.scd2.history import TIMES, TimesTable
from airflow_merge_provider.jobs.merge_load.scd2.removal import RemovedLoad
from airflow_merge_provider.jobs.merge_load.sequences import SEQUENCES, SequencesTable
from airflow_merge_provider.jobs.merge_load.writing import CountedChanges, write_changes
from airflow_merge_provider.jobs.merge_record.files.storage import Storage, open_storage
from airflow_merge_provider.jobs.run.change_set import ChangeSet, insert_rows, replace_all_rows
from airflow_merge_provider.jobs.run.job_run import JobRun
from airflow_merge_provider.jobs.run.retry import commit_run
from airflow_merge_provider.jobs.spark.session import override_settings
from airflow_merge_provider.jobs.spark.storage import build_arguments
from airflow_merge_provider.jobs.undo.files import find_journal, undo_files


def run(spark: SparkSession, request: JobRequest, progress: Progress) -> Report:
    """Undo runs of a target, and return the report.

    :raises ConfigError: when the configuration is wrong.
    :raises DataError: when the undo is not possible; nothing is written then.
    :raises ConflictError: when another run committed first.
    :raises SetupError: when another writer of the target could overwrite its commit.
    """
    config = UndoConfig.parse(request.config)
    target = resolve_dataset(config.target, request.warehouse, at="target")
    opened = partial(_open_storage, spark)
    if (journal := find_journal(target, opened)) is not None:
        return undo_files(journal, opened, request, progress)
    require_safe_commits(spark, request)
    with progress.time_step("resolve inputs"):
        decision = open_run(SparkLog(spark), config, request, progress)
    return _Undo(spark, decision).run_to_end()


def _open_storage(spark: SparkSession, location: str) -> Storage:
    return open_storage(location, build_arguments(spark, location))


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

    def describe_plan(self) -> Details:
        """Return the run whose load would be taken out; logs alone tell what a restore would undo."""
        removal = self.decision.removal
        return {} if removal is None else self.decision.describe_removal(removal)

    def execute(self, run_mode: RunMode, reason: str) -> Report:
        """Restore the target and its side tables, or take a load out of the target."""
        if self.decision.removal is not None:
            with ExitStack() as held:
                return self._remove_load(self.decision.removal, held)
        result = self.decision.build_result()
        choice = self.decision.choice
        if choice is None:
            raise ValueError("there is nothing to undo")
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

    def _commit_undo(self, choice: UndoChoice, result: RunResult) -> Report:
        """Restore the side tables, then the target, whose commit names the version that it restores."""
        with self.reporter.progress.time_step("restore side tables"):
            for side_table in self.decision.side_tables:
                self._restore_side_table(side_table)
        state = {**self.reporter.build_state(result), UNDO: {RESTORED_VERSION: choice.version}}
        if choice.version == NO_VERSION:
            # If the undo dies after this, the next run sets the flag again, or an undo of the next attempt.
            with override_settings(self.spark, set_user_metadata({REMOVES_FLAG: True})):
                unset_flag(self.spark, self.target)
            restore = partial(delete_all_rows, self.spark, self.target)
        else:
            restore = partial(restore_table, self.spark, self.target, choice.version)
        with self.reporter.progress.time_step("restore"):
            commit = commit_run(self.spark, self.target, self.decision.capability, self.last, state, restore)
        if has_flag(SparkLog(self.spark), self.target):
            # A run sets the flags after the versions of side tables that its commit names.
            for dataset, version in self.decision.side_tables:
                if version is not None:
                    change_flag(self.spark, dataset, is_set=True)
        return self.reporter.build_report(result, version=commit.version, changed=True)

    def _remove_load(self, removal: LoadRemoval, held: ExitStack) -> Report:
        """Compute the versions without a load, and commit them."""
        times = TimesTable(self.spark, self.target, self.last, self.write_options)
        sequences = SequencesTable(self.spark, self.target, self.last, self.write_options)
        version = None if self.last is None else self.last.version
        stored = read_dataset(self.spark, PinnedDataset(self.target, version))
        check_target_form(removal.config, stored.schema.jsonValue()["fields"], self.target.id)
        with self.reporter.progress.time_step("compare"):
            load = RemovedLoad(removal, stored, sequences, held)
            counted_changes, remaining_times = load.find_changes(times.read_rows())
            remaining_sequences = load.list_remaining_sequences()
        versions = {kind: counted_changes.counts.get(kind, 0) for kind in VERSION_KINDS}
        self.reporter.add_warnings(removal.list_warnings(versions["opened"]))
        side_tables = [rows for rows in (remaining_times, remaining_sequences) if rows is not None]
        rows = self.count_rows(**count_rows(counted_changes))
        result = self.decision.build_removal_result(rows, versions, len(side_tables))

        def list_changes() -> ChangeSet:
            if counted_changes.empty:
                return insert_rows(stored.limit(0))
            return list_changed_rows(counted_changes.changes, stored)

        def write() -> Report:
            side_table_versions: dict[str, int | None] = {}
            if self.last is not None:
                side_table_versions |= self.last.side_table_versions
            with self.reporter.progress.time_step("write side tables"):
                if remaining_times is not None:
                    times.replace_times(remaining_times)
                    side_table_versions |= {TIMES: times.version}
                if remaining_sequences is not None:
                    sequences.save_rows(remaining_sequences, full=True, since=None)
                    side_table_versions |= {SEQUENCES: sequences.version}
            return self._commit_removal(removal, counted_changes, result, side_table_versions)

        return self.commit_result(result, write, list_changes)

    def _commit_removal(
        self,
        removal: LoadRemoval,
        counted_changes: CountedChanges,
        result: RunResult,
        side_table_versions: Mapping[str, int | None],
    ) -> Report:
        """Write the versions in one commit, with the offsets and settings of the newest run in force."""
        own = (TOKEN, RESULT, CHANGED, APPROVED_BY)
        state = {
            **self.reporter.build_state(result),
            **{name: value for name, value in removal.base.state.items() if name not in own},
            SIDE_TABLE_VERSIONS: side_table_versions,
            UNDO: {UNDONE_VERSION: removal.run.version},
        }
        with self.reporter.progress.time_step("write"):
            commit = write_changes(
                self.spark, self.target, self.last, counted_changes, state, self.write_options, full=False
            )
        return self.reporter.build_report(result, version=commit.version, changed=True)

    def _restore_side_table(self, side_table: SideTableVersion) -> None:
        """Restore a side table; an attempt that is killed after this leaves what the next run repairs."""
        dataset, version = side_table
        table = SideTable(
            self.spark,
            dataset,
            read_properties(self.spark, dataset).get(WRITER, ""),
            version,
            run_number=self.decision.restored_number,
            next_number=self.next_number,
        )
        if table.version is not None:
            table.restore()
        elif table.latest_version is not None:
            table.clear_rows()
            unset_flag(self.spark, dataset)
