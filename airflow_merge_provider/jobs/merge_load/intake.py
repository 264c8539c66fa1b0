"""What is loaded: the rows of the source that pass the filter, in the target's columns, one of each key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession, Window, functions as F
from pyspark.sql.types import BooleanType, StructType

from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_load.conditions import filled
from airflow_merge_provider.core.merge_load.load import LoadConfig
from airflow_merge_provider.jobs import tables
from airflow_merge_provider.jobs.merge_load.changes import PREFIX
from airflow_merge_provider.jobs.merge_load.columns import (
    Layout,
    aligned,
    content_hash,
    fulfilling,
    layout,
    require,
)
from airflow_merge_provider.jobs.sql import column
from airflow_merge_provider.jobs.tables import Pinned

CONTENT = f"{PREFIX}content"
TRACKED = f"{PREFIX}tracked"
FLAGGED = f"{PREFIX}flagged"
ARRIVAL = f"{PREFIX}arrival"
SOURCE = "staging_table"
_FILE_ORDER = ("file_modification_time", "file_path", "file_block_start")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a strategy needs to know of its rows.

    ``required`` columns must be in the source; ``keys`` hold no NULL; ``unique`` are the columns of which
    each value stays once, none when all rows stay; ``ranked`` says that the best of several rows counts,
    where else several different rows are an error; ``tracked`` picks the columns of a second hash.
    """

    required: Sequence[str] = ()
    keys: Sequence[str] = ()
    unique: Sequence[str] = ()
    ranked: bool = False
    tracked: Callable[[Sequence[str]], Sequence[str]] | None = None


@dataclass(frozen=True, slots=True)
class Intake:
    """The rows to load, held in memory as long as the run lasts.

    ``rows`` are one of each key, ``every`` are all that passed the filter: a row that does not count still
    says which keys and groups were loaded. Beside the target's columns they have ``CONTENT``, a hash, and
    ``FLAGGED``, whether they delete.
    """

    rows: DataFrame
    every: DataFrame
    layout: Layout
    loaded: int
    duplicates: int = 0
    said: tuple[str, ...] = ()

    @property
    def live(self) -> DataFrame:
        """The rows that do not delete."""
        return self.rows.where(~column(FLAGGED))

    @property
    def plain(self) -> DataFrame:
        """The rows that do not delete, with the target's columns alone."""
        return self.live.select(*map(column, self.layout.names))


@contextmanager
def take_in(
    spark: SparkSession,
    pinned: Pinned,
    config: LoadConfig,
    wanted: Wanted,
    stored: StructType | None,
    added: Sequence[str],
) -> Iterator[Intake]:
    """Read the source once, and give its rows as long as the block lasts.

    :raises DataError: when columns, keys or duplicates are not as they must be.
    """
    source = tables.read(spark, pinned)
    name = f"the source {pinned.dataset.id}"
    sort = (config.sort[0],) if config.sort and wanted.ranked else ()
    require(source, (*wanted.required, *sort), name)
    reserved = [each for each in source.columns if each.startswith(PREFIX)]
    if reserved:
        raise DataError.of([Problem(reserved[0], "column", f"{name} has a reserved column", "rename it")])
    if config.source_filter is not None:
        text = filled(config.source_filter, table=SOURCE, staging_table=SOURCE)
        source = fulfilling(source.alias(SOURCE), text, "source_filter")
    columns = layout(source.schema, stored, added, config.schema_evolution, pinned.dataset.id)
    held = source.select(
        *aligned(source, columns),
        _flagged(source, config.hard_delete).alias(FLAGGED),
        *([_arrival(source).alias(ARRIVAL)] if wanted.ranked else []),
    )
    hashes = {CONTENT: content_hash(columns.fields)}
    if wanted.tracked is not None:
        hashes[TRACKED] = content_hash(columns.of(wanted.tracked(columns.names)))
    held = held.withColumns(hashes).persist()
    try:
        said = _said(source, config, name)
        yield _checked(Intake(held, held, columns, 0, said=said), wanted, config, name)
    finally:
        held.unpersist()


