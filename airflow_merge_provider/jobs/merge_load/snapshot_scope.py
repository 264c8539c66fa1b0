"""Determine where missing rows count as absent: in the whole table, in some groups, or in a scope."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame, functions as F

from airflow_merge_provider.core.merge_load.load import fill_tables
from airflow_merge_provider.core.merge_load.requirements import PREFIX
from airflow_merge_provider.jobs.merge_load.columns import (
    TargetColumns,
    content_hash,
    filter_rows,
    refer_to_columns,
)
from airflow_merge_provider.jobs.spark.sql import quote_column

INSIDE, AREA = f"{PREFIX}inside", f"{PREFIX}area"
_TARGET = "target_table"
_LOADED_VIEW = "merge_load_staging"
EVERYWHERE = ""


class ScopedConfig(Protocol):
    """A configuration that may limit where missing rows count as absent."""

    @property
    def merge_key(self) -> tuple[str, ...] | None: ...

    @property
    def destination_scope(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class ScopedTimes:
    """The merge key or the scope of a snapshot, or neither."""

    merge_key: tuple[str, ...] | None
    destination_scope: str | None


def mark_scope(stored: DataFrame, loaded: DataFrame, config: ScopedConfig) -> DataFrame:
    """Return stored rows marked as ``INSIDE`` or not; a scope takes precedence over a merge key."""
    if config.destination_scope is not None:
        return _mark_rows(stored, loaded, config.destination_scope)
    if config.merge_key is not None:
        groups = loaded.select(*refer_to_columns(config.merge_key)).distinct().withColumn(INSIDE, F.lit(True))
        marked_rows = stored.join(groups, list(config.merge_key), "left")
        return marked_rows.withColumn(INSIDE, F.coalesce(quote_column(INSIDE), F.lit(False)))
    return stored.withColumn(INSIDE, F.lit(True))


def name_areas(rows: DataFrame, layout: TargetColumns, config: ScopedConfig) -> DataFrame:
    """Return rows with their ``AREA``: the whole table, the group or the scope; NULL outside the scope."""
    if config.destination_scope is not None:
        inside = F.when(quote_column(INSIDE), F.lit(EVERYWHERE)).alias(AREA)
        return _mark_rows(rows, rows, config.destination_scope).select(
            *refer_to_columns(rows.columns), inside
        )
    area = (
        F.lit(EVERYWHERE)
        if config.merge_key is None
        else content_hash(layout.select_fields(config.merge_key))
    )
    return rows.withColumn(AREA, area)


def is_within_scope(stored: DataFrame, loaded: DataFrame, config: ScopedConfig) -> DataFrame:
    """Return the stored rows for which missing rows count as absent."""
    return mark_scope(stored, loaded, config).where(quote_column(INSIDE)).drop(INSIDE)


def filter_scope(stored: DataFrame, loaded: DataFrame, condition: str) -> DataFrame:
    """Return the stored rows that satisfy a user's condition."""
    loaded.createOrReplaceTempView(_LOADED_VIEW)
    return filter_rows(stored.alias(_TARGET), _to_text(condition), "destination_scope")


def _mark_rows(stored: DataFrame, loaded: DataFrame, condition: str) -> DataFrame:
    """Mark the rows that satisfy a condition; one that also reads the load can only be used as a filter."""
    inside_rows = filter_scope(stored, loaded, condition)
    if "{staging_table}" not in condition:
        holds = F.coalesce(F.expr(_to_text(condition)), F.lit(False))
        return stored.alias(_TARGET).withColumn(INSIDE, holds)
    outside_rows = filter_scope(stored, loaded, f"NOT coalesce({condition}, false)")
    parts = ((inside_rows, True), (outside_rows, False))
    marked_inside, marked_outside = (rows.withColumn(INSIDE, F.lit(is_inside)) for rows, is_inside in parts)
    return marked_inside.unionByName(marked_outside)


def _to_text(condition: str) -> str:
    return fill_tables(condition, table=_TARGET, staging_table=_LOADED_VIEW)
