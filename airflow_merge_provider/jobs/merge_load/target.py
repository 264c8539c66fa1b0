"""Read the target of a load, and write its changes in one commit."""

from __future__ import annotations

from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.merge_load.decision import JOB, LoadDecision
from airflow_merge_provider.core.run.previous_run import PreviousRun
from airflow_merge_provider.core.source_offset import RunState
from airflow_merge_provider.jobs.delta.transaction import CommitResult
from airflow_merge_provider.jobs.merge_load.scd2.history import LoadTimes, TimesTable
from airflow_merge_provider.jobs.merge_load.sequences import Sequences, SequencesTable
from airflow_merge_provider.jobs.merge_load.writing import CountedChanges, TableShape, write_changes
from airflow_merge_provider.jobs.run.target import TargetTable


class Target(Protocol):
    """The interface of a load's target: a Delta table, or rows in memory if no table is needed."""

    dataset: Dataset
    last: PreviousRun | None
    times: LoadTimes
    sequences: Sequences

    def read_rows(self) -> DataFrame:
        """Return the rows as the run found them."""

    def count_live_rows(self) -> int:
        """Return how many rows the run found."""

    def commit_changes(
        self,
        counted_changes: CountedChanges,
        state: RunState,
        *,
        full: bool,
        shape: TableShape | None,
    ) -> CommitResult:
        """Write changes in the run's one commit; if ``full``, the rows are the whole table.

        :raises ConflictError: if another run committed first.
        """


class DeltaTarget(TargetTable):
    """A Delta table of loaded rows."""

    def __init__(self, spark: SparkSession, decision: LoadDecision) -> None:
        super().__init__(spark, JOB, decision)
        self.times: LoadTimes = TimesTable(spark, self.dataset, self.last, self._options)
        self.sequences: Sequences = SequencesTable(spark, self.dataset, self.last, self._options)

    def commit_changes(
        self,
        counted_changes: CountedChanges,
        state: RunState,
        *,
        full: bool,
        shape: TableShape | None,
    ) -> CommitResult:
        """Write changes in the run's one commit; if ``full``, the rows are the whole table.

        :raises ConflictError: if another run committed first; this one has written nothing then.
        """
        self.adopt_table()
        options = self._options
        return write_changes(
            self._spark, self.dataset, self.last, counted_changes, state, options, full=full, shape=shape
        )
