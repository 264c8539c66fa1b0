"""What has the source gained since the last run: its rows with the order in which they arrived.

Rows that were appended are read from the files that their commits added. Commits that changed rows are read
from the change data feed, whose rows have kinds. Maintenance adds nothing. Source: merge_engine spec §1.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, functions as F

from airflow_merge_provider.core.errors import DataError, Problem, did_you_mean
from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig
from airflow_merge_provider.jobs import sql, tables
from airflow_merge_provider.jobs.merge_engine.commits import Log, SparkLog, log_of
from airflow_merge_provider.jobs.merge_engine.records import ARRIVAL, CLEARS, KIND
from airflow_merge_provider.jobs.tables import Pinned

_FEED_KINDS = {"insert": "+I", "update_preimage": "-U", "update_postimage": "+U", "delete": "-D"}
_APPENDS = ("WRITE", "STREAMING UPDATE", "COPY INTO")
_MAINTENANCE = (
    "OPTIMIZE",
    "VACUUM START",
    "VACUUM END",
    "REORG",
    "SET TBLPROPERTIES",
    "UNSET TBLPROPERTIES",
    "ADD COLUMNS",
    "CHANGE COLUMN",
    "CHANGE COLUMNS",
    "ADD CONSTRAINT",
    "DROP CONSTRAINT",
    "UPGRADE PROTOCOL",
    "ADD FEATURE",
    "CLUSTER BY",
    "COMPUTE STATS",
    "CREATE TABLE",
)
_WAY_OUT = "run once with full_refresh=True, or give whole batches with incremental=False"


@dataclass(frozen=True, slots=True)
class Gained:
    """What a run folds: the rows, how they were found, and whether the source itself gave them kinds."""

    rows: DataFrame
    how: str
    with_kinds: bool = False


def gained(
    spark: SparkSession, config: MergeEngineConfig, pinned: Pinned, since: int | None
) -> Gained | None:
    """Read what the source gained after version ``since``, all of it when that is None; None for nothing.

    :raises DataError: when the source does not exist, or what it gained cannot be told.
    """
    if since is None or not config.incremental:
        rows = tables.read(spark, pinned)
        _check_names(config, rows.columns)
        return Gained(_snapshot(config, rows), "snapshot")
    if since == pinned.version:
        return None
    if pinned.dataset.format != "delta":
        raise _untold(pinned, "is made of plain files, which have no versions")
    if pinned.version is None or pinned.version < since:
        raise _untold(pinned, f"is at version {pinned.version}, and version {since} was already folded")
    log = log_of(spark, pinned)
    _check_names(config, log.columns)
    appended, changed = _commits(log, pinned, since)
    parts = [_appended(spark, config, pinned, log, version) for version in appended]
    if changed:
        parts = [part.withColumn(KIND, F.lit("+I")) for part in parts]
        parts.append(_changed(spark, config, pinned, changed))
    if not parts:
        return None
    rows = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)
    return Gained(rows, "changes" if changed else "appends", with_kinds=bool(changed))


def _check_names(config: MergeEngineConfig, known: Sequence[str]) -> None:
    """Refuse columns that the configuration names and the source does not have.

    :raises DataError: with every such column.
    """
    asked = [("order_by", name) for name in config.order_by]
    beside = {"row_kind_column": config.row_kind_column, "clear_column": config.clear_column}
    asked += [(path, name) for path, name in beside.items() if name is not None]
    problems = [
        Problem(
            path,
            "unknown",
            f"the source has no column {name!r}",
            did_you_mean(name, known) or f"columns: {', '.join(known)}",
        )
        for path, name in asked
        if name.casefold() not in map(str.casefold, known)
    ]
    if problems:
        raise DataError.of(problems)


def _arrival(config: MergeEngineConfig, version: Column, file: Column, row: Column) -> Column:
    """Order rows by the columns that say so, then by commit, file and place in the file."""
    asked = [sql.column(name).alias(f"by{place}") for place, name in enumerate(config.order_by)]
    return F.struct(*asked, version.alias("version"), file.alias("file"), row.alias("row")).alias(ARRIVAL)


def _snapshot(config: MergeEngineConfig, rows: DataFrame) -> DataFrame:
    """Take all rows; files follow each other by their time, and rows by their place in the file."""
    meta = F.col("_metadata")
    # The number grows with the place in a block of a file, which one task reads from its start; only that
    # order counts, and it is the same in every try.
    place = F.monotonically_increasing_id()  # noqa: TID251 - compared inside a block only, see above
    file = F.concat(meta["file_path"], F.format_string("#%020d", meta["file_block_start"]))
    arrival = _arrival(config, F.unix_micros(meta["file_modification_time"]), file, place)
    return _renamed(config, rows.select("*", arrival))


def _renamed(config: MergeEngineConfig, rows: DataFrame) -> DataFrame:
    """Give the columns that say something about a record, and are not stored, their own names."""
    for name, mine in ((config.row_kind_column, KIND), (config.clear_column, CLEARS)):
        if name is not None:
            rows = rows.withColumnRenamed(_found(name, rows.columns), mine)
    return rows


def _found(name: str, columns: Sequence[str]) -> str:
    """Give a column's true name; one that is not there is refused where the columns are checked."""
    return next((column for column in columns if column.casefold() == name.casefold()), name)


