"""Read and write the side tables of a merge engine's target: change log and removed keys (tombstones).

Source: docs/semantics/merge_engine.md, Net changes; Removed keys.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, functions as F

from airflow_merge_provider.core.merge_engine.plan import Plan
from airflow_merge_provider.jobs.delta.side_table import SideTable
from airflow_merge_provider.jobs.merge_engine.counting import REMOVED
from airflow_merge_provider.jobs.merge_engine.row_changes import select_changes
from airflow_merge_provider.jobs.spark import sql

CHANGELOG_OWNER, REMOVALS = "merge_engine_changelog", "merge_engine_removals"
REMOVALS_SUFFIX = "__removed"
KIND_COLUMN, RUN_COLUMN, REMOVED_AT = "_kind", "_run", "_removed_at"


def append_changes(side_table: SideTable, plan: Plan, folded_rows: DataFrame, number: int) -> None:
    """Append the net changes of run ``number`` to the change log.

    :raises ConflictError: if another run has written to the log first.
    """
    side_table.append_rows(
        select_changes(plan, folded_rows, KIND_COLUMN).withColumn(RUN_COLUMN, F.lit(number).cast("bigint"))
    )


def read_removals(side_table: SideTable | None, plan: Plan, since: int) -> DataFrame | None:
    """Return the removals at or after ``since``, in microseconds; None if there are none."""
    rows = None if side_table is None else side_table.read_rows()
    if rows is None or set(rows.columns) != {*plan.key, *plan.remembered, REMOVED_AT, RUN_COLUMN}:
        # Another configuration with other ordering columns wrote them.
        return None
    return rows.where(F.unix_micros(REMOVED_AT) >= F.lit(since))


def list_removals(plan: Plan, folded_rows: DataFrame, number: int, at: int) -> DataFrame:
    """Return the removals of run ``number``, made at ``at`` (microseconds)."""
    ordering_values = sql.quote_column(REMOVED)
    return folded_rows.where(ordering_values.isNotNull()).select(
        *map(sql.quote_column, plan.key),
        *(ordering_values[name].alias(name) for name in plan.remembered),
        F.timestamp_micros(F.lit(at)).alias(REMOVED_AT),
        F.lit(number).cast("bigint").alias(RUN_COLUMN),
    )


def record_removals(side_table: SideTable, plan: Plan, rows: DataFrame, since: int | None) -> None:
    """Add the removals of a run, and drop those before ``since`` (microseconds); if None, drop all others.

    :raises ConflictError: if another run has written to the table first.
    """
    stored_rows = None if since is None else side_table.read_rows()
    valid_removals = None if since is None else read_removals(side_table, plan, since)
    if since is None or stored_rows is None or valid_removals is None:
        side_table.replace_rows(rows)
        return
    oldest = stored_rows.agg(F.unix_micros(F.min(REMOVED_AT))).collect()[0][0]
    if oldest is None or oldest >= since:
        side_table.append_rows(rows)
    else:
        side_table.replace_rows(valid_removals.unionByName(rows))
