"""Compute the changes of an SCD2 load without natural key: each row is a version, identified by a hash."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime

from pyspark.sql import Column, DataFrame, functions as F

from airflow_merge_provider.core.merge_load.requirements import PREFIX
from airflow_merge_provider.core.merge_load.scd2 import HASH_COLUMN, Scd2Config
from airflow_merge_provider.jobs.merge_load.changes import (
    ACTION,
    DELETE,
    INSERT,
    NOTHING,
    UPDATE,
    Changes,
    add_action,
    complete_rows,
    map_values,
    union_rows,
)
from airflow_merge_provider.jobs.merge_load.columns import moment_column, refer_to_columns
from airflow_merge_provider.jobs.merge_load.scd2.history import LATE
from airflow_merge_provider.jobs.merge_load.snapshot_scope import INSIDE, mark_scope
from airflow_merge_provider.jobs.merge_load.staging import SMALL_LOAD_MAX_ROWS, TRACKED, StagedLoad, keep_rows
from airflow_merge_provider.jobs.merge_load.writing import CountedChanges, count_changes, insert_all
from airflow_merge_provider.jobs.spark.sql import quote_column

_VERSION_ACTIONS = {"opened": INSERT, LATE: NOTHING, "removed": DELETE, "closed": UPDATE, "reopened": UPDATE}
_LOADED_ROWS, _MISSING_KEYS = f"{PREFIX}loaded", f"{PREFIX}missing"


def find_changes(
    load: StagedLoad, stored: DataFrame | None, config: Scd2Config, boundary: datetime, held: ExitStack
) -> CountedChanges:
    """Close versions that the load no longer has, and open those that it has newly.

    Source: docs/semantics/merge_load.md, SCD2 without natural key.

    Versions that a load of the same boundary opened are removed instead of closed, and those that it closed
    are reopened. So a repeated load replaces its earlier changes, and no version is empty.
    """
    names = (*load.layout.names, *config.added_columns)
    if stored is None:
        # Without natural key, a flagged row is a version like any other.
        load = replace(load.check_rows(), flagged=0, warnings=load.warnings)
        return insert_all(load, _open_versions(load, config, boundary), names, "opened", held)
    loaded = load.rows.groupBy(quote_column(TRACKED).alias(HASH_COLUMN)).agg(
        F.count(F.lit(1)).alias(_LOADED_ROWS), F.count_if(load.has_null_key).alias(_MISSING_KEYS)
    )
    loaded = keep_rows(loaded, held)
    counted = loaded.agg(
        F.coalesce(F.sum(_LOADED_ROWS), F.lit(0)).alias("rows"),
        F.count(F.lit(1)).alias("versions"),
        F.coalesce(F.sum(_MISSING_KEYS), F.lit(0)).alias("missing"),
    ).collect()[0]
    load.require_keys(counted["missing"])
    version_columns = [*config.validity_column_names, HASH_COLUMN]
    relevant_versions = (
        mark_scope(stored, load.every, config)
        .where(_is_relevant(config, boundary))
        .select(*refer_to_columns(version_columns), INSIDE)
    )
    pairs = relevant_versions.join(loaded.drop(_MISSING_KEYS), HASH_COLUMN, "full_outer")
    actions = count_changes(Changes(_choose_actions(pairs, config, boundary), (), names), held)
    rows = actions.changes.rows
    new_load = replace(load, rows=load.rows.limit(0))
    if actions.inserts:
        new = rows.where(quote_column(ACTION) == INSERT).select(quote_column(HASH_COLUMN).alias(TRACKED))
        new_load = replace(load, rows=keep_rows(load.rows.join(new, TRACKED, "left_semi"), held)).check_rows()
    opened = add_action(_open_versions(new_load, config, boundary), INSERT, "opened")
    changed_rows = rows.where(quote_column(ACTION) != INSERT)
    if actions.updates_and_deletes and not actions.deletes:
        hinted_rows = (
            F.broadcast(changed_rows) if actions.updates_and_deletes < SMALL_LOAD_MAX_ROWS else changed_rows
        )
        changed_rows = complete_rows(hinted_rows, stored, [HASH_COLUMN, config.valid_from])
    parts = [opened, changed_rows]
    address = [stored.schema[HASH_COLUMN], stored.schema[config.valid_from]]
    changes = Changes(union_rows(parts), address, names, updated=(config.valid_to,))
    duplicates = counted["rows"] - counted["versions"]
    return replace(actions, changes=changes, loaded=counted["rows"], duplicates=duplicates)


def _open_versions(load: StagedLoad, config: Scd2Config, boundary: datetime) -> DataFrame:
    """Return the rows of the load as versions that are valid from the boundary."""
    return load.rows.select(
        *refer_to_columns(load.layout.names),
        moment_column(boundary).alias(config.valid_from),
        moment_column(config.active_record_timestamp).alias(config.valid_to),
        quote_column(TRACKED).alias(HASH_COLUMN),
    )


def _is_active(config: Scd2Config) -> Column:
    return quote_column(config.valid_to).eqNullSafe(moment_column(config.active_record_timestamp))


def _is_relevant(config: Scd2Config, boundary: datetime) -> Column:
    """Return the condition that leaves out versions that ended before the boundary: most of the history."""
    return _is_active(config) | (quote_column(config.valid_to) >= moment_column(boundary))


def _choose_actions(pairs: DataFrame, config: Scd2Config, boundary: datetime) -> DataFrame:
    """Choose the action for each stored version and for each loaded row without one."""
    now, active = moment_column(boundary), _is_active(config)
    stored, loaded = quote_column(config.valid_from).isNotNull(), quote_column(_LOADED_ROWS).isNotNull()
    late = (quote_column(config.valid_from) > now) | (~active & (quote_column(config.valid_to) > now))
    ended = stored & ~loaded & active & quote_column(INSIDE)
    change_kind = (
        F.when(~stored, "opened")
        .when(late & (quote_column(INSIDE) | loaded), LATE)
        .when(ended & (quote_column(config.valid_from) == now), "removed")
        .when(ended, "closed")
        .when(stored & loaded & ~active, "reopened")
    )
    changed_pairs = pairs.withColumn(_LOADED_ROWS, change_kind).where(quote_column(_LOADED_ROWS).isNotNull())
    end = F.when(~active, moment_column(config.active_record_timestamp)).otherwise(now)
    rows = changed_pairs.select(
        HASH_COLUMN, *refer_to_columns([config.valid_from]), end.alias(config.valid_to), _LOADED_ROWS
    )
    return add_action(
        rows, map_values(_VERSION_ACTIONS, quote_column(_LOADED_ROWS)), quote_column(_LOADED_ROWS)
    ).drop(_LOADED_ROWS)
