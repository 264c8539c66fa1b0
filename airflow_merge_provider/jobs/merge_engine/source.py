"""Read the rows that the source gained since the last run, with the order in which they arrived.

Appended rows are read from the files that their commits added. Commits that changed rows are read from the
change data feed, whose rows have kinds. Maintenance commits add no rows.
Source: docs/semantics/merge_engine.md, Order of records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, functions as F
from pyspark.sql.types import StructType

from airflow_merge_provider.core.dataset import escape_pattern
from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_engine.checks import check_names
from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig
from airflow_merge_provider.core.run.table_log import PinnedDataset
from airflow_merge_provider.jobs.delta.commit_log import (
    AddedFile,
    Commit,
    CommitLog,
    open_commit_log,
    read_bare_path,
)
from airflow_merge_provider.jobs.delta.table import has_change_feed, read_change_feed, read_dataset
from airflow_merge_provider.jobs.merge_engine.records import CLEARS, RECORD_ARRIVAL, RECORD_KIND
from airflow_merge_provider.jobs.spark import sql
from airflow_merge_provider.jobs.spark.errors import CHANGES_GONE_CONDITIONS, has_condition
from airflow_merge_provider.jobs.spark.expressions import add_columns, cast_to, drop_collations
from airflow_merge_provider.jobs.spark.staging import create_dataframe

_FEED_KINDS = {"insert": "+I", "update_preimage": "-U", "update_postimage": "+U", "delete": "-D"}
_PATH, _SOURCE_ROW, _VERSION = "__merge_path", "__merge_row", "__merge_version"
_REMEDY = "run once with full_refresh=True, or set incremental=False to fold the whole source in each run"


@dataclass(frozen=True, slots=True)
class IncrementalRead:
    """The rows to fold, how they were found, and whether the change data feed gave them row kinds."""

    rows: DataFrame
    how: str
    with_kinds: bool = False


class Source(Protocol):
    """The interface of a fold's source: a dataset, or rows in memory if no table is needed."""

    pinned: PinnedDataset

    def read_gained(self, since: int | None) -> IncrementalRead | None:
        """Return the rows gained after version ``since`` (all rows if it is None); None if there are none."""


class DatasetSource:
    """A dataset at the version that the run found."""

    def __init__(self, spark: SparkSession, config: MergeEngineConfig, pinned: PinnedDataset) -> None:
        self.pinned = pinned
        self._spark, self._config = spark, config

    def read_gained(self, since: int | None) -> IncrementalRead | None:
        """Return the rows gained after version ``since`` (all rows if it is None); None if there are none.

        :raises DataError: if the source does not exist, or its changes cannot be determined.
        """
        return _read_gained(self._spark, self._config, self.pinned, since)


def _read_gained(
    spark: SparkSession, config: MergeEngineConfig, pinned: PinnedDataset, since: int | None
) -> IncrementalRead | None:
    if since is None or not config.incremental:
        rows = read_dataset(spark, pinned)
        check_names(config, rows.columns)
        return IncrementalRead(_read_snapshot(config, rows), "snapshot")
    if since == pinned.version:
        return None
    if pinned.dataset.format != "delta":
        raise _refuse_unavailable_changes(pinned, "consists of files without versions")
    if pinned.version is None or pinned.version < since:
        raise _refuse_unavailable_changes(
            pinned, f"is at version {pinned.version}, but version {since} was already folded"
        )
    log = open_commit_log(spark, pinned)
    check_names(config, log.schema.names)
    with still_there(pinned, since):
        commits = log.list_commits(since, pinned.version)
        changed = [commit.version for commit in commits if commit.changes]
        parts = list(_read_appended(spark, config, pinned, log, commits))
        if changed:
            parts = [part.withColumn(RECORD_KIND, F.lit("+I")) for part in parts]
            parts.append(_read_change_feed(spark, config, pinned, changed))
    if not parts:
        return None
    rows = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), parts)
    return IncrementalRead(rows, "changes" if changed else "appends", with_kinds=bool(changed))


def select_records(
    config: MergeEngineConfig,
    rows: DataFrame,
    columns: Sequence[str],
    arrival: tuple[Column, Column, Column],
    *extra_columns: Column,
) -> DataFrame:
    """Select the columns of records, the struct that orders them, and further columns.

    Records are ordered by the ``order_by`` columns, then by ``arrival``: commit, file and row.
    ``extra_columns`` are the further columns.
    """
    order = [sql.quote_column(name).alias(f"by{index}") for index, name in enumerate(config.order_by)]
    order += [part.alias(name) for part, name in zip(arrival, ("version", "file", "row"), strict=True)]
    selected = rows.select(
        *map(sql.quote_column, columns), F.struct(*order).alias(RECORD_ARRIVAL), *extra_columns
    )
    return _rename_columns(config, drop_collations(selected))


def _read_snapshot(config: MergeEngineConfig, rows: DataFrame) -> DataFrame:
    """Return all rows, ordered by modification time of the file, then by position in the file."""
    meta = F.col("_metadata")
    # The ID increases with the position in a file block, which one task reads from its start. Only this
    # order is used, and it is the same in every attempt.
    row_id = F.monotonically_increasing_id()  # noqa: TID251 - compared inside a block only, see above
    file = F.concat(meta["file_path"], F.format_string("#%020d", meta["file_block_start"]))
    version = F.unix_micros(meta["file_modification_time"])
    return select_records(config, rows, rows.columns, (version, file, row_id))