def _checked(taken: Intake, wanted: Wanted, config: LoadConfig, name: str) -> Intake:
    """Count rows and keys in one job, and leave one row of each key."""
    keys = [column(key) for key in wanted.keys]
    unique = [column(key) for key in wanted.unique]
    missing = [key.isNull() for key in keys] or [F.lit(False)]
    first = missing[0]
    for more in missing[1:]:
        first = first | more
    groups = taken.rows.groupBy(*unique).agg(
        F.count("*").alias("n"),
        F.count_if(first).alias("missing"),
        (F.min(CONTENT) != F.max(CONTENT)).alias("differ"),
    )
    counted = groups.select(
        F.coalesce(F.sum("n"), F.lit(0)).alias("rows"),
        F.coalesce(F.sum("missing"), F.lit(0)).alias("missing"),
        F.count_if(F.col("n") > 1).alias("twice"),
        F.count_if(F.col("differ")).alias("differ"),
        F.coalesce(F.sum(F.col("n") - 1), F.lit(0)).alias("more"),
    ).collect()[0]
    problems = []
    if counted["missing"]:
        named = ", ".join(wanted.keys)
        hint = "filter them out with source_filter, or repair the step that writes them"
        problems.append(
            Problem(named, "null-key", f"{name} has {counted['missing']} rows with a NULL in {named}", hint)
        )
    if wanted.unique and not wanted.ranked and counted["differ"]:
        named = ", ".join(wanted.unique)
        message = f"{name} has {counted['differ']} values of {named} with several different rows"
        hint = 'say which one counts with dedup_sort={"column": "desc"}, or make the rows unique upstream'
        problems.append(Problem(named, "duplicates", message, hint))
    if problems:
        raise DataError.of(problems)
    loaded = int(counted["rows"])
    if not wanted.unique or not counted["twice"]:
        return replace(taken, loaded=loaded)
    return replace(
        taken, rows=_one_each(taken.rows, wanted, config), loaded=loaded, duplicates=int(counted["more"])
    )


def _one_each(rows: DataFrame, wanted: Wanted, config: LoadConfig) -> DataFrame:
    """Leave one row of each key: the first by the sort column, then by arrival."""
    if not wanted.ranked:
        return rows.dropDuplicates(list(wanted.unique))
    order = [F.col(ARRIVAL).asc(), F.col(CONTENT).asc()]
    if config.sort is not None:
        by, highest = column(config.sort[0]), config.sort[1]
        order.insert(0, by.desc_nulls_last() if highest else by.asc_nulls_last())
    place = f"{PREFIX}place"
    ranked = F.row_number().over(Window.partitionBy(*map(column, wanted.unique)).orderBy(*order))
    return rows.withColumn(place, ranked).where(F.col(place) == 1).drop(place)


def _said(source: DataFrame, config: LoadConfig, name: str) -> tuple[str, ...]:
    flag = config.hard_delete
    if flag is None or flag in source.columns:
        return ()
    return (f"hard_delete: {name} has no column {flag!r}, so no row is flagged",)


def _flagged(source: DataFrame, flag: str | None) -> Column:
    """Tell which rows delete; a flag that the source does not have is one that was never set."""
    if flag is None or flag not in source.columns:
        return F.lit(False)
    if isinstance(source.schema[flag].dataType, BooleanType):
        return F.coalesce(column(flag), F.lit(False))
    return column(flag).isNotNull()


def _arrival(source: DataFrame) -> Column:
    """Say in which order rows came: files by their time, rows as they lie in their file.

    The number of a row depends on how Spark splits files into tasks, the order inside one block of one file
    does not; so the same source gives the same order in every try.
    """
    number = F.monotonically_increasing_id()  # noqa: TID251 - compared inside one block of one file only
    order = [F.col(f"_metadata.{name}") for name in _FILE_ORDER]
    try:
        source.select(*order).schema  # noqa: B018 - asks whether the rows come from files
    except AnalysisException:
        return F.lit(0)
    return F.struct(*order, number)
