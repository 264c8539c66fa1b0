"""What becomes of every touched key: its row before and after, and which change that is.

Source: merge_engine spec §8 and §9.1.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, functions as F

from airflow_merge_provider.core.merge_engine.columns import Column as TableColumn, holds
from airflow_merge_provider.core.merge_engine.options import DEDUPLICATE
from airflow_merge_provider.core.merge_engine.plan import Plan
from airflow_merge_provider.jobs.merge_engine import counting, walking
from airflow_merge_provider.jobs.merge_engine.aggregates import Aggregates
from airflow_merge_provider.jobs.merge_engine.counting import AFTER, BEFORE, CHANGE, REMOVED
from airflow_merge_provider.jobs.merge_engine.records import (
    ADDS,
    DELETES,
    IGNORED,
    POSITION,
    PROBLEM,
    STORED,
    any_set,
    records,
)
from airflow_merge_provider.jobs.spark import sql
from airflow_merge_provider.jobs.spark.expressions import some


def outcome(
    plan: Plan, batch: DataFrame, stored: DataFrame | None, removed: DataFrame | None = None
) -> DataFrame:
    """Fold a batch with the rows of the target, and with removals that it remembers: one row for each key.

    Its columns are the key, ``BEFORE`` and ``AFTER`` (structs of the other columns, null where there is no
    row), ``CHANGE``, a problem in words, counts, and ``REMOVED`` where removals are remembered.
    """
    made = Aggregates(plan)
    counters = counting.per_key(plan)
    known = {
        BEFORE: _before(plan),
        PROBLEM: F.max(sql.column(PROBLEM)),
        **counters,
        **({REMOVED: _removed(plan)} if plan.remembers else {}),
    }
    gathered = (
        records(plan, batch, stored, removed)
        .groupBy(*map(sql.column, plan.key))
        .agg(
            *(value.alias(name) for name, value in known.items()),
            *made.gathered(),
            *([walking.history(plan)] if plan.folded else []),
        )
    )
    if plan.folded:
        gathered = walking.walked(plan, gathered)
    alive = sql.column(walking.ALIVE) if plan.folds_rows else made.alive()
    row = F.struct(
        *(made.value(rule).alias(rule.name) for rule in plan.rules if rule.name not in plan.key),
        F.lit(True).alias(STORED),
    )
    problem = F.coalesce(
        *counting.problem(plan, alive),
        *made.problems(),
        *([sql.column(walking.PROBLEM)] if plan.folded else []),
    )
    return gathered.select(
        *map(sql.column, plan.key),
        sql.column(BEFORE),
        F.when(alive, row).alias(AFTER),
        problem.alias(PROBLEM),
        *map(sql.column, counters),
        *([_remembered(plan).alias(REMOVED)] if plan.remembers else []),
    ).withColumn(CHANGE, _change(plan))


def _before(plan: Plan) -> Column:
    row = F.struct(*map(sql.column, plan.values), sql.column(STORED))
    return F.first(F.when(sql.column(STORED) & sql.column(ADDS), row), ignorenulls=True)


def _removed(plan: Plan) -> Column:
    """Give the place of the newest removal in the batch; of groups, the fold says which ones removed."""
    removes = ~sql.column(ADDS) if plan.engine == DEDUPLICATE else sql.column(DELETES)
    removes = removes & ~sql.column(STORED) & ~sql.column(IGNORED) & any_set(plan.remembered)
    place = F.struct(*map(sql.column, plan.remembered))
    return F.max_by(place, F.when(removes, sql.column(POSITION)))


def _remembered(plan: Plan) -> Column:
    if not plan.folds_rows:
        return sql.column(REMOVED)
    return F.when(sql.column(REMOVED).isNotNull(), sql.column(walking.REMOVED))


def _change(plan: Plan) -> Column:
    before, after = sql.column(BEFORE), sql.column(AFTER)
    columns = [column for column in plan.columns if column.name not in plan.key]
    differs = (~_same(before[column.name], after[column.name], column) for column in columns)
    return (
        F.when(before.isNull() & after.isNotNull(), F.lit("+I"))
        .when(before.isNotNull() & after.isNull(), F.lit("-D"))
        .when(
            before.isNotNull() & after.isNotNull() & some(differs),
            F.lit("+U"),
        )
    )


def _same(before: Column, after: Column, column: TableColumn) -> Column:
    """Compare two values, nulls too; what Spark cannot compare is written as JSON first."""
    if not holds(column.kind, "map") and not holds(column.kind, "variant"):
        return before.eqNullSafe(after)
    return _text(before, column).eqNullSafe(_text(after, column))


def _text(value: Column, column: TableColumn) -> Column:
    if column.family == "map":
        # The order of a map's entries is no difference.
        entries = F.transform(F.map_entries(value), lambda each: F.to_json(F.struct(each.alias("entry"))))
        return F.array_sort(entries)
    return F.to_json(F.struct(value))


def results(plan: Plan, found: DataFrame) -> DataFrame:
    """Give the rows to write: key, values and ``CHANGE``; the values of removed rows are null."""
    after = sql.column(AFTER)
    values = [sql.column(name) if name in plan.key else after[name].alias(name) for name in plan.names]
    return found.where(sql.column(CHANGE).isNotNull()).select(*values, sql.column(CHANGE))


def changes(plan: Plan, found: DataFrame, kind: str = CHANGE) -> DataFrame:
    """Give the net changes: ``+I``, ``-U`` with the row before, ``+U`` with the row after, ``-D``."""
    changed = found.where(sql.column(CHANGE).isNotNull())
    images = F.when(
        sql.column(CHANGE) == "+U",
        F.array(_image("-U", BEFORE), _image("+U", AFTER)),
    ).otherwise(
        F.array(
            F.struct(
                sql.column(CHANGE).alias("kind"),
                F.coalesce(sql.column(AFTER), sql.column(BEFORE)).alias("row"),
            )
        )
    )
    exploded = changed.select(*map(sql.column, plan.key), F.explode(images).alias("image"))
    values = [
        sql.column(name) if name in plan.key else F.col("image.row")[name].alias(name) for name in plan.names
    ]
    return exploded.select(F.col("image.kind").alias(kind), *values)


def _image(kind: str, row: str) -> Column:
    return F.struct(F.lit(kind).alias("kind"), sql.column(row).alias("row"))
