"""The Delta table that a run writes, as the run found it: the previous run, its rows, the one commit."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.run.decision import RunDecision
from airflow_merge_provider.core.run.previous_run import PreviousRun
from airflow_merge_provider.core.run.table_log import PinnedDataset
from airflow_merge_provider.core.source_offset import RunState
from airflow_merge_provider.jobs.delta.table import count_live_rows, count_records, read_dataset
from airflow_merge_provider.jobs.delta.transaction import CommitResult
from airflow_merge_provider.jobs.delta.writer import WriteOptions, set_owner
from airflow_merge_provider.jobs.run.retry import commit_run


class TargetTable:
    """A target at the version that the run found; capabilities add their write methods.

    ``last`` is the previous run of the target, None if there is no table.
    """

    def __init__(self, spark: SparkSession, capability: str, decision: RunDecision) -> None:
        self.dataset: Dataset = decision.reporter.target
        self.last: PreviousRun | None = decision.last
        self._options = WriteOptions.from_request(decision.request)
        self._spark, self._capability = spark, capability

    def read_rows(self) -> DataFrame:
        """Return the rows as the run found them.

        :raises DataError: if the table does not exist.
        """
        return read_dataset(self._spark, self._pinned)

    def count_rows(self) -> int | None:
        """Return how many rows the table's files hold; None if only a scan can determine it."""
        return count_records(self._spark, self._pinned)

    def count_live_rows(self) -> int:
        """Return how many rows the run found, without deleted ones."""
        return count_live_rows(self._spark, self._pinned)

    def commit_state(self, state: RunState, write: Callable[[], object]) -> CommitResult:
        """Run ``write`` as the run's one commit.

        :raises ConflictError: if another run committed first; this one has written nothing then.
        """
        self.adopt_table()
        return commit_run(
            self._spark, self.dataset, self._capability, self.last, state, write, options=self._options
        )

    def adopt_table(self) -> None:
        """Name the capability as the owner of a table that it takes over, in a commit that changes no row."""
        if self.last is not None and self.last.is_adopted:
            set_owner(self._spark, self.dataset, self._capability)

    @property
    def _pinned(self) -> PinnedDataset:
        return PinnedDataset(self.dataset, None if self.last is None else self.last.version)
