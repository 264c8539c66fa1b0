"""What an upsert, insert-only or cdc load changes: stored rows are found by their primary key."""

from __future__ import annotations

from pyspark.sql import DataFrame, functions as F
from pyspark.sql.types import StructField

from airflow_merge_provider.core.merge_load.keyed import UpsertConfig
from airflow_merge_provider.core.merge_load.load import columns_of
from airflow_merge_provider.jobs.merge_load.area import within
from airflow_merge_provider.jobs.merge_load.changes import (
    DELETE,
    INSERT,
    PREFIX,
    UPDATE,
    Changes,
    acting,
    differing,
    mapped,
    same,
    union,
)
from airflow_merge_provider.jobs.merge_load.columns import refer
from airflow_merge_provider.jobs.merge_load.intake import FLAGGED, Intake, Wanted

_FOUND = f"{PREFIX}found"
_COUNTED_AS = {INSERT: "inserted", UPDATE: "updated", DELETE: "deleted"}


def wanted(config: UpsertConfig) -> Wanted:
    """Say what the load needs of its rows: each key once, and never NULL."""
    keys = config.primary_key or ()
    groups = config.merge_key if config.variant == "cdc" and config.destination_scope is None else None
    version = config.row_version_column_name if config.skip_unchanged_rows else None
    return Wanted(
        required=columns_of(keys, groups, version),
        keys=columns_of(keys, groups),
        unique=keys,
        ranked=config.dedup_sort is not None,
    )


def changes(taken: Intake, stored: DataFrame | None, config: UpsertConfig) -> Changes:
    """Compare the load with what is stored. Source: merge_load spec §5.

    A flagged row without a match is never inserted; insert-only never touches what is stored.
    """
    keys = config.primary_key or ()
    names = taken.layout.names
    if stored is None:
        return Changes(acting(taken.plain, INSERT, "inserted"), (), names)
    address = taken.layout.of(keys)
    if config.variant == "insert-only":
        new = taken.plain.join(stored, list(keys), "left_anti")
        return Changes(acting(new.select(*refer(names)), INSERT, "inserted"), address, names)
    rows = [_inserts_and_updates(taken, stored, config)]
    if config.variant == "cdc":
        absent = within(stored, taken.every, config).join(taken.rows, list(keys), "left_anti")
        rows.append(acting(absent.select(*refer(keys)), DELETE, "deleted"))
    return Changes(union(rows), address, names)


def _inserts_and_updates(taken: Intake, stored: DataFrame, config: UpsertConfig) -> DataFrame:
    keys = list(config.primary_key or ())
    compared = _compared(taken, config)
    # The stored side is cut to the load's keys first: that join has a small right side, which is broadcast.
    met = stored.join(taken.rows.select(*refer(keys)), keys, "left_semi")
    held = columns_of(keys, [field.name for field in compared if field.name in stored.columns])
    met = met.select(*refer(held)).withColumn(_FOUND, F.lit(True))
    for name in taken.layout.new:
        met = met.withColumn(name, F.lit(None).cast(taken.rows.schema[name].dataType))
    pairs = taken.rows.alias("s").join(met.alias("t"), same(keys, "s", "t"), "left")
    found, flagged = F.col(f"t.{_FOUND}").isNotNull(), F.col(f"s.{FLAGGED}")
    changed = differing(compared, "s", "t") if config.skip_unchanged_rows else F.lit(True)
    action = (
        F.when(found & flagged, F.lit(DELETE))
        .when(found & changed, F.lit(UPDATE))
        .when(~found & ~flagged, F.lit(INSERT))
    )
    pairs = pairs.select(*refer(taken.layout.names, "s"), action.alias(_FOUND))
    pairs = pairs.where(F.col(_FOUND).isNotNull())
    rows = acting(pairs, F.col(_FOUND), mapped(_COUNTED_AS, F.col(_FOUND)))
    return rows.drop(_FOUND)


def _compared(taken: Intake, config: UpsertConfig) -> list[StructField]:
    """Give the columns whose difference makes a row a changed one."""
    if config.row_version_column_name is not None and config.skip_unchanged_rows:
        return taken.layout.of([config.row_version_column_name])
    left_out = columns_of(config.primary_key, config.hard_delete)
    return taken.layout.of(name for name in taken.layout.names if name not in left_out)
