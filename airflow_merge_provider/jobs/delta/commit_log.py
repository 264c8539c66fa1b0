"""What did the commits of a source do, and which files did they add: the entries of its log say it.

Where a table lies on this machine they are read in milliseconds, elsewhere by Spark in one job for all
commits. What that costs follows the commits, however large the table is, and whoever wrote them.
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

from airflow_merge_provider.jobs.delta.log import query_delta_rs
from airflow_merge_provider.jobs.delta.table import PinnedDataset, read_dataset
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
    """A file that a commit added; it does not hold partition columns: ``values`` are their texts."""

    path: str
    version: int
    values: Mapping[str, str | None]

    @property
    def name(self) -> str:
        """Its own name, which is never used twice."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Commit:
    """What a commit did to the rows: it ``changes`` some of them, or only adds those of its ``files``.

    One that rearranges files, or touches none, does neither.
    """

    version: int
    changes: bool
    files: Sequence[AddedFile]


@dataclass(frozen=True, slots=True)
class CommitLog:
    """The log of a table that lies at ``place``, and what it says of a version.

    ``is_mapped`` says that files know columns by other names than ``schema`` does. ``entries`` reads what
    some commits did to files, with the version of each.
    """

    place: str
    schema: StructType
    is_mapped: bool
    entries: Callable[[Sequence[int]], Iterable[tuple[int, Entry]]]

    def list_commits(self, since: int, newest: int) -> list[Commit]:
        """Return the commits after a version up to another, oldest first."""
        found: dict[int, list[Entry]] = {version: [] for version in range(since + 1, newest + 1)}
        for version, entry in self.entries(list(found)):
            found[version].append(entry)
        return [self._build_commit(version, entries) for version, entries in found.items()]

    def _build_commit(self, version: int, entries: Sequence[Entry]) -> Commit:
        added = [entry["add"] for entry in entries if _has_news(entry.get("add"))]
        # A file that comes back with marks holds rows that do not: only the table can be read then.
        marked = any(each.get(_MARKS) for each in added)
        if marked or any(entry.get("cdc") or _has_news(entry.get("remove")) for entry in entries):
            return Commit(version, changes=True, files=[])
        files = [
            AddedFile(self._resolve_path(each["path"]), version, each["partitionValues"] or {})
            for each in added
        ]
        return Commit(version, changes=False, files=files)

    def _resolve_path(self, written: str) -> str:
        """Return a file's whole path; in the log it is encoded, and may lead to another table."""
        path = unquote(written)
        return path if path.startswith("/") or urlsplit(written).scheme else f"{self.place}/{path}"


def open_commit_log(spark: SparkSession, pinned: PinnedDataset) -> CommitLog:
    """Open the log of a Delta table: here where it lies on this machine, else through Spark."""
    place = pinned.dataset.path or ""

    def open_log(table: DeltaTable) -> CommitLog:
        table.load_as_version(pinned.version or 0)
        schema = StructType.fromJson(json.loads(table.schema().to_json()))
        return CommitLog(place, schema, _MAPPING in table.metadata().configuration, _entries_here(place))

    return query_delta_rs(spark, pinned.dataset, open_log) or open_commit_log_by_spark(spark, pinned)


def open_commit_log_by_spark(spark: SparkSession, pinned: PinnedDataset) -> CommitLog:
    """Open the log of a Delta table wherever it lies."""
    detail = spark.sql(f"DESCRIBE DETAIL {sql.quote_table(pinned.dataset)}").collect()[0]
    place = str(detail["location"])
    schema = read_dataset(spark, pinned).schema
    return CommitLog(place, schema, _MAPPING in detail["properties"], _entries_by_spark(spark, place))


def _entries_here(place: str) -> Callable[[Sequence[int]], Iterator[tuple[int, Entry]]]:
    def read_entries(versions: Sequence[int]) -> Iterator[tuple[int, Entry]]:
        for version in versions:
            with Path(_build_log_path(place, version)).open(encoding="utf-8") as lines:
                yield from ((version, json.loads(line)) for line in lines if line.strip())

    return read_entries


def _entries_by_spark(
    spark: SparkSession, place: str
) -> Callable[[Sequence[int]], Iterator[tuple[int, Entry]]]:
    def read_entries(versions: Sequence[int]) -> Iterator[tuple[int, Entry]]:
        read = spark.read.schema(_ENTRY).json([_build_log_path(place, version) for version in versions])
        news = read.where("add.dataChange OR remove.dataChange OR cdc IS NOT NULL")
        version = F.substring(F.col("_metadata.file_name"), 1, _DIGITS).cast("bigint")
        for row in news.select(version.alias("version"), "*").collect():
            entry = row.asDict(recursive=True)
            yield entry.pop("version"), entry

    return read_entries


def _build_log_path(place: str, version: int) -> str:
    return f"{place}/_delta_log/{version:0{_DIGITS}}.json"


def _has_news(file: Entry | None) -> bool:
    """Return whether an entry of a file says something about rows."""
    return file is not None and bool(file["dataChange"])
