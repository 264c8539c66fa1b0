"""The Delta table that a run writes, as the run found it: its last run, its rows, its one commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.jobs import tables
from airflow_merge_provider.jobs.tables import Committed, LastRun, Pinned


class TargetTable:
    """A target at the version that the run found; capabilities add what they write.

    ``last`` is the last run that committed to it, None if there is no table.
    """

    def __init__(self, spark: SparkSession, dataset: Dataset, capability: str) -> None:
        """Look for the table and its last run.

        :raises DataError: if it is not a Delta table, or one that this capability did not write.
        """
        self.dataset = dataset
        self.last: LastRun | None = tables.last_run(spark, dataset, capability)
        self._spark, self._capability = spark, capability

    def read_rows(self) -> DataFrame:
        """Return the rows as the run found them.

        :raises DataError: if the table does not exist.
        """
        return tables.read(self._spark, self._pinned)

    def count_rows(self) -> int | None:
        """Return how many rows the table's files hold; None if only a scan can tell."""
        return tables.records(self._spark, self._pinned)

    def commit(self, state: Mapping[str, Any], write: Callable[[], object]) -> Committed:
        """Run ``write`` as the run's one commit.

        :raises ConflictError: if another run committed first; this one has written nothing then.
        """
        return tables.commit(self._spark, self.dataset, self._capability, self.last, state, write)

    @property
    def _pinned(self) -> Pinned:
        return Pinned(self.dataset, None if self.last is None else self.last.version)