def _rename_columns(config: MergeEngineConfig, rows: DataFrame) -> DataFrame:
    """Rename the row kind column and the clear column, which are not stored, to ``KIND`` and ``CLEARS``."""
    for name, new_name in ((config.row_kind_column, RECORD_KIND), (config.clear_column, CLEARS)):
        if name is not None:
            rows = rows.withColumnRenamed(_find_column(name, rows.columns), new_name)
    return rows


def _find_column(name: str, columns: Sequence[str]) -> str:
    """Return the exact name of a column; unknown names are returned as they are, and rejected elsewhere."""
    return next((column for column in columns if column.casefold() == name.casefold()), name)


def _read_appended(
    spark: SparkSession,
    config: MergeEngineConfig,
    pinned: PinnedDataset,
    log: CommitLog,
    commits: Sequence[Commit],
) -> Iterator[DataFrame]:
    """Read the rows that commits appended, from the files that they added."""
    if log.is_mapped:
        for commit in commits:
            if not commit.files:
                continue
            table = read_dataset(spark, PinnedDataset(pinned.dataset, commit.version))
            rows = table.where(read_bare_path().isin(*(file.bare_path for file in commit.files)))
            row_id = F.monotonically_increasing_id()  # noqa: TID251 - as for a snapshot
            version = F.lit(commit.version).cast("bigint")
            arrival = (version, F.col("_metadata.file_path"), row_id)
            yield select_records(config, rows, table.columns, arrival)
        return
    # Files that were added before and after a change of the partition columns hold different columns.
    files_by_partitioning: dict[frozenset[str], list[AddedFile]] = {}
    for file in (file for commit in commits for file in commit.files):
        files_by_partitioning.setdefault(frozenset(file.values), []).append(file)
    for partitions, files in files_by_partitioning.items():
        rows = _read_files(spark, log.schema, partitions, files)
        arrival = (F.col(_VERSION), F.col(_PATH), F.col(_SOURCE_ROW))
        yield select_records(config, rows, log.schema.names, arrival)


def _read_files(
    spark: SparkSession, schema: StructType, partitioned: frozenset[str], files: Sequence[AddedFile]
) -> DataFrame:
    """Read files in one scan, and join the commit and partition values from the commit log.

    There is one scan for any number of commits, because planning one scan per commit takes longer than
    running it.
    """
    partitions = [field for field in schema if field.name in partitioned]
    file_schema = StructType([field for field in schema if field not in partitions])
    meta = F.col("_metadata")
    rows = spark.read.schema(file_schema).parquet(*dict.fromkeys(escape_pattern(file.path) for file in files))
    rows = rows.select("*", read_bare_path().alias(_PATH), meta["row_index"].alias(_SOURCE_ROW))
    log_columns = {_PATH: [file.bare_path for file in files], _VERSION: [file.version for file in files]}
    # The commit log may represent NULL as an empty string.
    log_columns |= {field.name: [file.values[field.name] or None for file in files] for field in partitions}
    kinds = [pa.string(), pa.int64(), *(pa.string() for _ in partitions)]
    arrays = [pa.array(values, kind) for values, kind in zip(log_columns.values(), kinds, strict=True)]
    log = create_dataframe(spark, pa.table(arrays, names=list(log_columns)))
    casts = {field.name: cast_to(sql.quote_column(field.name), field.dataType) for field in partitions}
    return rows.join(F.broadcast(add_columns(log, casts)), _PATH)


def _read_change_feed(
    spark: SparkSession, config: MergeEngineConfig, pinned: PinnedDataset, versions: Sequence[int]
) -> DataFrame:
    """Read the rows that commits changed from the change data feed."""
    dataset = pinned.dataset
    _require_feed(spark, config, pinned, versions[0])
    feed = read_change_feed(spark, dataset, versions[0], versions[-1])
    kinds: list[Any] = [F.lit(word) for pair in _FEED_KINDS.items() for word in pair]
    kind = F.create_map(*kinds)[F.col("_change_type")].alias(RECORD_KIND)
    arrival = (F.col("_commit_version"), F.lit(""), F.lit(0).cast("bigint"))
    columns = [name for name in feed.columns if name not in _FEED_METADATA]
    chosen = feed.where(F.col("_commit_version").isin(*versions))
    return select_records(config, chosen, columns, arrival, kind)


_FEED_METADATA = ("_change_type", "_commit_version", "_commit_timestamp")


def _require_feed(
    spark: SparkSession, config: MergeEngineConfig, pinned: PinnedDataset, version: int
) -> None:
    if config.row_kind_column is not None or config.table_options.row_kind_field is not None:
        raise _refuse_unavailable_changes(
            pinned, f"changed rows in version {version}, and its rows already have row kinds"
        )
    if not has_change_feed(spark, pinned.dataset):
        raise DataError.from_problems(
            [
                Problem(
                    "source",
                    "changes-unavailable",
                    f"{pinned.dataset.uri} changed rows in version {version} and has no change data feed",
                    "set its table property delta.enableChangeDataFeed = true, and " + _REMEDY,
                )
            ]
        )


@contextmanager
def still_there(pinned: PinnedDataset, since: int | None) -> Iterator[None]:
    """Convert Spark's errors about missing files or commits after version ``since`` to a DataError.

    :raises DataError: when Spark does not find one of its files or commits.
    """
    try:
        yield
    except Exception as error:
        if since is not None and has_condition(error, CHANGES_GONE_CONDITIONS):
            raise _refuse_unavailable_changes(
                pinned, f"no longer has all files and commits after version {since}"
            ) from error
        raise


def _refuse_unavailable_changes(pinned: PinnedDataset, why: str) -> DataError:
    message = f"the changes of {pinned.dataset.uri} cannot be determined: it {why}"
    return DataError.from_problems([Problem("source", "changes-unavailable", message, _REMEDY)])
