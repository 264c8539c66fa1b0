"""Read from the Delta log what the commits of a source did and which files they added.

If Spark is on this machine, delta-rs reads the log in milliseconds; otherwise Spark reads it in one job for
all commits. The cost depends on the number of commits, not on the size of the table or on the writer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from pyspark.sql import Column, SparkSession, functions as F
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
_VERSION_DIGITS = 20
_MARKS = "deletionVector"
_RESTORE = "RESTORE"
# Programs write one place as ``/lake/a``, ``file:/lake/a`` and ``file:///lake/a``, and ``s3`` as ``s3a``.
_SCHEME_PATTERN = "^([A-Za-z][A-Za-z0-9+.-]*:)?/*"
_ACTION_NAMES = ("add", "remove", "cdc", "commitInfo")
_FILE_TYPE = "path string, dataChange boolean"
_ADD = f"{_FILE_TYPE}, partitionValues map<string, string>, {_MARKS} struct<offset: int>, stats string"
_INFO = "operation string"
_ENTRY_TYPE = (
    f"add struct<{_ADD}>, remove struct<{_FILE_TYPE}>, cdc struct<path string>, commitInfo struct<{_INFO}>"
)


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A file that a commit added; it lacks its partition columns, whose texts are in ``values``."""

    path: str
    version: int
    values: Mapping[str, str | None]

    @property
    def bare_path(self) -> str:
        """The path without its scheme, as ``read_bare_path`` gives it for each row of the file."""
        return re.sub(_SCHEME_PATTERN, "", self.path)


@dataclass(frozen=True, slots=True)
class GainedFile:
    """A file that may hold rows which an earlier version did not have; ``stats`` are JSON."""

    path: str
    stats: str | None

    @property
    def name(self) -> str:
        """The name of the file itself; a file in another partition may have the same."""
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
        return [
            self._build_commit(version, entries) for version, entries in self._read_entries(since, newest)
        ]

    def list_gained_files(self, since: int, newest: int) -> list[GainedFile]:
        """Return the files of version ``newest`` that may hold rows which version ``since`` did not have.

        A file into which a commit only moved rows counts if one of the files that it replaced does. A file
        that a commit adds again has more deleted rows than before, unless the commit restores it.
        """
        gained: dict[str, Entry] = {}
        for _, entries in self._read_entries(since, newest):
            removed = {entry["remove"]["path"] for entry in entries if entry.get("remove")}
            is_moved = not removed.isdisjoint(gained)
            is_restored = any(_get_operation(entry) == _RESTORE for entry in entries)
            before, gained = gained, {path: add for path, add in gained.items() if path not in removed}
            for add in (entry["add"] for entry in entries if entry.get("add")):
                is_new = is_restored or (add["path"] not in removed and (is_moved or _has_news(add)))
                if is_new or add["path"] in before:
                    gained[add["path"]] = add
        return [GainedFile(self._resolve_path(path), add.get("stats")) for path, add in gained.items()]

    def _read_entries(self, since: int, newest: int) -> list[tuple[int, list[Entry]]]:
        entries_by_version: dict[int, list[Entry]] = {version: [] for version in range(since + 1, newest + 1)}
        for version, entry in self.entries(list(entries_by_version)):
            entries_by_version[version].append(entry)
        return list(entries_by_version.items())

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


def read_bare_path() -> Column:
    """Return the path of the file of each row without its scheme, and without Spark's escapes."""
    text = F.replace(F.col("_metadata.file_path"), F.lit("+"), F.lit("%2B"))
    return F.regexp_replace(F.url_decode(text), _SCHEME_PATTERN, "")


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
        actions = spark.read.schema(_ENTRY_TYPE).json(paths)
        file_actions = actions.where(" OR ".join(f"{action} IS NOT NULL" for action in _ACTION_NAMES))
        version = F.substring(F.col("_metadata.file_name"), 1, _VERSION_DIGITS).cast("bigint")
        for row in file_actions.select(version.alias("version"), "*").collect():
            entry = row.asDict(recursive=True)
            yield entry.pop("version"), entry

    return read_entries


def _build_log_path(location: str, version: int) -> str:
    return f"{location}/_delta_log/{version:0{_VERSION_DIGITS}}.json"


def _get_operation(entry: Entry) -> str | None:
    operation: str | None = (entry.get("commitInfo") or {}).get("operation")
    return operation


def _has_news(file: Entry | None) -> bool:
    """Return whether the log entry of a file changes rows."""
    return file is not None and bool(file["dataChange"])
