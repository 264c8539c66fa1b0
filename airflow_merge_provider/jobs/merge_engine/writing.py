"""Write what a fold changed: the one statement that commits to the target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyspark.sql import DataFrame, SparkSession, functions as F

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.merge_engine.plan import Plan
from airflow_merge_provider.jobs.delta.writer import (
    NEW,
    OLD,
    append_rows,
    can_replace_rows,
    merge_rows,
    replace_rows,
)
from airflow_merge_provider.jobs.merge_engine.counting import CHANGE, CountedChanges
from airflow_merge_provider.jobs.spark import sql
from airflow_merge_provider.jobs.spark.session import adaptive_execution_disabled, override_settings

BROADCAST_MAX_BYTES = 64 << 20
# Fewer jobs for a batch that is small beside its table, and a source that is kept already.
_MERGE_CONF = {
    "spark.databricks.delta.merge.materializeSource": "none",
    "spark.databricks.delta.insertReplaceOnOrUsing.materializeSource": "none",
}


def write_changes(
    spark: SparkSession,
    target: Dataset,
    rows: DataFrame,
    plan: Plan,
    counted: CountedChanges,
) -> None:
    """Write changed rows into a target that exists, in one statement.

    :param rows: the columns of the target and ``CHANGE``.
    """
    if not counted.rows["updated"] and not counted.rows["deleted"]:
        # The target is not read for new rows alone, nor for none and removals of unknown keys.
        append_rows(target, rows.drop(CHANGE))
        return
    # Delta joins the target with these rows more than once: a broadcast saves a shuffle each time.
    if counted.size is not None and counted.size <= BROADCAST_MAX_BYTES:
        rows = F.broadcast(rows)
    with override_settings(spark, {**_MERGE_CONF, **adaptive_execution_disabled(spark)}):
        if not counted.rows["deleted"] and can_replace_rows(spark, target):
            replace_rows(target, rows.drop(CHANGE), _match_keys(plan))
        else:
            merge_rows(spark, target, rows, _match_keys(plan), list(_build_clauses(plan, counted.rows)))


def _match_keys(plan: Plan) -> str:
    equal = "<=>" if plan.options.nullable_key else "="
    return " AND ".join(f"{sql.name(OLD, name)} {equal} {sql.name(NEW, name)}" for name in plan.key)


def _build_clauses(plan: Plan, kinds: Mapping[str, int]) -> Iterator[str]:
    """Yield the clauses that are needed."""
    change = sql.name(NEW, CHANGE)
    if kinds["deleted"]:
        yield f"WHEN MATCHED AND {change} = '-D' THEN DELETE"
    if kinds["updated"]:
        sets = ", ".join(f"{sql.name(OLD, name)} = {sql.name(NEW, name)}" for name in plan.values)
        yield f"WHEN MATCHED AND {change} = '+U' THEN UPDATE SET {sets}"
    if kinds["inserted"]:
        values = ", ".join(sql.name(NEW, name) for name in plan.names)
        yield f"WHEN NOT MATCHED AND {change} = '+I' THEN INSERT ({sql.names(plan.names)}) VALUES ({values})"
