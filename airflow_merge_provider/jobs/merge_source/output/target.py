"""Define the target of a run's outputs: its existing rows, and the one commit that changes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.merge_source.decision import JOB, MergeDecision
from airflow_merge_provider.core.run.previous_run import PreviousRun
from airflow_merge_provider.core.source_offset import RunState
from airflow_merge_provider.jobs.delta.transaction import CommitResult
from airflow_merge_provider.jobs.delta.writer import create_table, overwrite_table
from airflow_merge_provider.jobs.merge_source.output.row_changes import RowChanges, write_changes
from airflow_merge_provider.jobs.merge_source.output.typed_columns import build_properties
from airflow_merge_provider.jobs.run.target import TargetTable


class Target(Protocol):
    """The interface of a target; implemented by a Delta table, or by rows in memory if no table is needed."""

    dataset: Dataset
    last: PreviousRun | None

    def read_rows(self) -> DataFrame:
        """Return the rows as the run found them."""

    def count_rows(self) -> int | None:
        """Return how many rows there are, tombstones included; None if only a scan can determine it."""

    def overwrite_rows(self, rows: DataFrame) -> None:
        """Replace all rows, or create the table if there is none."""

    def apply_changes(self, changes: RowChanges, *, new_columns: bool) -> None:
        """Replace rows by changed rows with the same IDs, and add the others."""

    def commit_state(self, state: RunState, write: Callable[[], None]) -> CommitResult:
        """Run ``write``, one of the two methods above, as the run's one commit.

        :raises ConflictError: if another run committed first.
        """


class DeltaTarget(TargetTable):
    """A Delta table of outputs."""

    def __init__(self, spark: SparkSession, decision: MergeDecision) -> None:
        super().__init__(spark, JOB, decision)

    def overwrite_rows(self, rows: DataFrame) -> None:
        """Replace all rows, or create the table if there is none."""
        if self.last is None:
            properties = build_properties(rows.columns)
            create_table(self.dataset, rows, JOB, properties, options=self._options)
        else:
            overwrite_table(self.dataset, rows)

    def apply_changes(self, changes: RowChanges, *, new_columns: bool) -> None:
        """Replace rows by changed rows with the same IDs, and add the others."""
        write_changes(self._spark, self.dataset, changes, new_columns=new_columns)
