"""Compute the changes of an upsert, insert-only or cdc load: stored rows are matched by primary key."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime

from pyspark.sql import DataFrame, functions as F
from pyspark.sql.types import StructField

from airflow_merge_provider.core.merge_load.config import UpsertConfig
from airflow_merge_provider.core.merge_load.load import collect_columns
from airflow_merge_provider.core.merge_load.requirements import PREFIX
from airflow_merge_provider.jobs.merge_load.changes import (
    DELETE,
    INSERT,
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
from airflow_merge_provider.jobs.merge_load.staging import FLAGGED, StagedLoad
from airflow_merge_provider.jobs.merge_load.writing import CountedChanges, count_load, insert_all

_FOUND = f"{PREFIX}found"
_COUNTED_AS = {INSERT: "inserted", UPDATE: "updated", DELETE: "deleted"}


def find_changes(
    load: StagedLoad,
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
    records_deletions = bool(sequence) and config.has_flags and config.variant != "insert-only"
    newer_rows = load.rows
    current_load = load
    if records_deletions and stored is not None and (recorded_rows := sequences.read_rows()) is not None:
        current_rows, newer_rows = drop_outdated(load.rows, [recorded_rows], keys, sequence)
        current_load = replace(load, rows=current_rows)
    if stored is None:
        counted_changes = insert_all(load, load.target_rows, load.layout.names, "inserted", held)
    else:
        counted_changes = count_load(load, compare_rows(load, stored, config, current_load), held)
    if not records_deletions:
        return counted_changes
    deleted = list_sequences(newer_rows.where(F.col(FLAGGED)), keys, sequence, loaded_at)
    return replace(counted_changes, changes=replace(counted_changes.changes, sequences=deleted))


def compare_rows(
    load: StagedLoad, stored: DataFrame, config: UpsertConfig, current_load: StagedLoad
) -> Changes:
    """Compare the load with the stored rows.

    Source: docs/semantics/merge_load.md, Upsert, insert-only and cdc.

    A flagged row without a match is never inserted; insert-only never changes stored rows.

    :param current_load: the load without rows that are older than a deletion; their keys are still loaded.
    """
    keys = config.primary_key or ()
    names = load.layout.names
    address = load.layout.select_fields(keys)
    if config.variant == "insert-only":
        stored_keys = stored.join(load.collect_keys(keys), list(keys), "left_semi").select(
            *refer_to_columns(keys)
        )
        new_rows = load.target_rows.join(stored_keys, list(keys), "left_anti")
        return Changes(
            add_action(new_rows.select(*refer_to_columns(names)), INSERT, "inserted"), address, names
        )
    rows = [_inserts_and_updates(current_load, stored, config)]
    if config.variant == "cdc":
        absent = is_within_scope(stored, load.every, config).join(load.rows, list(keys), "left_anti")
        rows.append(add_action(absent.select(*refer_to_columns(keys)), DELETE, "deleted"))
    return Changes(union_rows(rows), address, names)


def _inserts_and_updates(load: StagedLoad, stored: DataFrame, config: UpsertConfig) -> DataFrame:
    keys = list(config.primary_key or ())
    compared = _pair_rows(load, config)
    # A semi join first reduces the stored rows to the load's keys; a small load is broadcast for it.
    matched_rows = stored.join(load.collect_keys(keys), keys, "left_semi")
    needed = collect_columns(keys, config.sequence_by, (field.name for field in compared))
    stored_columns = [name for name in needed if name in stored.columns]
    matched_rows = matched_rows.select(*refer_to_columns(stored_columns)).withColumn(_FOUND, F.lit(True))
    for name in load.layout.new:
        matched_rows = matched_rows.withColumn(name, F.lit(None).cast(load.rows.schema[name].dataType))
    pairs = load.rows.alias("s").join(matched_rows.alias("t"), is_same(keys, "s", "t"), "left")
    has_match, flagged = F.col(f"t.{_FOUND}").isNotNull(), F.col(f"s.{FLAGGED}")
    changed = is_differing(compared, "s", "t") if config.skip_unchanged_rows else F.lit(True)
    older = F.lit(False)
    if config.sequence_by is not None:
        # NULL is the lowest sequence value, on both sides.
        loaded_sequence, stored_sequence = (
            F.struct(*refer_to_columns(config.sequence_by, side)) for side in ("s", "t")
        )
        older = has_match & (loaded_sequence < stored_sequence)
    action = (
        F.when(older, F.lit(None))
        .when(has_match & flagged, F.lit(DELETE))
        .when(has_match & changed, F.lit(UPDATE))
        .when(~has_match & ~flagged, F.lit(INSERT))
    )
    pairs = pairs.select(*refer_to_columns(load.layout.names, "s"), action.alias(_FOUND))
    pairs = pairs.where(F.col(_FOUND).isNotNull())
    rows = add_action(pairs, F.col(_FOUND), map_values(_COUNTED_AS, F.col(_FOUND)))
    return rows.drop(_FOUND)


def _pair_rows(load: StagedLoad, config: UpsertConfig) -> list[StructField]:
    """Return the columns that are compared to detect changed rows."""
    if config.row_version_column_name is not None and config.skip_unchanged_rows:
        return load.layout.select_fields([config.row_version_column_name])
    excluded_columns = collect_columns(config.primary_key, config.hard_delete)
    return load.layout.select_fields(name for name in load.layout.names if name not in excluded_columns)