def _commits(log: Log, pinned: Pinned, since: int) -> tuple[list[int], list[int]]:
    """Give the versions after ``since`` that appended rows, and those that changed rows."""
    history = log.history(since)
    if len(history) != (pinned.version or 0) - since:
        raise _untold(pinned, f"has forgotten commits after version {since}")
    kinds = {each.version: _kind(each.operation, each.parameters, each.metrics) for each in history}
    appended = [version for version, kind in kinds.items() if kind == "append"]
    return appended, [version for version, kind in kinds.items() if kind == "change"]


def _kind(operation: str, parameters: Mapping[str, Any], metrics: Mapping[str, Any]) -> str:
    """Tell what a commit did to the rows: ``append``, ``change`` or ``nothing``."""
    if operation in _MAINTENANCE:
        return "nothing"
    mode = parameters.get("mode") or parameters.get("outputMode") or ""
    if operation in _APPENDS and mode.lower() == "append":
        return "append"
    touched = [str(metrics.get(f"numTargetRows{what}", "?")) for what in ("Updated", "Deleted")]
    return "append" if operation == "MERGE" and touched == ["0", "0"] else "change"


def _appended(
    spark: SparkSession, config: MergeEngineConfig, pinned: Pinned, log: Log, version: int
) -> DataFrame:
    """Read the rows that a commit appended, from the files that it added."""
    files = log.added(version)
    if isinstance(log, SparkLog) and log.needs_table:
        table = tables.read(spark, Pinned(pinned.dataset, version))
        rows = table.where(F.col("_metadata.file_name").isin(*files.paths))
        place = F.monotonically_increasing_id()  # noqa: TID251 - as for a snapshot
    else:
        reader = spark.read.schema(files.schema).option("basePath", files.root)
        rows, place = reader.parquet(*files.paths.values()), F.col("_metadata.row_index")
    arrival = _arrival(config, F.lit(version).cast("bigint"), F.col("_metadata.file_path"), place)
    return _renamed(config, rows.select(*map(sql.column, files.schema.names), arrival))


def _changed(
    spark: SparkSession, config: MergeEngineConfig, pinned: Pinned, versions: Sequence[int]
) -> DataFrame:
    """Read what commits changed from the change data feed."""
    dataset = pinned.dataset
    _require_feed(spark, config, pinned, versions[0])
    feed = tables.feed(spark, dataset, versions[0], versions[-1])
    kinds: list[Any] = [F.lit(word) for pair in _FEED_KINDS.items() for word in pair]
    kind = F.create_map(*kinds)[F.col("_change_type")].alias(KIND)
    arrival = _arrival(config, F.col("_commit_version"), F.lit(""), F.lit(0).cast("bigint"))
    columns = [name for name in feed.columns if name not in _FEED_COLUMNS]
    chosen = feed.where(F.col("_commit_version").isin(*versions))
    return _renamed(config, chosen.select(*map(sql.column, columns), kind, arrival))


_FEED_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp")


def _require_feed(spark: SparkSession, config: MergeEngineConfig, pinned: Pinned, version: int) -> None:
    if config.row_kind_column is not None or config.table_options.row_kind_field is not None:
        raise _untold(pinned, f"changed rows in version {version}, and its rows have kinds of their own")
    if not tables.keeps_feed(spark, pinned.dataset):
        raise DataError.of(
            [
                Problem(
                    "source",
                    "untold",
                    f"{pinned.dataset.uri} changed rows in version {version} and keeps no change data feed",
                    "set its property delta.enableChangeDataFeed = true, and " + _WAY_OUT,
                )
            ]
        )


def _untold(pinned: Pinned, why: str) -> DataError:
    message = f"what {pinned.dataset.uri} has gained cannot be told: it {why}"
    return DataError.of([Problem("source", "untold", message, _WAY_OUT)])
