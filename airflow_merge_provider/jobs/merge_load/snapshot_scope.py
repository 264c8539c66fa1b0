"""Where rows that the load does not have count as absent: everywhere, in some groups, or inside a scope."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame, functions as F

from airflow_merge_provider.core.merge_load.conditions import fill_tables
from airflow_merge_provider.jobs.merge_load.changes import PREFIX
from airflow_merge_provider.jobs.merge_load.columns import (
    TargetColumns,
    content_hash,
    filter_rows,
    refer_to_columns,
)
from airflow_merge_provider.jobs.spark.sql import quote_column

INSIDE, AREA = f"{PREFIX}inside", f"{PREFIX}area"
_TARGET = "target_table"
_LOADED = "merge_load_staging"
EVERYWHERE = ""


class ScopedConfig(Protocol):
    """A configuration that may limit the area."""

    @property
    def merge_key(self) -> tuple[str, ...] | None: ...

    @property
    def destination_scope(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class ScopedTimes:
    """Groups, a scope, or neither."""

    merge_key: tuple[str, ...] | None
    destination_scope: str | None


def mark_scope(stored: DataFrame, loaded: DataFrame, config: ScopedConfig) -> DataFrame:
    """Return stored rows marked as ``INSIDE`` or not; a scope has precedence over groups."""
    if config.destination_scope is not None:
        return _mark_by(stored, loaded, config.destination_scope)
    if config.merge_key is not None:
        groups = loaded.select(*refer_to_columns(config.merge_key)).distinct().withColumn(INSIDE, F.lit(True))
        found = stored.join(groups, list(config.merge_key), "left")
        return found.withColumn(INSIDE, F.coalesce(quote_column(INSIDE), F.lit(False)))
    return stored.withColumn(INSIDE, F.lit(True))


def name_areas(rows: DataFrame, layout: TargetColumns, config: ScopedConfig) -> DataFrame:
    """Return rows with their ``AREA``: the whole table, the group, the scope, or NULL."""
    if config.destination_scope is not None:
        inside = F.when(quote_column(INSIDE), F.lit(EVERYWHERE)).alias(AREA)
        return _mark_by(rows, rows, config.destination_scope).select(*refer_to_columns(rows.columns), inside)
    area = (
        F.lit(EVERYWHERE)
        if config.merge_key is None
        else content_hash(layout.select_fields(config.merge_key))
    )
    return rows.withColumn(AREA, area)


def is_within_scope(stored: DataFrame, loaded: DataFrame, config: ScopedConfig) -> DataFrame:
    """Return the stored rows of the area."""
    return mark_scope(stored, loaded, config).where(quote_column(INSIDE)).drop(INSIDE)


def filter_scope(stored: DataFrame, loaded: DataFrame, condition: str) -> DataFrame:
    """Return the stored rows that fulfil a condition of the user's."""
    loaded.createOrReplaceTempView(_LOADED)
    return filter_rows(stored.alias(_TARGET), _to_text(condition), "destination_scope")


def _mark_by(stored: DataFrame, loaded: DataFrame, condition: str) -> DataFrame:
    """Mark the rows that fulfil a condition; one that looks at the load too can only filter them."""
    inside = filter_scope(stored, loaded, condition)
    if "{staging_table}" not in condition:
        holds = F.coalesce(F.expr(_to_text(condition)), F.lit(False))
        return stored.alias(_TARGET).withColumn(INSIDE, holds)
    rest = filter_scope(stored, loaded, f"NOT coalesce({condition}, false)")
    marks = ((inside, True), (rest, False))
    one, other = (rows.withColumn(INSIDE, F.lit(mark)) for rows, mark in marks)
    return one.unionByName(other)


def _to_text(condition: str) -> str:
    return fill_tables(condition, table=_TARGET, staging_table=_LOADED)
