"""The interface of the target of a join, a Delta table or a folder: its previous run, checks and commit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import Problem
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

    def is_whole(self) -> bool:
        """Return whether everything that the last run wrote still exists."""
        return True

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

    def find_unfit_columns(self, target_types: Mapping[str, str], fields: Schema) -> list[Problem]:
        """Return a problem for each new column whose name or type differs from the existing columns.

        ``target_types`` maps the names of the existing columns to their types.
        """
        messages = [
            f"the target has no column {field.name!r}" for field in fields if field.name not in target_types
        ]
        messages += [
            f"{field.name!r} is {target_types[field.name]} in the target and {field.type} in the output"
            for field in fields
            if target_types.get(field.name, field.type) != field.type
        ]
        return [self.build_misfit(message) for message in messages]

    def build_misfit(self, message: str) -> Problem:
        """Build the problem that explains why rows cannot be appended."""
        hint = "append the columns of the target, or overwrite it once with write_mode='overwrite'"
        return Problem("write_mode", "schema", f"{self.dataset.uri}: {message}", hint)
