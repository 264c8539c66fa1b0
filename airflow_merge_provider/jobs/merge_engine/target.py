"""The target of a merge engine: the rows that the run found, and the one commit that changes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.dataset import Dataset, resolve
from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig
from airflow_merge_provider.core.merge_engine.plan import Plan
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.jobs.delta.side_table import SideTable
from airflow_merge_provider.jobs.delta.transaction import CommitResult
from airflow_merge_provider.jobs.delta.writer import create_table, overwrite_table
from airflow_merge_provider.jobs.merge_engine.counting import CHANGE, CountedChanges
from airflow_merge_provider.jobs.merge_engine.side_tables import (
    CHANGELOG,
    REMOVALS,
    REMOVALS_SUFFIX,
    open_side_table,
)
from airflow_merge_provider.jobs.merge_engine.writing import write_changes
from airflow_merge_provider.jobs.run.previous_run import PreviousRun
from airflow_merge_provider.jobs.run.retry import purge_target
from airflow_merge_provider.jobs.run.target import TargetTable

CAPABILITY = "merge_engine"


class Target(Protocol):
    """What a fold asks of its target; a Delta table, or rows in memory where no table is needed.

    ``changelog`` and ``removals`` are its side tables, None if the configuration does not ask for them.
    """

    dataset: Dataset
    last: PreviousRun | None
    changelog: SideTable | None
    removals: SideTable | None

    def read_rows(self) -> DataFrame:
        """Return the rows as the run found them."""

    def count_live_rows(self) -> int:
        """Return how many rows the run found."""

    def write(
        self, plan: Plan, rows: DataFrame, counted: CountedChanges, state: Mapping[str, Any], *, full: bool
    ) -> CommitResult:
        """Write changed rows, with ``CHANGE``, as the run's one commit; ``full`` says that they are all rows.

        :raises ConflictError: if another run committed first.
        """

    def purge(self, committed: CommitResult, state: Mapping[str, Any]) -> int:
        """Rewrite the files that hold deleted rows, and return the version after that."""


class DeltaTarget(TargetTable):
    """A Delta table of folded rows."""

    def __init__(
        self, spark: SparkSession, dataset: Dataset, request: JobRequest, config: MergeEngineConfig
    ) -> None:
        super().__init__(spark, dataset, CAPABILITY, request)
        self._config = config
        self.changelog: SideTable | None = None
        self.removals: SideTable | None = None
        if config.changelog is not None:
            place = resolve(config.changelog, request.warehouse, at="changelog")
            self.changelog = open_side_table(spark, place, CHANGELOG, self.last)
        if config.tombstone_retention is not None:
            place = dataset.with_suffix(REMOVALS_SUFFIX)
            self.removals = open_side_table(spark, place, REMOVALS, self.last)

    def write(
        self, plan: Plan, rows: DataFrame, counted: CountedChanges, state: Mapping[str, Any], *, full: bool
    ) -> CommitResult:
        """Write changed rows, with ``CHANGE``, as the run's one commit; ``full`` says that they are all rows.

        :raises ConflictError: if another run committed first; this one has written nothing then.
        """

        def write() -> None:
            if self.last is None:
                partitions = self._config.partition_by
                create_table(self.dataset, rows.drop(CHANGE), CAPABILITY, partition_by=partitions)
            elif full:
                overwrite_table(self.dataset, rows.drop(CHANGE))
            else:
                write_changes(self._spark, self.dataset, rows, plan, counted)

        return self.commit(state, write)

    def purge(self, committed: CommitResult, state: Mapping[str, Any]) -> int:
        """Rewrite the files that hold deleted rows, and return the version after that."""
        return purge_target(self._spark, self.dataset, CAPABILITY, committed.number, state)
