"""How tables beside the target keep in step with it: the log of changes, and the keys that were removed.

A side table is written first and the target's commit names its version: what it holds beyond that version
belongs to a run that did not get through, and the next run takes it out. Source: merge_engine spec §8, §9.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession, functions as F

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.merge_engine.plan import Plan
from airflow_merge_provider.jobs.delta.table import (
    PinnedDataset,
    PreviousRun,
    commit_once,
    load_previous_run,
    read_dataset,
)
from airflow_merge_provider.jobs.delta.writer import append_rows, create_table, overwrite_table, restore_table
from airflow_merge_provider.jobs.merge_engine.counting import REMOVED
from airflow_merge_provider.jobs.merge_engine.outcome import changes
from airflow_merge_provider.jobs.spark import sql

CHANGELOG, REMOVALS = "merge_engine_changelog", "merge_engine_removals"
KIND, RUN, REMOVED_AT = "_kind", "_run", "_removed_at"


@dataclass(frozen=True, slots=True)
class SideTable:
    """A table beside the target: where it is, its last run, and the version that the target names."""

    dataset: Dataset
    capability: str
    last: PreviousRun | None
    named: int | None


def look(spark: SparkSession, dataset: Dataset, capability: str, state: Mapping[str, Any]) -> SideTable:
    """Find a side table before anything is read; ``state`` is what the target's last commit says.

    :raises DataError: when there is something else at its place.
    """
    named = (state.get("beside") or {}).get(dataset.uri)
    return SideTable(dataset, capability, load_previous_run(spark, dataset, capability), named)


def removals_of(target: Dataset) -> Dataset:
    """Name the table that remembers the removed keys of a target."""
    end = "__removed"
    return Dataset(
        id=f"{target.id}{end}",
        path=None if target.path is None else f"{target.path}{end}",
        table=None if target.table is None else f"{target.table}{end}",
    )


def log(spark: SparkSession, side: SideTable, plan: Plan, found: DataFrame, number: int) -> int:
    """Append the net changes of run ``number`` and give the version that the target's commit has to name.

    :raises ConflictError: when another run has written to the log first.
    """
    rows = changes(plan, found, KIND).withColumn(RUN, F.lit(number).cast("bigint"))
    return _write(spark, side, rows, number)


def removed(spark: SparkSession, side: SideTable | None, plan: Plan, since: int) -> DataFrame | None:
    """Give the removals that count: those after ``since``, in microseconds; None when there are none."""
    if side is None or side.named is None:
        return None
    rows = read_dataset(spark, PinnedDataset(side.dataset, side.named))
    if set(rows.columns) != {*plan.key, *plan.remembered, REMOVED_AT, RUN}:
        # Another configuration has removed them, by another order.
        return None
    return rows.where(F.unix_micros(REMOVED_AT) >= F.lit(since))


def remember(
    spark: SparkSession, side: SideTable, plan: Plan, found: DataFrame, number: int, *, at: int, since: int
) -> int:
    """Add the removals of run ``number``, made at ``at``, and drop those before ``since``.

    :raises ConflictError: when another run has written to the table first.
    """
    place = sql.column(REMOVED)
    rows = found.where(place.isNotNull()).select(
        *map(sql.column, plan.key),
        *(place[name].alias(name) for name in plan.remembered),
        F.timestamp_micros(F.lit(at)).alias(REMOVED_AT),
        F.lit(number).cast("bigint").alias(RUN),
    )
    kept = removed(spark, side, plan, since)
    if kept is None:
        return _write(spark, replace(side, named=None), rows, number)
    whole = read_dataset(spark, PinnedDataset(side.dataset, side.named))
    oldest = whole.agg(F.unix_micros(F.min(REMOVED_AT))).collect()[0][0]
    if oldest is None or oldest >= since:
        return _write(spark, side, rows, number)
    return _write(spark, replace(side, named=None), kept.unionByName(rows), number)


def _write(spark: SparkSession, side: SideTable, rows: DataFrame, number: int) -> int:
    """Append rows to what the target knows of, or replace what it does not know."""
    if side.last is not None and side.named is not None and side.last.version != side.named:
        restore_table(spark, side.dataset, side.named)

    def store() -> None:
        if side.last is None:
            create_table(side.dataset, rows, side.capability)
        elif side.named is None:
            overwrite_table(side.dataset, rows)
        else:
            append_rows(side.dataset, rows)

    return commit_once(spark, side.dataset, side.capability, side.last, {"run": number}, store).version
