"""The target of a join, a table or a folder: what the previous run did, and how one more is written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import Problem
from airflow_merge_provider.core.joiner.schema import Schema
from airflow_merge_provider.core.source_offset import SourceOffset, is_same_reads
from airflow_merge_provider.jobs.run.previous_run import PreviousRun

CAPABILITY = "joiner"


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What a run has written: its version of the target, and its rows where the target knows them."""

    version: int | None
    outputs: int | None


@dataclass(frozen=True)
class Target(ABC):
    """Where the result goes, as it was when the run began; ``last`` is None if there is no target yet."""

    dataset: Dataset
    append: bool
    last: PreviousRun | None

    @property
    def state(self) -> Mapping[str, Any]:
        """The state of the previous run, empty if there was none."""
        return self.last.state if self.last else {}

    @property
    def is_changed(self) -> bool:
        """Whether another writer has changed rows since the previous run."""
        return self.last is not None and self.last.changed_by is not None

    def is_up_to_date(self, fingerprint: str, offsets: Sequence[SourceOffset]) -> bool:
        """Return whether the target holds the join of these versions of the inputs."""
        is_same = self.state.get("fingerprint") == fingerprint and is_same_reads(self.state, offsets)
        # Rows that another writer changed can be made again, but not appended again.
        return is_same and self.is_whole() and (self.append or not self.is_changed)

    def is_whole(self) -> bool:
        """Return whether all that the last run wrote is still there."""
        return True

    @abstractmethod
    def check_columns(self, spark: SparkSession, fields: Schema) -> None:
        """Refuse columns that the target cannot take, before anything is computed.

        :raises DataError: with every such column.
        """

    @abstractmethod
    def count_rows(self, spark: SparkSession) -> int:
        """Count the rows that are there; 0 where no run has written yet."""

    @abstractmethod
    def commit_rows(self, spark: SparkSession, rows: DataFrame, state: Mapping[str, Any]) -> WriteResult:
        """Make the run happen, once and whole.

        :raises ConflictError: when another run was first; this one has written nothing then.
        """

    def find_unfit_columns(self, here: Mapping[str, str], fields: Schema) -> list[Problem]:
        """Compare the names and types of rows that are added with those that are there."""
        wrong = [f"{field.name!r} is not there" for field in fields if field.name not in here]
        wrong += [
            f"{field.name!r} is {here[field.name]} there and {field.type} here"
            for field in fields
            if here.get(field.name, field.type) != field.type
        ]
        return [self.build_misfit(each) for each in wrong]

    def build_misfit(self, message: str) -> Problem:
        """Return why rows cannot be added."""
        hint = "append what is there, or overwrite it once with another run"
        return Problem("write_mode", "schema", f"{self.dataset.uri}: {message}", hint)
