"""What did the commits of a source do, and which files did they add: asked of delta-rs, or of Spark.

Where a table lies on this machine delta-rs answers in milliseconds, and each question to Spark is a job of
its own. Spark is asked everywhere else, and where files need the table to be read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from airflow_merge_provider.jobs import sql, tables
from airflow_merge_provider.jobs.history import asked
from airflow_merge_provider.jobs.tables import Pinned

if TYPE_CHECKING:
    from deltalake import DeltaTable

_MAPPING = "delta.columnMapping.mode"


@dataclass(frozen=True, slots=True)
class Commit:
    """A line of a table's history."""

    version: int
    operation: str
    parameters: Mapping[str, Any]
    metrics: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Files:
    """Files that a commit added, with the schema of the table then; ``root`` is the table's place."""

    root: str
    schema: StructType
    paths: Mapping[str, str]


class Log(Protocol):
    """What is asked of a source's log."""

    @property
    def columns(self) -> Sequence[str]:
        """The columns of the source at its pinned version."""

    def history(self, since: int) -> list[Commit]:
        """Give the commits after a version, oldest first, as far as they are remembered."""

    def added(self, version: int) -> Files:
        """Give the files that a commit added, by their names, which are never used twice."""


def log_of(spark: SparkSession, pinned: Pinned) -> Log:
    """Find who is asked about a Delta table: delta-rs where it can tell all that is asked, else Spark."""
    local = asked(spark, pinned.dataset, lambda table: LocalLog(table, pinned.version or 0))
    return local if local is not None and local.is_plain else SparkLog(spark, pinned)


class LocalLog:
    """The log of a table on this machine, read by delta-rs."""

    def __init__(self, table: DeltaTable, version: int) -> None:
        self._newest, self._version = table, version
        self._schema = _schema(self._at(version))

    @property
    def is_plain(self) -> bool:
        """Tell whether the files hold all columns under their own names."""
        metadata = self._newest.metadata()
        return not metadata.partition_columns and _MAPPING not in metadata.configuration

    @property
    def columns(self) -> Sequence[str]:
        return self._schema.names

    def history(self, since: int) -> list[Commit]:
        # A table that is not at its newest version would count its commits from there, and wrong.
        told = self._newest.history(self._newest.version() - since)
        lines = [line for line in told if since < line["version"] <= self._version]
        commits = [
            Commit(
                line["version"],
                line["operation"],
                line.get("operationParameters", {}),
                line.get("operationMetrics", {}),
            )
            for line in lines
        ]
        return sorted(commits, key=lambda commit: commit.version)

    def added(self, version: int) -> Files:
        before, table = self._at(version - 1), self._at(version)
        known = set(before.file_uris())
        paths = [path for path in table.file_uris() if path not in known]
        names = {path.rpartition("/")[2]: path for path in paths}
        return Files(str(self._newest.table_uri), _schema(table), names)

    def _at(self, version: int) -> DeltaTable:
        return type(self._newest)(self._newest.table_uri, version=version)


def _schema(table: DeltaTable) -> StructType:
    return StructType.fromJson(json.loads(table.schema().to_json()))


class SparkLog:
    """The log of any other table."""

    def __init__(self, spark: SparkSession, pinned: Pinned) -> None:
        self._spark, self._pinned = spark, pinned

    @property
    def columns(self) -> Sequence[str]:
        return tables.read(self._spark, self._pinned).columns

    def history(self, since: int) -> list[Commit]:
        newest = self._pinned.version
        rows = (
            self._spark.sql(f"DESCRIBE HISTORY {sql.table(self._pinned.dataset)}")
            .where(f"version > {since} AND version <= {newest}")
            .select("version", "operation", "operationParameters", "operationMetrics")
            .orderBy("version")
            .collect()
        )
        return [Commit(row[0], row[1], row[2] or {}, row[3] or {}) for row in rows]

    def added(self, version: int) -> Files:
        before, table = (self._table(at) for at in (version - 1, version))
        known = _files(before)
        paths = {name: path for name, path in _files(table).items() if name not in known}
        return Files(self._detail["location"], table.schema, paths)

    @property
    def needs_table(self) -> bool:
        """Tell whether files alone do not hold all columns by their names, so that the table is read."""
        return _MAPPING in self._detail["properties"] or bool(self._detail["partitionColumns"])

    @cached_property
    def _detail(self) -> Any:
        return self._spark.sql(f"DESCRIBE DETAIL {sql.table(self._pinned.dataset)}").collect()[0]

    def _table(self, version: int) -> DataFrame:
        return tables.read(self._spark, Pinned(self._pinned.dataset, version))


def _files(table: DataFrame) -> dict[str, str]:
    paths = (unquote(path) for path in table.inputFiles())
    return {path.rpartition("/")[2]: path for path in paths}
