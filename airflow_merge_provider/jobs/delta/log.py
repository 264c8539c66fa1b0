"""Read the log of a Delta table: its versions, its history and its properties.

Spark needs a quarter of a second for that, and several seconds in a process that has just started. If Spark
is on this machine, delta-rs reads the same log in milliseconds, also in an object store. Spark reads it
otherwise, and if delta-rs fails.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from airflow_merge_provider import delta_rs
from airflow_merge_provider.core.dataset import Dataset, escape_pattern, format_table_uri, parse_hadoop_path
from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.object_store.clients import complete_options, find_extra, has_credentials
from airflow_merge_provider.core.run.table_log import TableVersion
from airflow_merge_provider.core.table_history import HistoryEntry
from airflow_merge_provider.jobs.spark import sql
from airflow_merge_provider.jobs.spark.causes import error_condition
from airflow_merge_provider.jobs.spark.errors import (
    IS_VIEW_CONDITION,
    NOT_DELTA_CONDITIONS,
    NOT_FOUND_CONDITIONS,
)
from airflow_merge_provider.jobs.spark.session import is_local
from airflow_merge_provider.jobs.spark.storage import build_options

if TYPE_CHECKING:
    from deltalake import DeltaTable

_MAPPING = "delta.columnMapping.mode"
_NULL_COUNT_PREFIX = "null_count."

Answer = TypeVar("Answer")
History = Sequence[HistoryEntry]


def find_newest_version(spark: SparkSession, dataset: Dataset) -> TableVersion | None:
    """Return the newest version of a table; None if there is no table.

    :raises DataError: if the path or name holds something other than a Delta table.
    """
    if is_nowhere(spark, dataset):
        return None
    table_version = query_delta_rs(
        spark,
        dataset,
        lambda table: TableVersion(table.version(), str(table.metadata().id), str(dataset.path)),
    )
    if table_version is not None:
        return table_version
    history = _query_history(spark, dataset, 1)
    if not history:
        return None
    detail = spark.sql(f"DESCRIBE DETAIL {sql.quote_table(dataset)}").collect()[0]
    return TableVersion(history[0].version, detail["id"], parse_hadoop_path(detail["location"]))


def read_history(spark: SparkSession, dataset: Dataset, limit: int | None) -> History:
    """Return the commits, newest first; an empty history if there is no table.

    :raises DataError: if the path or name holds something other than a Delta table.
    """
    if is_nowhere(spark, dataset):
        return []
    history = query_delta_rs(spark, dataset, lambda table: delta_rs.read_history(table, limit))
    return history or _query_history(spark, dataset, limit)


def find_restored_version(spark: SparkSession, dataset: Dataset, entry: HistoryEntry) -> int | None:
    """Return the version that a RESTORE to a timestamp went back to; None if it cannot be determined.

    The history holds the timestamp as the user wrote it, without the time zone of the session that parsed it.
    So the version that this session would choose is confirmed by its files.
    """
    timestamp = entry.parameters.get("timestamp")
    if timestamp is None:
        return None
    parsed = spark.sql(
        f"SELECT unix_millis(try_cast({sql.quote_text(str(timestamp))} AS TIMESTAMP)) AS at"
    ).collect()
    millis = parsed[0]["at"]
    if millis is None:
        return None
    earlier_commits = [
        commit for commit in _query_history(spark, dataset, None) if commit.version < entry.version
    ]
    version = next((commit.version for commit in earlier_commits if commit.timestamp <= millis), None)
    if version is None or _list_files(spark, dataset, version) != _list_files(spark, dataset, entry.version):
        return None
    return version


def read_commit_id(spark: SparkSession, location: str, version: int) -> str | None:
    """Return a digest of the commit that made a version; None if the log does not hold the commit any more.

    A copy of a table keeps the table ID and the commits. If the digests of two logs are equal, the logs share
    that commit and all commits before it.
    """
    if is_local(spark) and location.startswith("/"):
        return delta_rs.read_commit_id(Path(location), version)
    store = find_store(spark, location)
    if store is not None:
        with contextlib.suppress(Exception):  # Spark is used
            return delta_rs.read_remote_commit_id(location, version, store.options)
    try:
        reader = spark.read.format("binaryFile")
        rows = reader.load(escape_pattern(f"{location}/_delta_log/{version:020d}.json"))
        digests = rows.selectExpr("sha2(content, 256) AS digest").collect()
    except AnalysisException as error:
        if error_condition(error).startswith(NOT_FOUND_CONDITIONS):
            return None
        raise
    return digests[0]["digest"][: delta_rs.DIGEST_CHARS] if digests else None


def read_properties(spark: SparkSession, dataset: Dataset) -> Mapping[str, str]:
    """Return the properties of a table that exists."""
    properties = query_delta_rs(spark, dataset, lambda table: table.metadata().configuration)
    if properties is not None:
        return properties
    rows = spark.sql(f"SHOW TBLPROPERTIES {sql.quote_table(dataset)}").collect()
    return {row["key"]: row["value"] for row in rows}


def read_partition_columns(spark: SparkSession, dataset: Dataset) -> Sequence[str]:
    """Return the partition columns of a table that exists."""
    columns = query_delta_rs(spark, dataset, lambda table: table.metadata().partition_columns)
    if columns is not None:
        return columns
    detail = spark.sql(f"DESCRIBE DETAIL {sql.quote_table(dataset)}").collect()[0]
    return list(detail["partitionColumns"])


def count_rows_of_version(spark: SparkSession, dataset: Dataset, version: int, *, live: bool) -> int | None:
    """Return how many rows the files of a version hold; None if delta-rs cannot determine it.

    ``live`` leaves out rows that deletion vectors mark as deleted, unless the table is very large.
    """
    return query_delta_rs(spark, dataset, lambda table: delta_rs.count_rows(table, version, live=live))


def read_fields_of_version(
    spark: SparkSession, dataset: Dataset, version: int
) -> Sequence[Mapping[str, Any]] | None:
    """Return the columns of a version in Spark's JSON form; None if delta-rs cannot read them."""
    return query_delta_rs(spark, dataset, lambda table: delta_rs.read_fields(table, version))


