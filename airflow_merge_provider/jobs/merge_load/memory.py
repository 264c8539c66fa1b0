"""Which times loads have seen that left no trace in a history: a small table beside the target.

A load that changes nothing still says that nothing had changed. The next time it saw is where a late load
ends to hold, so a history can only be repaired exactly if such times are remembered. They are written
before the target: a time too many is one at which a load would change nothing when it is tried again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.jobs.delta.table import pin_dataset
from airflow_merge_provider.jobs.delta.writer import append_rows, create_table, overwrite_table
from airflow_merge_provider.jobs.spark import sql
from airflow_merge_provider.jobs.spark.errors import error_condition

_SUFFIX = "__times"
_WRITER = "merge_load_times"
_NOT_THERE = ("PATH_NOT_FOUND", "TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND", "DELTA_MISSING", "DELTA_PATH")


class LoadTimes(Protocol):
    """The load times that a target's history does not show."""

    def recall(self) -> DataFrame | None:
        """Return the remembered times; None if there are none."""

    def keep(self, times: DataFrame, *, anew: bool, needed: bool) -> None:
        """Remember times where they are needed; ``anew`` drops those of a history that is no more."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The table of remembered times that belongs to a target."""

    spark: SparkSession
    dataset: Dataset

    @classmethod
    def of(cls, spark: SparkSession, target: Dataset) -> Memory:
        """Find the table of a target."""
        path = None if target.path is None else f"{target.path}{_SUFFIX}"
        table = None if target.table is None else f"{target.table}{_SUFFIX}"
        return cls(spark, replace(target, id=f"{target.id}{_SUFFIX}", path=path, table=table))

    def recall(self) -> DataFrame | None:
        """Give what is remembered; None when nothing is."""
        try:
            found = self.spark.table(sql.table(self.dataset))
            found.schema  # noqa: B018 - lets Spark look for the table now
        except AnalysisException as error:
            if error_condition(error).startswith(_NOT_THERE):
                return None
            raise
        return found

    def keep(self, times: DataFrame, *, anew: bool, needed: bool) -> None:
        """Remember times where they are needed; ``anew`` drops those of a history that is no more."""
        if not anew and not needed:
            return
        exists = pin_dataset(self.spark, self.dataset).exists
        if exists and anew:
            overwrite_table(self.dataset, times)
        elif needed and not exists:
            create_table(self.dataset, times, _WRITER)
        elif needed:
            append_rows(self.dataset, times)
