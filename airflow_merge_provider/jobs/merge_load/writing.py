"""Count the changes of a load, and write them to the target in one commit, or none if there are none."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession, functions as F

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.merge_load.columns import SHAPE
from airflow_merge_provider.core.merge_load.decision import JOB
from airflow_merge_provider.core.run.previous_run import PreviousRun
from airflow_merge_provider.core.source_offset import RunState
from airflow_merge_provider.jobs.delta.transaction import CommitResult
from airflow_merge_provider.jobs.delta.writer import (
    Upsert,
    WriteOptions,
    append_rows,
    create_table,
    overwrite_table,
    upsert_rows,
)
from airflow_merge_provider.jobs.merge_load.changes import (
    ACTION,
    COUNTED,
    DELETE,
    INSERT,
    NOTHING,
    WEIGHT,
    Changes,
    add_action,
)
from airflow_merge_provider.jobs.merge_load.columns import refer_to_columns
from airflow_merge_provider.jobs.merge_load.staging import SMALL_LOAD_MAX_ROWS, StagedLoad, keep_rows
from airflow_merge_provider.jobs.run.retry import commit_run
from airflow_merge_provider.jobs.spark import sql
from airflow_merge_provider.jobs.spark.session import adaptive_execution_disabled, override_settings
from airflow_merge_provider.jobs.spark.staging import shorten_plan

# The number of rows per file for small loads.
_LOAD_FILE_MIN_ROWS = 50_000


@dataclass(frozen=True, slots=True)
class TableShape:
    """The history settings with which a table was written, and the column that stores them."""

    column: str
    content: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CountedChanges:
    """Changes with their counts by kind, and the number of rows that were loaded for them.

    ``deletes`` are deletions of rows that are not replaced.
    """

    changes: Changes
    counts: Mapping[str, int] = field(default_factory=dict)
    inserts: int = 0
    updates_and_deletes: int = 0
    deletes: int = 0
    loaded: int = 0
    duplicates: int = 0
    warnings: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write."""
        return self.inserts + self.updates_and_deletes == 0


def count_changes(changes: Changes, held: ExitStack) -> CountedChanges:
    """Compute changes once, count them, and cache them until ``held`` releases them."""
    rows = keep_rows(changes.rows, held)
    totals = rows.groupBy(ACTION, COUNTED).agg(F.count("*").alias("n"), F.sum(WEIGHT).alias("w")).collect()
    counts: dict[str, int] = {}
    for row in totals:
        if row[COUNTED] is not None:
            counts[row[COUNTED]] = counts.get(row[COUNTED], 0) + int(row["w"])
    inserts = sum(row["n"] for row in totals if row[ACTION] == INSERT)
    other_count = sum(row["n"] for row in totals if row[ACTION] not in {INSERT, NOTHING})
    deletion_count = sum(row["n"] for row in totals if row[ACTION] == DELETE and row[COUNTED] is not None)
    changes = replace(changes, rows=shorten_plan(rows, held))
    return CountedChanges(changes, counts, inserts, other_count, deletion_count)


def count_load(load: StagedLoad, changes: Changes, held: ExitStack) -> CountedChanges:
    """Count the changes of a load whose rows were checked."""
    counted_changes = count_changes(changes, held)
    return replace(counted_changes, loaded=load.loaded, duplicates=load.duplicates, warnings=load.warnings)


def insert_all(
    load: StagedLoad, rows: DataFrame, names: Sequence[str], kind: str, held: ExitStack
) -> CountedChanges:
    """Return a load that inserts all its rows; they are computed only if duplicates do not count."""
    changes = Changes(add_action(rows, INSERT, kind), (), names)
    if load.duplicates:
        return count_load(load, changes, held)
    new_count = load.loaded - load.flagged
    return CountedChanges(
        changes, {kind: new_count}, inserts=new_count, loaded=load.loaded, warnings=load.warnings
    )


def write_changes(
    spark: SparkSession,
    target: Dataset,
    last: PreviousRun | None,
    counted_changes: CountedChanges,
    state: RunState,
    options: WriteOptions,
    *,
    full: bool,
    shape: TableShape | None = None,
) -> CommitResult:
    """Make the run's one commit; if ``full``, the rows are the whole table.

    ``shape`` holds the history settings that a new table stores for later runs, in the metadata of a
    column, so that they are created and replaced together with the rows.
    """
    changes = counted_changes.changes
    is_small = counted_changes.inserts + counted_changes.updates_and_deletes < SMALL_LOAD_MAX_ROWS
    inserts = select_inserts(changes, shape if last is None or full else None)

    def coalesce_rows(rows: DataFrame) -> DataFrame:
        """Repartition few rows into few files; a shuffle keeps the preceding steps parallel."""
        return (
            rows.repartition(
                (counted_changes.inserts + counted_changes.updates_and_deletes) // _LOAD_FILE_MIN_ROWS + 1
            )
            if is_small
            else rows
        )

    def one_statement() -> None:
        if last is None:
            create_table(target, inserts, JOB, options=options)
        elif full:
            overwrite_table(target, inserts)
        elif counted_changes.empty:
            # A commit that only records versions of side tables adds no columns.
            append_rows(target, spark.table(sql.quote_table(target)).limit(0))
        else:
            # The rows are broadcast by a hint, because Spark has size statistics for cached rows only.
            replacing = (
                F.broadcast(coalesce_rows(changes.replacement_rows)) if is_small else changes.replacement_rows
            )
            upsert = Upsert(
                changes.rows,
                changes.merge_condition,
                changes.merge_clauses,
                inserted=None if counted_changes.updates_and_deletes else coalesce_rows(inserts),
                replacing=None if counted_changes.deletes else replacing,
                matching=changes.match_condition,
                new_columns=True,
            )
            upsert_rows(spark, target, upsert)

    with override_settings(spark, adaptive_execution_disabled(spark) if is_small else {}):
        return commit_run(spark, target, JOB, last, state, one_statement, options=options)


def select_inserts(changes: Changes, shape: TableShape | None) -> DataFrame:
    """Return the inserted rows with the target's columns; a shape is stored on one of them."""
    rows = changes.rows.where(sql.quote_column(ACTION) == INSERT).select(*refer_to_columns(changes.columns))
    if shape is None:
        return rows
    return rows.withMetadata(shape.column, {SHAPE: json.dumps(shape.content, sort_keys=True)})