def read_non_null_columns(spark: SparkSession, dataset: Dataset, version: int) -> frozenset[str]:
    """Return the columns without NULL at a version, as far as delta-rs finds this in the file statistics."""

    def find_columns(table: DeltaTable) -> frozenset[str]:
        table.load_as_version(version)
        if _MAPPING in table.metadata().configuration:
            # With column mapping, the statistics use physical column names.
            return frozenset()
        files = table.get_add_actions(flatten=True)
        # A dot in a statistics column may separate a struct and its field.
        names = {name for name in table.schema().to_arrow().names if "." not in name}
        return frozenset(
            name
            for name in names
            if f"{_NULL_COUNT_PREFIX}{name}" in files.schema.names
            and not any(count != 0 for count in files.column(f"{_NULL_COUNT_PREFIX}{name}").to_pylist())
        )

    return query_delta_rs(spark, dataset, find_columns) or frozenset()


def read_transaction(spark: SparkSession, dataset: Dataset, app_id: str) -> int | None:
    """Return the transaction number that Delta keeps for ever; None if delta-rs cannot read this table."""
    try:
        path = dataset.path
        if path is None:
            detail = spark.sql(f"DESCRIBE DETAIL {sql.quote_table(dataset)}").collect()[0]
            path = parse_hadoop_path(detail["location"])
        table = delta_rs.load_table(path, storage_options=build_options(spark, path))
        return table.transaction_version(app_id) or 0
    except Exception:  # noqa: BLE001 - no read access, an unsupported store, an unsupported table feature
        return None


def is_nowhere(spark: SparkSession, dataset: Dataset) -> bool:
    """Return whether not even a folder exists, which is checked without Spark."""
    path = dataset.path
    if path is None or path.startswith("/"):
        return path is not None and is_local(spark) and not Path(path).exists()
    store = find_store(spark, path)
    if store is None:
        return False
    try:
        return not _list_objects(path, store)
    except OSError:
        store.is_readable = False
        return False


