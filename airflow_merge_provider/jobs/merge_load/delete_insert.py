"""Compute the changes of a delete-insert load: stored rows of loaded keys, groups or scope are replaced."""

from __future__ import annotations

from contextlib import ExitStack

from pyspark.sql import DataFrame, functions as F

from airflow_merge_provider.core.merge_load.config import DeleteInsertConfig
from airflow_merge_provider.core.merge_load.requirements import CONTENT, PREFIX
from airflow_merge_provider.jobs.merge_load.changes import (
    DELETE,
    INSERT,
    MARKS,
    WEIGHT,
    Changes,
    add_action,
    union_rows,
)
from airflow_merge_provider.jobs.merge_load.columns import content_hash, refer_to_columns
from airflow_merge_provider.jobs.merge_load.snapshot_scope import filter_scope
from airflow_merge_provider.jobs.merge_load.staging import SMALL_LOAD_MAX_ROWS, StagedLoad
from airflow_merge_provider.jobs.merge_load.writing import CountedChanges, count_load, insert_all
from airflow_merge_provider.jobs.spark.expressions import add_columns
from airflow_merge_provider.jobs.spark.sql import quote_column

_IS_STORED, _IS_LOADED = f"{PREFIX}stored", f"{PREFIX}loaded"


def find_changes(
    load: StagedLoad, stored: DataFrame | None, config: DeleteInsertConfig, held: ExitStack
) -> CountedChanges:
    """Compare the load with the stored rows that it replaces, and count the differences."""
    if stored is None or config.is_append:
        return insert_all(load, load.target_rows, load.layout.names, "inserted", held)
    return count_load(load, compare_rows(load, stored, config), held)


def compare_rows(load: StagedLoad, stored: DataFrame, config: DeleteInsertConfig) -> Changes:
    """Compare the load with the stored rows that it replaces.

    Source: docs/semantics/merge_load.md, Delete-insert.

    Rows that are equally often on both sides do not change.
    """
    replaced_rows = _replace_groups(_with_new_columns(stored, load), load, config)
    replaced_rows = replaced_rows.withColumn(CONTENT, content_hash(load.layout.fields))
    if config.merge_key is None and config.destination_scope is None:
        return _pair_by_key(load, replaced_rows, config)
    return _pair_by_content(load, replaced_rows)


def _with_new_columns(stored: DataFrame, load: StagedLoad) -> DataFrame:
    new_columns = {name: F.lit(None).cast(load.rows.schema[name].dataType) for name in load.layout.new}
    return add_columns(stored, new_columns)


def _replace_groups(stored: DataFrame, load: StagedLoad, config: DeleteInsertConfig) -> DataFrame:
    """Return stored rows in the load's scope or with one of its keys; flagged rows count as loaded."""
    if config.destination_scope is not None:
        return filter_scope(stored, load.every, config.destination_scope)
    matched_rows, unmatched_rows = [], stored
    for keys in (config.primary_key, config.merge_key):
        if keys is not None:
            loaded = load.every.select(*refer_to_columns(keys))
            # A group has many rows, so its merge keys are deduplicated; a primary key has one row.
            loaded = loaded.distinct() if keys == config.merge_key else loaded
            loaded = F.broadcast(loaded) if load.loaded < SMALL_LOAD_MAX_ROWS else loaded
            matched_rows.append(unmatched_rows.join(loaded, list(keys), "left_semi"))
            unmatched_rows = unmatched_rows.join(loaded, list(keys), "left_anti")
    return union_rows(matched_rows)


def _pair_by_key(load: StagedLoad, replaced_rows: DataFrame, config: DeleteInsertConfig) -> Changes:
    """Match stored rows by primary key: a key whose rows differ is deleted and inserted."""
    keys = list(config.primary_key or ())
    sides = union_rows(
        [
            replaced_rows.select(*refer_to_columns(keys), quote_column(CONTENT).alias(_IS_STORED)),
            load.live.select(*refer_to_columns(keys), quote_column(CONTENT).alias(_IS_LOADED)),
        ]
    )
    contents = [F.sort_array(F.collect_list(side)).alias(side) for side in (_IS_STORED, _IS_LOADED)]
    pairs = (
        sides.groupBy(*refer_to_columns(keys))
        .agg(*contents)
        .where(quote_column(_IS_STORED) != quote_column(_IS_LOADED))
    )
    pairs = pairs.select(
        *refer_to_columns(keys), *[(F.size(side) > 0).alias(side) for side in (_IS_STORED, _IS_LOADED)]
    )
    counted = F.when(~quote_column(_IS_LOADED), F.lit("deleted"))
    deleted = add_action(pairs.where(_IS_STORED), DELETE, counted)
    replaced = F.when(quote_column(_IS_STORED), F.lit("updated")).otherwise(F.lit("inserted"))
    hinted_pairs = F.broadcast(pairs) if load.loaded < SMALL_LOAD_MAX_ROWS else pairs
    inserted = add_action(load.live.join(hinted_pairs.where(_IS_LOADED), keys), INSERT, replaced)
    inserted = inserted.select(*refer_to_columns((*load.layout.names, *MARKS)))
    deleted = deleted.select(*refer_to_columns((*keys, *MARKS)))
    address = load.layout.select_fields(keys)
    return Changes(union_rows([inserted, deleted]), address, load.layout.names, replaces_rows=True)


def _pair_by_content(load: StagedLoad, replaced_rows: DataFrame) -> Changes:
    """Match stored rows by all their columns, because rows of a group have no other identity."""
    names = load.layout.names
    sides = union_rows(
        [
            replaced_rows.select(CONTENT, F.lit(1).alias(_IS_STORED), F.lit(0).alias(_IS_LOADED)),
            load.live.select(CONTENT, F.lit(0).alias(_IS_STORED), F.lit(1).alias(_IS_LOADED)),
        ]
    )
    counts = sides.groupBy(CONTENT).agg(
        F.sum(_IS_STORED).alias(_IS_STORED), F.sum(_IS_LOADED).alias(_IS_LOADED)
    )
    counts = counts.where(quote_column(_IS_STORED) != quote_column(_IS_LOADED))
    deleted = replaced_rows.dropDuplicates([CONTENT]).join(
        counts.where(quote_column(_IS_STORED) > 0), CONTENT
    )
    deleted = add_action(deleted, DELETE, "deleted").withColumn(WEIGHT, quote_column(_IS_STORED))
    inserted = add_action(
        load.live.join(counts.where(quote_column(_IS_LOADED) > 0), CONTENT), INSERT, "inserted"
    )
    rows = union_rows([frame.select(*refer_to_columns((*names, *MARKS))) for frame in (inserted, deleted)])
    # Stored rows do not have the new columns yet.
    address = [field for field in load.layout.fields if field.name not in load.layout.new]
    return Changes(rows, address, names, nullable=True)
