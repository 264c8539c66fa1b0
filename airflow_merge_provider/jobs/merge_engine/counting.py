"""Count what happens to records and keys, and collect the problems found in them.

Source: docs/semantics/merge_engine.md, Counts and traces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, functions as F

from airflow_merge_provider.core.change_plan.shown_rows import mask_value
from airflow_merge_provider.core.merge_engine import refusals
from airflow_merge_provider.core.merge_engine.columns import is_text
from airflow_merge_provider.core.merge_engine.plan import Plan
from airflow_merge_provider.jobs.merge_engine.records import (
    ADDS,
    DELETES,
    IGNORED,
    LONE,
    RECORD_LATE,
    RECORD_POSITION,
    RECORD_PROBLEM,
    STORED,
    TIE,
    any_set,
)
from airflow_merge_provider.jobs.spark import sql
from airflow_merge_provider.jobs.spark.exact_text import shown_row
from airflow_merge_provider.jobs.spark.expressions import combine_columns

BEFORE = "#before"
AFTER = "#after"
CHANGE = "#change"  # +I, +U or -D; null if the row does not change
REMOVED = "#removed"  # the ordering values of the key's removal, if a tombstone is recorded

_RECORDS = "#records"
_RETRACTS = "#retracts"
_DROPPED_RECORDS = "#dropped"
_LATE = "#late"
_TIES = "#ties"
_NULL_COUNTS = "#nulls"
_LONE = "#lone"
_MISSED = "#missed"
_PROBLEMS = "problems"
_SIZE_BYTES = "bytes"
_FIXED = 16  # bytes of any value
# Spark flattens nested sums into one chain, and long chains overflow its stack.
_ADDED = 64
_SHOWN_EXAMPLES_MAX = 5
# The kinds of row changes, with their values of CHANGE.
_KIND_SYMBOLS = {"inserted": "+I", "updated": "+U", "deleted": "-D"}


def per_key(plan: Plan) -> dict[str, Column]:
    """Return the aggregates that count the records of a key, by the names of their columns."""
    is_new = ~sql.quote_column(STORED)
    is_counted = is_new & ~sql.quote_column(IGNORED)
    counters = {
        _RECORDS: F.count_if(is_new),
        _RETRACTS: F.count_if(is_counted & ~sql.quote_column(ADDS)),
        _DROPPED_RECORDS: F.count_if(sql.quote_column(IGNORED)),
    }
    if plan.sequence or plan.groups:
        counters[_LATE] = F.count_if(sql.quote_column(RECORD_LATE))
        counters[_MISSED] = F.count_if(
            is_counted & sql.quote_column(DELETES) & (sql.quote_column(RECORD_LATE) | ~_is_placed(plan))
        )
    if plan.sequence:
        counters[_TIES] = F.count_if(sql.quote_column(TIE))
        unplaced = [sql.quote_column(name).isNull() for name in plan.sequence]
        counters[_NULL_COUNTS] = F.count_if(is_counted & F.greatest(*unplaced, F.lit(False)))
    if plan.retracts and not plan.options.ignore_update_before:
        counters[_LONE] = F.max_by(
            sql.quote_column(LONE), F.when(is_new, sql.quote_column(RECORD_POSITION))
        ).cast("bigint")
    return counters


def _is_placed(plan: Plan) -> Column:
    """Return whether a record has a non-null sequence or group ordering column."""
    names = [name for group in plan.groups for name in group.order] or list(plan.sequence)
    return any_set(names)


def list_problem_columns(plan: Plan, has_row: Column) -> Iterator[Column]:
    """Yield the columns with error texts for a key: of single records, then of all its records."""
    yield sql.quote_column(RECORD_PROBLEM)
    if "tie" in plan.fail_on:
        yield F.when(sql.quote_column(_TIES) > 0, F.lit(refusals.describe_tie(plan.sequence)))
    if "lone-update" in plan.fail_on and _LONE in per_key(plan):
        yield F.when(sql.quote_column(_LONE) > 0, F.lit(refusals.LONE_UPDATE))
    if "orphan-retract" in plan.fail_on:
        orphan = (sql.quote_column(_RETRACTS) > 0) & sql.quote_column(BEFORE).isNull() & ~has_row
        yield F.when(orphan, F.lit(refusals.ORPHAN_RETRACT))


@dataclass(frozen=True, slots=True)
class CountedChanges:
    """The row changes of a run by kind, the counts of its report, and the estimated bytes to write.

    ``size`` is in bytes; None if it cannot be estimated.
    """

    rows: Mapping[str, int]
    counts: Mapping[str, int]
    size: int | None

    @property
    def has_rows(self) -> bool:
        """Whether rows of the target change."""
        return any(self.rows.values())

    @property
    def is_needed(self) -> bool:
        """Whether the run has anything to write: row changes or tombstones."""
        return self.has_rows or bool(self.counts.get("tombstones"))


def count_changes(plan: Plan, folded_rows: DataFrame) -> CountedChanges:
    """Count row changes, records and keys in one Spark action.

    :raises DataError: when something is wrong with a record or a result; with the first keys that have it.
    """
    change, row_after, row_before = (
        sql.quote_column(CHANGE),
        sql.quote_column(AFTER),
        sql.quote_column(BEFORE),
    )
    aggregates = {
        "records": F.sum(sql.quote_column(_RECORDS)),
        "keys": F.count(F.lit(1)),
        **{kind: F.count_if(change == row_kind) for kind, row_kind in _KIND_SYMBOLS.items()},
        "unchanged_keys": F.count_if(change.isNull() & row_after.isNotNull()),
        **_count_oddities(folded_rows.columns),
        _PROBLEMS: F.count(sql.quote_column(RECORD_PROBLEM)),
    }
    sizes = {
        f"{_SIZE_BYTES}{index}": F.sum(F.when(change.isNotNull(), part))
        for index, part in enumerate(_estimate_sizes(plan))
    }
    orphaned = (sql.quote_column(_RETRACTS) > 0) & row_before.isNull() & row_after.isNull()
    aggregates |= {
        "orphan_retracts": F.count_if(orphaned),
        "ignored_retracts": F.sum(sql.quote_column(_DROPPED_RECORDS)),
    }
    row = folded_rows.agg(*(value.alias(name) for name, value in (aggregates | sizes).items())).collect()[0]
    counts = {name: int(row[name] or 0) for name in aggregates}
    size = sum(int(row[name] or 0) for name in sizes)
    if counts.pop(_PROBLEMS):
        raise refusals.build_error(_collect_problems(plan, folded_rows))
    nested = any(isinstance(column.kind, Mapping) or column.family == "variant" for column in plan.columns)
    rows = {kind: counts.pop(kind) for kind in _KIND_SYMBOLS}
    return CountedChanges(rows, counts, None if nested else size)


def _estimate_sizes(plan: Plan) -> Iterator[Column]:
    """Yield the terms of the estimated row size in bytes; nested values are left out."""
    after = sql.quote_column(AFTER)
    long = [column.name for column in plan.columns if is_text(column.kind) or column.family == "binary"]
    values = [after[name] if name in plan.values else sql.quote_column(name) for name in long]
    fixed = F.lit(_FIXED * len(plan.columns))
    parts = [fixed, *(F.coalesce(F.octet_length(value), F.lit(0)) for value in values)]
    for start in range(0, len(parts), _ADDED):
        yield combine_columns(Column.__add__, parts[start : start + _ADDED], fixed)


def _count_oddities(column_names: list[str]) -> dict[str, Column]:
    """Count what is not an error but may point to one upstream, for the columns that the plan has."""
    changes, all_late = (
        sql.quote_column(CHANGE).isNotNull(),
        sql.quote_column(_LATE) == sql.quote_column(_RECORDS),
    )
    counts_by_column = {
        _LATE: {"late": F.sum(sql.quote_column(_LATE)), "filled_holes": F.count_if(changes & all_late)},
        _MISSED: {
            "missed_deletes": F.sum(F.when(sql.quote_column(AFTER).isNotNull(), sql.quote_column(_MISSED)))
        },
        _TIES: {"ties": F.sum(sql.quote_column(_TIES))},
        _NULL_COUNTS: {"null_sequence": F.sum(sql.quote_column(_NULL_COUNTS))},
        _LONE: {"lone_updates": F.sum(sql.quote_column(_LONE))},
        REMOVED: {"tombstones": F.count(sql.quote_column(REMOVED))},
    }
    return {
        name: count
        for column, counts in counts_by_column.items()
        if column in column_names
        for name, count in counts.items()
    }


def _collect_problems(plan: Plan, folded_rows: DataFrame) -> list[tuple[str, int, str]]:
    key = shown_row(folded_rows, plan.key)
    rows = (
        folded_rows.where(sql.quote_column(RECORD_PROBLEM).isNotNull())
        .groupBy(sql.quote_column(RECORD_PROBLEM))
        .agg(F.count(F.lit(1)).alias("keys"), F.min(key).alias("key"))
        .orderBy(F.desc("keys"), sql.quote_column(RECORD_PROBLEM))
        .limit(_SHOWN_EXAMPLES_MAX)
        .collect()
    )
    return [(row[RECORD_PROBLEM], int(row["keys"]), mask_value(row["key"], plan.key)) for row in rows]
