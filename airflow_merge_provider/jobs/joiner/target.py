"""The interface of the target of a join: its previous run, checks and commit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.joiner.schema import Schema
from airflow_merge_provider.core.run.previous_run import PreviousRun


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The result of a commit: the version of the target, and the number of rows if it is available."""

    version: int | None
    outputs: int | None


@dataclass(frozen=True)
class Target(ABC):
    """The target as it was at the start of the run; ``last`` is None if it does not exist yet."""

    dataset: Dataset
    append: bool
    last: PreviousRun | None

    @property
    def state(self) -> Mapping[str, Any]:
        """The state of the previous run, empty if there was none."""
        return self.last.state if self.last else {}

    @abstractmethod
    def check_columns(self, spark: SparkSession, fields: Schema) -> None:
        """Check that the target accepts all columns, before anything is computed.

        :raises DataError: with every such column.
        """

    @abstractmethod
    def count_rows(self, spark: SparkSession) -> int:
        """Return the number of rows in the target; 0 before the first run."""

    @abstractmethod
    def read_rows(self, spark: SparkSession) -> DataFrame:
        """Return the rows of a target that exists, as the run found them."""

    @abstractmethod
    def commit_rows(self, spark: SparkSession, rows: DataFrame, state: Mapping[str, Any]) -> WriteResult:
        """Write the rows and the state of the run in one atomic commit.

        :raises ConflictError: when another run was first; this one has written nothing then.
        """
