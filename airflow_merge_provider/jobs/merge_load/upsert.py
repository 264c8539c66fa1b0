"""Compute the changes of an upsert, insert-only or cdc load: stored rows are matched by primary key."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime

from pyspark.sql import DataFrame, functions as F
from pyspark.sql.types import StructField

from airflow_merge_provider.core.merge_load.keyed_loads import UpsertConfig
from airflow_merge_provider.core.merge_load.load import columns_of
from airflow_merge_provider.jobs.merge_load.changes import (
    DELETE,
    INSERT,
    PREFIX,
    UPDATE,
    Changes,
    add_action,
    is_differing,
    is_same,
    map_values,
    union_rows,
)
from airflow_merge_provider.jobs.merge_load.columns import refer_to_columns
from airflow_merge_provider.jobs.merge_load.sequences import Sequences, drop_outdated, list_sequences
from airflow_merge_provider.jobs.merge_load.snapshot_scope import is_within_scope
from airflow_merge_provider.jobs.merge_load.staging import FLAGGED, StagedLoad, StagingRequirements
from airflow_merge_provider.jobs.merge_load.writing import CountedChanges, count_load, insert_all
from airflow_merge_provider.jobs.spark.expressions import cast_to

_FOUND = f"{PREFIX}found"
_COUNTED_AS = {INSERT: "inserted", UPDATE: "updated", DELETE: "deleted"}


def build_requirements(config: UpsertConfig) -> StagingRequirements:
    """Return the staging requirements: each key once, and never NULL."""
    keys = config.primary_key or ()
    groups = config.merge_key if config.variant == "cdc" and config.destination_scope is None else None
    version = config.row_version_column_name if config.skip_unchanged_rows else None
    return StagingRequirements(
        required=columns_of(keys, groups, version),
        keys=columns_of(keys, groups),
        unique=keys,
        ranked=config.dedup_sort is not None,
        sequence=config.sequence_by or (),
    )


def find_changes(
    taken: StagedLoad,
    stored: DataFrame | None,
    config: UpsertConfig,
    held: ExitStack,
    sequences: Sequences,
    loaded_at: datetime,
) -> CountedChanges:
    """Compare the load with the stored rows, and count the differences.

    With a sequence, deletions are recorded: an older row that arrives later does not insert its key again.
    """
    keys, sequence = config.primary_key or (), config.sequence_by or ()
    remembers = bool(sequence) and config.hard_delete is not None and config.variant != "insert-only"
    above = taken.rows
    counting = taken
    if remembers and stored is not None and (known := sequences.read_rows()) is not None:
        kept, above = drop_outdated(taken.rows, [known], keys, sequence)
        counting = replace(taken, rows=kept)
    if stored is None:
        found = insert_all(taken, taken.target_rows, taken.layout.names, "inserted", held)
    else:
        found = count_load(taken, compare_rows(taken, stored, config, counting), held)
    if not remembers:
        return found
    deleted = list_sequences(above.where(F.col(FLAGGED)), keys, sequence, loaded_at)
    return replace(found, changes=replace(found.changes, sequences=deleted))


def compare_rows(taken: StagedLoad, stored: DataFrame, config: UpsertConfig, counting: StagedLoad) -> Changes:
    """Compare the load with the stored rows.

    Source: docs/semantics/merge_load.md, Upsert, insert-only and cdc.

    A flagged row without a match is never inserted; insert-only never changes stored rows.

    :param counting: the load without rows that are older than a deletion; they say that their key is there.
    """
    keys = config.primary_key or ()
    names = taken.layout.names
    address = taken.layout.select_fields(keys)
    if config.variant == "insert-only":
        met = stored.join(taken.collect_keys(keys), list(keys), "left_semi").select(*refer_to_columns(keys))
        new = taken.target_rows.join(met, list(keys), "left_anti")
        return Changes(add_action(new.select(*refer_to_columns(names)), INSERT, "inserted"), address, names)
    rows = [_inserts_and_updates(counting, stored, config)]
    if config.variant == "cdc":
        absent = is_within_scope(stored, taken.every, config).join(taken.rows, list(keys), "left_anti")
        rows.append(add_action(absent.select(*refer_to_columns(keys)), DELETE, "deleted"))
    return Changes(union_rows(rows), address, names)


def _inserts_and_updates(taken: StagedLoad, stored: DataFrame, config: UpsertConfig) -> DataFrame:
    keys = list(config.primary_key or ())
    compared = _pair_rows(taken, config)
    # A semi join first reduces the stored rows to the load's keys; a small load is broadcast for it.
    met = stored.join(taken.collect_keys(keys), keys, "left_semi")
    needed = columns_of(keys, config.sequence_by, (field.name for field in compared))
    held = [name for name in needed if name in stored.columns]
    met = met.select(*refer_to_columns(held)).withColumn(_FOUND, F.lit(True))
    for name in taken.layout.new:
        met = met.withColumn(name, cast_to(F.lit(None), taken.rows.schema[name].dataType))
    pairs = taken.rows.alias("s").join(met.alias("t"), is_same(keys, "s", "t"), "left")
    found, flagged = F.col(f"t.{_FOUND}").isNotNull(), F.col(f"s.{FLAGGED}")
    changed = is_differing(compared, "s", "t") if config.skip_unchanged_rows else F.lit(True)
    older = F.lit(False)
    if config.sequence_by is not None:
        # NULL is the lowest sequence value, on both sides.
        loaded, known = (F.struct(*refer_to_columns(config.sequence_by, side)) for side in ("s", "t"))
        older = found & (loaded < known)
    action = (
        F.when(older, F.lit(None))
        .when(found & flagged, F.lit(DELETE))
        .when(found & changed, F.lit(UPDATE))
        .when(~found & ~flagged, F.lit(INSERT))
    )
    pairs = pairs.select(*refer_to_columns(taken.layout.names, "s"), action.alias(_FOUND))
    pairs = pairs.where(F.col(_FOUND).isNotNull())
    rows = add_action(pairs, F.col(_FOUND), map_values(_COUNTED_AS, F.col(_FOUND)))
    return rows.drop(_FOUND)


def _pair_rows(taken: StagedLoad, config: UpsertConfig) -> list[StructField]:
    """Return the columns that are compared to detect changed rows."""
    if config.row_version_column_name is not None and config.skip_unchanged_rows:
        return taken.layout.select_fields([config.row_version_column_name])
    left_out = columns_of(config.primary_key, config.hard_delete)
    return taken.layout.select_fields(name for name in taken.layout.names if name not in left_out)
