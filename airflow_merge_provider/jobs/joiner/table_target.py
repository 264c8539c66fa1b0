"""A Delta table as the target: which columns it takes, and the one commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.joiner.config import JoinerConfig
from airflow_merge_provider.core.joiner.schema import Schema
from airflow_merge_provider.jobs.delta.table import (
    PinnedDataset,
    PreviousRun,
    commit_once,
    load_previous_run,
    read_dataset,
)
from airflow_merge_provider.jobs.delta.writer import append_rows, create_table, overwrite_table
from airflow_merge_provider.jobs.joiner.schemas import schema_of
from airflow_merge_provider.jobs.joiner.target import CAPABILITY, Target, Written
from airflow_merge_provider.jobs.spark import sql

_MAPPING = "delta.columnMapping.mode"
# What Delta takes in a column's name only where columns are mapped.
_ODD = frozenset(" ,;{}()\n\t=")


@dataclass(frozen=True)
class TableTarget(Target):
    """A Delta table; ``last`` is its last run, None when the table does not exist."""

    last: PreviousRun | None

    @classmethod
    def find(cls, spark: SparkSession, dataset: Dataset, config: JoinerConfig) -> Self:
        """Look at the table before anything is read.

        :raises DataError: when it is no Delta table, or one that another capability wrote.
        """
        last = load_previous_run(spark, dataset, CAPABILITY)
        state = last.state if last else {}
        written = Written(last.run_version, last.rows) if last else Written(None, None)
        return cls(dataset, config.write_mode == "append", state, written, last)

    def check(self, spark: SparkSession, fields: Schema) -> None:
        if self.last is None:
            return
        problems = []
        if self.append:
            there = schema_of(read_dataset(spark, PinnedDataset(self.dataset, self.last.version)))
            problems = self.unfit({field.name: field.type for field in there}, fields)
        odd = [field.name for field in fields if _is_odd(field.name)]
        if odd and not self._is_mapped(spark):
            message = f"{self.dataset.uri} cannot hold columns of these names: {', '.join(map(repr, odd))}"
            hint = f"give them other names, choose another target, or set its property {_MAPPING} to name"
            problems.append(Problem("target", "names", message, hint))
        if problems:
            raise DataError.of(problems)

    def standing(self, spark: SparkSession) -> int:
        return read_dataset(spark, PinnedDataset(self.dataset, self.last.version)).count() if self.last else 0

    def write(self, spark: SparkSession, rows: DataFrame, state: Mapping[str, Any]) -> Written:
        def write() -> None:
            if self.last is None:
                odd = any(_is_odd(name) for name in rows.columns)
                create_table(self.dataset, rows, CAPABILITY, {_MAPPING: "name"} if odd else None)
            elif self.append:
                append_rows(self.dataset, rows)
            else:
                overwrite_table(self.dataset, rows)

        landed = commit_once(spark, self.dataset, CAPABILITY, self.last, state, write)
        return Written(landed.version, landed.rows)

    def _is_mapped(self, spark: SparkSession) -> bool:
        """Tell whether columns have other names in the files, so that they may be called anything."""
        properties = spark.sql(f"SHOW TBLPROPERTIES {sql.table(self.dataset)}").collect()
        return any(row["key"] == _MAPPING and row["value"] != "none" for row in properties)


def _is_odd(name: str) -> bool:
    return bool(_ODD & set(name))
