"""Read from the Delta log what the commits of a source did and which files they added.

If Spark is on this machine, delta-rs reads the log in milliseconds; otherwise Spark reads it in one job for
all commits. The cost depends on the number of commits, not on the size of the table or on the writer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from pyspark.sql import SparkSession, functions as F
from pyspark.sql.types import StructType

from airflow_merge_provider import delta_rs
from airflow_merge_provider.core.dataset import escape_pattern, parse_hadoop_path
from airflow_merge_provider.core.run.table_log import PinnedDataset
from airflow_merge_provider.jobs.delta.log import Store, find_store, query_delta_rs
from airflow_merge_provider.jobs.delta.table import read_dataset
from airflow_merge_provider.jobs.spark import sql

if TYPE_CHECKING:
    from deltalake import DeltaTable

Entry = Mapping[str, Any]

_MAPPING = "delta.columnMapping.mode"
_DIGITS = 20
_MARKS = "deletionVector"
_ADD = f"path string, partitionValues map<string, string>, dataChange boolean, {_MARKS} struct<offset: int>"
_ENTRY = f"add struct<{_ADD}>, remove struct<dataChange boolean>, cdc struct<path string>"


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A file that a commit added; it lacks its partition columns, whose texts are in ``values``."""

    path: str
    version: int
    values: Mapping[str, str | None]

    @property
    def name(self) -> str:
        """The name of the file itself, which is never used twice."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Commit:
    """The effect of a commit on rows: it ``changes`` some of them, or only adds the rows of its ``files``.

    A commit that only rearranges files, or touches none, does neither.
    """

    version: int
    changes: bool
    files: Sequence[AddedFile]


@dataclass(frozen=True, slots=True)
class CommitLog:
    """The log of the table at ``location``, up to one version.

    ``is_mapped`` is true if files use other column names than ``schema`` (column mapping). ``entries`` reads
    the file actions of some commits, with the version of each.
    """

    location: str
    schema: StructType
    is_mapped: bool
    entries: Callable[[Sequence[int]], Iterable[tuple[int, Entry]]]

    def list_commits(self, since: int, newest: int) -> list[Commit]:
        """Return the commits after a version up to another, oldest first."""
        entries_by_version: dict[int, list[Entry]] = {version: [] for version in range(since + 1, newest + 1)}
        for version, entry in self.entries(list(entries_by_version)):
            entries_by_version[version].append(entry)
        return [self._build_commit(version, entries) for version, entries in entries_by_version.items()]

    def _build_commit(self, version: int, entries: Sequence[Entry]) -> Commit:
        add_actions = [entry["add"] for entry in entries if _has_news(entry.get("add"))]
        # A file that is added again with a deletion vector also holds deleted rows: only the table can be
        # read then.
        has_vectors = any(action.get(_MARKS) for action in add_actions)
        if has_vectors or any(entry.get("cdc") or _has_news(entry.get("remove")) for entry in entries):
            return Commit(version, changes=True, files=[])
        files = [
            AddedFile(self._resolve_path(action["path"]), version, action["partitionValues"] or {})
            for action in add_actions
        ]
        return Commit(version, changes=False, files=files)

    def _resolve_path(self, logged_path: str) -> str:
        """Return the whole path of a file; the log encodes it, and it may lead to another table."""
        path = unquote(logged_path)
        return path if path.startswith("/") or urlsplit(logged_path).scheme else f"{self.location}/{path}"


def open_commit_log(spark: SparkSession, pinned: PinnedDataset) -> CommitLog:
    """Open the log of a Delta table: with delta-rs if Spark is on this machine, else with Spark."""
    location = pinned.dataset.path or ""
    store = find_store(spark, location)
    entries = _entries_here(location) if store is None else _entries_of_store(location, store)

    def open_log(table: DeltaTable) -> CommitLog:
        table.load_as_version(pinned.version or 0)
        schema = StructType.fromJson(json.loads(table.schema().to_json()))
        return CommitLog(location, schema, _MAPPING in table.metadata().configuration, entries)

    return query_delta_rs(spark, pinned.dataset, open_log) or open_commit_log_by_spark(spark, pinned)


def open_commit_log_by_spark(spark: SparkSession, pinned: PinnedDataset) -> CommitLog:
    """Open the log of a Delta table with Spark, wherever the table is."""
    detail = spark.sql(f"DESCRIBE DETAIL {sql.quote_table(pinned.dataset)}").collect()[0]
    location = parse_hadoop_path(str(detail["location"]))
    schema = read_dataset(spark, pinned).schema
    return CommitLog(location, schema, _MAPPING in detail["properties"], _entries_by_spark(spark, location))


def _entries_here(location: str) -> Callable[[Sequence[int]], Iterator[tuple[int, Entry]]]:
    def read_entries(versions: Sequence[int]) -> Iterator[tuple[int, Entry]]:
        for version in versions:
            with Path(_build_log_path(location, version)).open(encoding="utf-8") as lines:
                yield from ((version, json.loads(line)) for line in lines if line.strip())

    return read_entries


def _entries_of_store(location: str, store: Store) -> Callable[[Sequence[int]], Iterator[tuple[int, Entry]]]:
    def read_entries(versions: Sequence[int]) -> Iterator[tuple[int, Entry]]:
        for version in versions:
            content = delta_rs.read_log_entry(location, version, store.options)
            if content is None:
                raise FileNotFoundError(_build_log_path(location, version))
            yield from ((version, json.loads(line)) for line in content.splitlines() if line.strip())

    return read_entries


def _entries_by_spark(
    spark: SparkSession, location: str
) -> Callable[[Sequence[int]], Iterator[tuple[int, Entry]]]:
    def read_entries(versions: Sequence[int]) -> Iterator[tuple[int, Entry]]:
        paths = [escape_pattern(_build_log_path(location, version)) for version in versions]
        actions = spark.read.schema(_ENTRY).json(paths)
        data_changes = actions.where("add.dataChange OR remove.dataChange OR cdc IS NOT NULL")
        version = F.substring(F.col("_metadata.file_name"), 1, _DIGITS).cast("bigint")
        for row in data_changes.select(version.alias("version"), "*").collect():
            entry = row.asDict(recursive=True)
            yield entry.pop("version"), entry

    return read_entries


def _build_log_path(location: str, version: int) -> str:
    return f"{location}/_delta_log/{version:0{_DIGITS}}.json"


def _has_news(file: Entry | None) -> bool:
    """Return whether the log entry of a file changes rows."""
    return file is not None and bool(file["dataChange"])