def query_delta_rs(
    spark: SparkSession, dataset: Dataset, query: Callable[[DeltaTable], Answer]
) -> Answer | None:
    """Query a table with delta-rs, if Spark is on this machine; return None if delta-rs has no answer."""
    path = dataset.path
    if path is None or not is_local(spark):
        return None
    is_folder = path.startswith("/")
    store = None if is_folder else find_store(spark, path)
    if not is_folder and store is None:
        return None
    try:
        return query(delta_rs.load_table(path, storage_options=store.options if store else None))
    except OSError:
        if store is not None:
            store.is_readable = False
        return None
    except Exception:  # noqa: BLE001 - no table, no read access, an unsupported feature: Spark is used
        return None


def _list_objects(location: str, store: Store) -> Sequence[object]:
    """List the objects and folders of a location, without those below its folders."""
    from deltalake.fs import DeltaStorageHandler  # noqa: PLC0415 - only runs over object stores need both
    from pyarrow.fs import FileSelector  # noqa: PLC0415

    handler = DeltaStorageHandler(format_table_uri(location), store.options)
    return list(handler.get_file_info_selector(FileSelector("", allow_not_found=True)))


@dataclass(slots=True)
class Store:
    """An object store as delta-rs reads it, until it cannot."""

    options: dict[str, str]
    is_readable: bool = True


def find_store(spark: SparkSession, location: str) -> Store | None:
    """Return the object store of a location; None if only Spark reads it.

    Spark elsewhere may have other credentials, and another address, than this process.
    """
    if find_extra(location) is None or not is_local(spark):
        return None
    parts = urlsplit(location)
    store = _open_store(spark, f"{parts.scheme}://{parts.netloc}")
    return store if store.is_readable else None


@lru_cache(maxsize=64)
def _open_store(spark: SparkSession, root: str) -> Store:
    options = complete_options(root, build_options(spark, root))
    return Store(options, is_readable=has_credentials(options))


def _query_history(spark: SparkSession, dataset: Dataset, limit: int | None) -> History:
    statement = f"DESCRIBE HISTORY {sql.quote_table(dataset)}" + (f" LIMIT {limit}" if limit else "")
    try:
        # Collect whole rows: selecting columns would cost one more Spark job.
        rows = spark.sql(statement).collect()
    except AnalysisException as error:
        reason = error_condition(error)
        if reason.startswith(NOT_FOUND_CONDITIONS):
            return []
        if reason.startswith(IS_VIEW_CONDITION):
            message = f"{dataset.uri} is a view, which has no versions"
            hint = "name the table that it reads, or write its rows into a Delta table in a task before"
            raise DataError.from_problems([Problem(dataset.id, "view", message, hint)]) from None
        if not reason.startswith(NOT_DELTA_CONDITIONS):
            raise
        if dataset.path is not None and not _is_something_else(spark, dataset.path):
            return []
        raise delta_rs.refuse_other_format(dataset) from None
    return [delta_rs.parse_entry(row.asDict()) for row in rows]


def _list_files(spark: SparkSession, dataset: Dataset, version: int) -> set[str]:
    return set(spark.sql(f"SELECT * FROM {sql.quote_table(dataset)} VERSION AS OF {version}").inputFiles())


def _is_something_else(spark: SparkSession, path: str) -> bool:
    """Return whether there are files but no Delta log; a Delta writer creates the log's folder first."""
    return _list_some_files(spark, f"{path}/_delta_log") is None and bool(_list_some_files(spark, path))


def _list_some_files(spark: SparkSession, path: str) -> list[object] | None:
    """List at most one file below a path; None if the path does not exist."""
    reader = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    try:
        return list(reader.load(escape_pattern(path)).select("path").limit(1).collect())
    except AnalysisException as error:
        if error_condition(error).startswith(NOT_FOUND_CONDITIONS):
            return None
        raise
