"""What an SCD2 load without natural key changes: rows are versions of themselves, told apart by a hash."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from pyspark.sql import Column, DataFrame, functions as F

from airflow_merge_provider.core.merge_load.load import columns_of
from airflow_merge_provider.core.merge_load.scd2 import HASH_COLUMN, Scd2Config
from airflow_merge_provider.jobs.merge_load.area import INSIDE, marked
from airflow_merge_provider.jobs.merge_load.changes import (
    ACTION,
    DELETE,
    INSERT,
    NOTHING,
    PREFIX,
    UPDATE,
    Changes,
    acting,
    mapped,
    union,
)
from airflow_merge_provider.jobs.merge_load.columns import moment_column, refer
from airflow_merge_provider.jobs.merge_load.intake import CONTENT, TRACKED, Intake, Wanted
from airflow_merge_provider.jobs.sql import column

LATE = "late"
_ACTIONS = {"opened": INSERT, LATE: NOTHING, "removed": DELETE, "closed": UPDATE, "reopened": UPDATE}
_LOADED = f"{PREFIX}loaded"


def wanted(config: Scd2Config) -> Wanted:
    """Say what the load needs of its rows: each version once."""
    groups = None if config.destination_scope is not None else config.merge_key
    keys = columns_of(groups, config.row_version_column_name)
    version = config.row_version_column_name
    return Wanted(
        required=keys,
        keys=keys,
        unique=columns_of(version or CONTENT),
        tracked=lambda names: names if version is None else (version,),
    )


def changes(taken: Intake, stored: DataFrame | None, config: Scd2Config, boundary: datetime) -> Changes:
    """Close what the load does not have any more, and open what it has anew. Source: merge_load spec §6.

    What the same boundary had opened is removed instead of closed, and what it had closed is opened again:
    so a repeated load replaces what it did before, and no version is empty.
    """
    new = _opened(taken, config, boundary)
    names = (*taken.layout.names, *config.added_columns)
    if stored is None:
        return Changes(acting(new, INSERT, "opened"), (), names)
    thin = [*config.validity_column_names, HASH_COLUMN]
    seen = marked(stored, taken.every, config).where(_matters(config, boundary)).select(*refer(thin), INSIDE)
    loaded = new.select(HASH_COLUMN, F.lit(True).alias(_LOADED))
    actions = _actions(seen.join(loaded, HASH_COLUMN, "full_outer"), config, boundary).persist()
    opened = new.join(actions.where(column(ACTION) == INSERT).select(HASH_COLUMN), HASH_COLUMN)
    rows = [acting(opened, INSERT, "opened"), actions.where(column(ACTION) != INSERT)]
    address = [stored.schema[HASH_COLUMN], stored.schema[config.valid_from]]
    found = Changes(union(rows), address, names, updated=(config.valid_to,))
    return replace(found, held=(actions,))


def _opened(taken: Intake, config: Scd2Config, boundary: datetime) -> DataFrame:
    """Give the rows of the load as versions that begin now."""
    return taken.rows.select(
        *refer(taken.layout.names),
        moment_column(boundary).alias(config.valid_from),
        moment_column(config.active_record_timestamp).alias(config.valid_to),
        column(TRACKED).alias(HASH_COLUMN),
    )


def _active(config: Scd2Config) -> Column:
    return column(config.valid_to).eqNullSafe(moment_column(config.active_record_timestamp))


def _matters(config: Scd2Config, boundary: datetime) -> Column:
    """Leave out what was over before the boundary: most of the history."""
    return _active(config) | (column(config.valid_to) >= moment_column(boundary))


def _actions(pairs: DataFrame, config: Scd2Config, boundary: datetime) -> DataFrame:
    """Decide what happens to each stored version and to each loaded row without one."""
    now, active = moment_column(boundary), _active(config)
    stored, loaded = column(config.valid_from).isNotNull(), column(_LOADED).isNotNull()
    late = (column(config.valid_from) > now) | (~active & (column(config.valid_to) > now))
    ended = stored & ~loaded & active & column(INSIDE)
    said = (
        F.when(~stored, "opened")
        .when(late & (column(INSIDE) | loaded), LATE)
        .when(ended & (column(config.valid_from) == now), "removed")
        .when(ended, "closed")
        .when(stored & loaded & ~active, "reopened")
    )
    decided = pairs.withColumn(_LOADED, said).where(column(_LOADED).isNotNull())
    end = F.when(~active, moment_column(config.active_record_timestamp)).otherwise(now)
    rows = decided.select(HASH_COLUMN, *refer([config.valid_from]), end.alias(config.valid_to), _LOADED)
    return acting(rows, mapped(_ACTIONS, column(_LOADED)), column(_LOADED)).drop(_LOADED)
