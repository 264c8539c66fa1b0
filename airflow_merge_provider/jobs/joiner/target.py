"""The target of a join: the interface that a join requires, and its form as a Delta table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.joiner.decision import JOB, JoinDecision
from airflow_merge_provider.core.joiner.schema import Schema, parse_table_fields
from airflow_merge_provider.core.run.previous_run import PreviousRun
from airflow_merge_provider.core.run.table_log import PinnedDataset
from airflow_merge_provider.core.source_offset import RunState
from airflow_merge_provider.jobs.delta.log import read_properties
from airflow_merge_provider.jobs.delta.table import count_live_rows, read_dataset
from airflow_merge_provider.jobs.delta.writer import (
    COLUMN_MAPPING,
    WriteOptions,
    append_rows,
    create_table,
    has_special_characters,
    overwrite_table,
)
from airflow_merge_provider.jobs.run.retry import commit_run


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
    def commit_rows(self, spark: SparkSession, rows: DataFrame, state: RunState) -> WriteResult:
        """Write the rows and the state of the run in one atomic commit.

        :raises ConflictError: when another run was first; this one has written nothing then.
        """


@dataclass(frozen=True)
class TableTarget(Target):
    """A Delta table that joined rows are written to."""

    options: WriteOptions

    @classmethod
    def from_decision(cls, decision: JoinDecision) -> Self:
        """Return the target as the run has found it."""
        options = WriteOptions.from_request(decision.request)
        return cls(decision.reporter.target, decision.is_append, decision.last, options)

    def check_columns(self, spark: SparkSession, fields: Schema) -> None:
        if self.last is None:
            return
        problems = []
        if self.append:
            target_fields = read_schema(read_dataset(spark, PinnedDataset(self.dataset, self.last.version)))
            problems = self._find_unfit_columns({field.name: field.type for field in target_fields}, fields)
        special_names = [field.name for field in fields if has_special_characters(field.name)]
        if special_names and not self._is_mapped(spark):
            message = (
                f"{self.dataset.uri} does not support these column names:"
                f" {', '.join(map(repr, special_names))}"
            )
            hint = (
                f"use other names, choose another target, or set its table property {COLUMN_MAPPING} to name"
            )
            problems.append(Problem("target", "names", message, hint))
        if problems:
            raise DataError.from_problems(problems)

    def count_rows(self, spark: SparkSession) -> int:
        return count_live_rows(spark, PinnedDataset(self.dataset, self.last.version)) if self.last else 0

    def read_rows(self, spark: SparkSession) -> DataFrame:
        version = None if self.last is None else self.last.version
        return read_dataset(spark, PinnedDataset(self.dataset, version))

    def commit_rows(self, spark: SparkSession, rows: DataFrame, state: RunState) -> WriteResult:
        def write() -> None:
            if self.last is None:
                create_table(self.dataset, rows, JOB, options=self.options)
            elif self.append:
                append_rows(self.dataset, rows)
            else:
                overwrite_table(self.dataset, rows)

        commit = commit_run(spark, self.dataset, JOB, self.last, state, write, options=self.options)
        return WriteResult(commit.version, commit.rows)

    def _find_unfit_columns(self, target_types: Mapping[str, str], fields: Schema) -> list[Problem]:
        """Return a problem for each new column whose name or type differs from the existing columns."""
        messages = [
            f"the target has no column {field.name!r}" for field in fields if field.name not in target_types
        ]
        messages += [
            f"{field.name!r} is {target_types[field.name]} in the target and {field.type} in the output"
            for field in fields
            if target_types.get(field.name, field.type) != field.type
        ]
        hint = "append the columns of the target, or overwrite it once with write_mode='overwrite'"
        return [
            Problem("write_mode", "schema", f"{self.dataset.uri}: {message}", hint) for message in messages
        ]

    def _is_mapped(self, spark: SparkSession) -> bool:
        """Return whether the table uses column mapping, so that names may contain special characters."""
        return read_properties(spark, self.dataset).get(COLUMN_MAPPING, "none") != "none"


def read_schema(frame: DataFrame) -> Schema:
    """Return the fields of a DataFrame; no rows are read."""
    return parse_table_fields(frame.schema.jsonValue()["fields"])
