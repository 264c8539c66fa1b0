"""What becomes of every touched key: its row before and after, which change that is, and the counts.

Source: merge_engine spec §8 and §9.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame, functions as F

from airflow_merge_provider.core.merge_engine import refusals
from airflow_merge_provider.core.merge_engine.columns import Column as TableColumn, holds
from airflow_merge_provider.core.merge_engine.plan import Plan
from airflow_merge_provider.jobs import sql
from airflow_merge_provider.jobs.merge_engine import walking
from airflow_merge_provider.jobs.merge_engine.aggregates import Aggregates
from airflow_merge_provider.jobs.merge_engine.records import (
    ADDS,
    IGNORED,
    PROBLEM,
    STORED,
    records,
)

BEFORE = "#before"
AFTER = "#after"
CHANGE = "#change"  # +I, +U or -D; null when the row stays as it is
_RECORDS = "#records"
_RETRACTS = "#retracts"
_DROPPED = "#dropped"
_SHOWN = 5


def outcome(plan: Plan, batch: DataFrame, stored: DataFrame | None) -> DataFrame:
    """Fold a batch with the rows of the target: one row for each key of the batch.

    Its columns are the key, ``BEFORE`` and ``AFTER`` (structs of the other columns, null where there is no
    row), ``CHANGE``, a problem in words, and counts.
    """
    made = Aggregates(plan)
    gathered = (
        records(plan, batch, stored)
        .groupBy(*map(sql.column, plan.key))
        .agg(*_known(plan), *made.gathered(), *([walking.history(plan)] if plan.folded else []))
    )
    if plan.folded:
        gathered = walking.walked(plan, gathered)
    alive = sql.column(walking.ALIVE) if plan.folds_rows else made.alive()
    row = F.struct(
        *(made.value(rule).alias(rule.name) for rule in plan.rules if rule.name not in plan.key),
        F.lit(True).alias(STORED),
    )
    orphan = F.when(
        (sql.column(_RETRACTS) > 0) & sql.column(BEFORE).isNull() & ~alive, F.lit(refusals.ORPHAN_RETRACT)
    )
    problem = F.coalesce(
        sql.column(PROBLEM),
        *([orphan] if "orphan-retract" in plan.fail_on else []),
        *made.problems(),
        *([sql.column(walking.PROBLEM)] if plan.folded else []),
    )
    counts = (_RECORDS, _RETRACTS, _DROPPED)
    return gathered.select(
        *map(sql.column, plan.key),
        sql.column(BEFORE),
        F.when(alive, row).alias(AFTER),
        problem.alias(PROBLEM),
        *map(sql.column, counts),
    ).withColumn(CHANGE, _change(plan))


def _known(plan: Plan) -> list[Column]:
    """Gather what is needed of every plan: the row before, the first problem, and how many records."""
    stored, adds = sql.column(STORED), sql.column(ADDS)
    before = F.struct(*map(sql.column, plan.values), stored)
    return [
        F.first(F.when(stored, before), ignorenulls=True).alias(BEFORE),
        _first_problem(plan).alias(PROBLEM),
        F.count_if(~stored).alias(_RECORDS),
        F.count_if(~adds & ~sql.column(IGNORED)).alias(_RETRACTS),
        F.count_if(sql.column(IGNORED)).alias(_DROPPED),
    ]


def _first_problem(plan: Plan) -> Column:
    """Give what is wrong with a record of the key, or with two of them together."""
    found = F.max(sql.column(PROBLEM))
    if "tie" not in plan.fail_on:
        return found
    place = F.when(~sql.column(STORED) & ~sql.column(IGNORED), F.struct(*map(sql.column, plan.sequence)))
    tied = F.count(place) > F.size(F.collect_set(place))
    return F.coalesce(found, F.when(tied, F.lit(refusals.tie(plan.sequence))))


def _change(plan: Plan) -> Column:
    before, after = sql.column(BEFORE), sql.column(AFTER)
    columns = [column for column in plan.columns if column.name not in plan.key]
    differs = [~_same(before[column.name], after[column.name], column) for column in columns]
    return (
        F.when(before.isNull() & after.isNotNull(), F.lit("+I"))
        .when(before.isNotNull() & after.isNull(), F.lit("-D"))
        .when(
            before.isNotNull() & after.isNotNull() & reduce(Column.__or__, differs, F.lit(False)),
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


def counted(plan: Plan, found: DataFrame) -> dict[str, int]:
    """Count what happens, in one action.

    :raises DataError: when something is wrong with a record or a result; with the first keys that have it.
    """
    change, after, before = sql.column(CHANGE), sql.column(AFTER), sql.column(BEFORE)
    orphaned = (sql.column(_RETRACTS) > 0) & before.isNull() & after.isNull()
    wanted = {
        "records": F.sum(sql.column(_RECORDS)),
        "keys": F.count(F.lit(1)),
        "inserted": F.count_if(change == "+I"),
        "updated": F.count_if(change == "+U"),
        "removed": F.count_if(change == "-D"),
        "unchanged": F.count_if(change.isNull() & after.isNotNull()),
        "orphan_retracts": F.count_if(orphaned),
        "ignored_retracts": F.sum(sql.column(_DROPPED)),
        "problems": F.count(sql.column(PROBLEM)),
    }
    row = found.agg(*(value.alias(name) for name, value in wanted.items())).collect()[0]
    counts = {name: int(row[name] or 0) for name in wanted}
    if counts.pop("problems"):
        raise refusals.refused(_problems(plan, found))
    return counts


def _problems(plan: Plan, found: DataFrame) -> list[tuple[str, int, str]]:
    key = F.to_json(F.struct(*map(sql.column, plan.key)), {"ignoreNullFields": "false"})
    rows = (
        found.where(sql.column(PROBLEM).isNotNull())
        .groupBy(sql.column(PROBLEM))
        .agg(F.count(F.lit(1)).alias("keys"), F.min(key).alias("key"))
        .orderBy(F.desc("keys"), sql.column(PROBLEM))
        .limit(_SHOWN)
        .collect()
    )
    return [(row[PROBLEM], int(row["keys"]), row["key"]) for row in rows]


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


def has_changes(counts: Mapping[str, int]) -> bool:
    """Say whether anything is to be written."""
    return any(counts[name] for name in ("inserted", "updated", "removed"))
