"""Where a run's outputs go: the rows that stand in the target, and the one commit that changes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.jobs import statements, tables
from airflow_merge_provider.jobs.merge_source.changes import Changes, write
from airflow_merge_provider.jobs.merge_source.shape import properties_for
from airflow_merge_provider.jobs.tables import Committed, LastRun, Pinned

CAPABILITY = "merge_source"


class Target(Protocol):
    """What a run asks of its target; a Delta table, or rows in memory where no table is needed."""

    dataset: Dataset
    last: LastRun | None

    def read_rows(self) -> DataFrame:
        """Return the rows as the run found them."""

    def count_rows(self) -> int | None:
        """Return how many rows there are, tombstones included; None if only a scan can tell."""

    def overwrite(self, rows: DataFrame) -> None:
        """Replace all rows, or create the table if there is none."""

    def apply(self, changes: Changes, *, new_columns: bool) -> None:
        """Put changed rows in the place of those with the same IDs, and add the others."""

    def commit(self, state: Mapping[str, Any], write: Callable[[], None]) -> Committed:
        """Run ``write``, one of the two methods above, as the run's one commit.

        :raises ConflictError: if another run committed first.
        """


class DeltaTarget:
    """A Delta table, at the version that the run found."""

    def __init__(self, spark: SparkSession, dataset: Dataset) -> None:
        self.dataset = dataset
        self.last = tables.last_run(spark, dataset, CAPABILITY)
        self._spark = spark

    def read_rows(self) -> DataFrame:
        """Return the rows as the run found them.

        :raises DataError: if the table does not exist.
        """
        return tables.read(self._spark, self._pinned)

    def count_rows(self) -> int | None:
        """Return how many rows the table's files hold; None if only a scan can tell."""
        return tables.records(self._spark, self._pinned)

    def overwrite(self, rows: DataFrame) -> None:
        """Replace all rows, or create the table if there is none."""
        if self.last is None:
            statements.create_as(self.dataset, rows, CAPABILITY, properties_for(rows.columns))
        else:
            statements.overwrite(self.dataset, rows)

    def apply(self, changes: Changes, *, new_columns: bool) -> None:
        """Put changed rows in the place of those with the same IDs, and add the others."""
        write(self._spark, self.dataset, changes, new_columns=new_columns)

    def commit(self, state: Mapping[str, Any], write: Callable[[], None]) -> Committed:
        """Run ``write`` as the run's one commit.

        :raises ConflictError: if another run committed first; this one has written nothing then.
        """
        return tables.commit(self._spark, self.dataset, CAPABILITY, self.last, state, write)

    @property
    def _pinned(self) -> Pinned:
        return Pinned(self.dataset, None if self.last is None else self.last.version)
