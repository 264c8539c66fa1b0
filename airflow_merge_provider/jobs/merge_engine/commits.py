"""What did the commits of a source do, and which files did they add: asked of delta-rs, or of Spark.

For a table on a local path delta-rs answers in milliseconds, where each question is a Spark job of its own.
It is not asked about other stores, whose keys only Spark has, nor where files need the table to be read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from airflow_merge_provider.jobs import sql, tables
from airflow_merge_provider.jobs.tables import Pinned

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
    """Find who is asked about a Delta table."""
    path = pinned.dataset.path
    if path is not None and path.startswith("/"):
        local = LocalLog(path, pinned.version or 0)
        if local.is_plain:
            return local
    return SparkLog(spark, pinned)


class LocalLog:
    """The log of a table on a local path, read by delta-rs."""

    def __init__(self, path: str, version: int) -> None:
        self._path, self._version = path, version

    @cached_property
    def is_plain(self) -> bool:
        """Tell whether the files hold all columns under their own names, and delta-rs knows the format."""
        from deltalake.exceptions import DeltaError  # noqa: PLC0415 - only where a source is followed

        try:
            metadata = self._at(self._version).metadata()
        except DeltaError:
            return False
        return not metadata.partition_columns and _MAPPING not in metadata.configuration

    @property
    def columns(self) -> Sequence[str]:
        return _schema(self._at(self._version)).names

    def history(self, since: int) -> list[Commit]:
        newest = self._at(None)
        # A table that is not at its newest version counts its commits from there, and wrong.
        told = newest.history(newest.version() - since)
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
        return Files(self._path, _schema(table), {path.rpartition("/")[2]: path for path in paths})

    def _at(self, version: int | None) -> Any:
        from deltalake import DeltaTable  # noqa: PLC0415 - as above

        return DeltaTable(self._path, version=version)


def _schema(table: Any) -> StructType:
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
    def is_mapped(self) -> bool:
        """Tell whether files have other names for the columns."""
        return _MAPPING in self._detail["properties"]

    @cached_property
    def _detail(self) -> Any:
        return self._spark.sql(f"DESCRIBE DETAIL {sql.table(self._pinned.dataset)}").collect()[0]

    def _table(self, version: int) -> DataFrame:
        return tables.read(self._spark, Pinned(self._pinned.dataset, version))


def _files(table: DataFrame) -> dict[str, str]:
    paths = (unquote(path) for path in table.inputFiles())
    return {path.rpartition("/")[2]: path for path in paths}
