"""Compute the row of each touched key before and after the fold, and the change between them.

Source: docs/semantics/merge_engine.md, Net changes; Fold of a key.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, functions as F

from airflow_merge_provider.core.merge_engine.columns import Column as TableColumn
from airflow_merge_provider.core.merge_engine.options import DEDUPLICATE
from airflow_merge_provider.core.merge_engine.plan import Plan
from airflow_merge_provider.jobs.merge_engine import counting, python_fold
from airflow_merge_provider.jobs.merge_engine.aggregates import Aggregates
from airflow_merge_provider.jobs.merge_engine.counting import AFTER, BEFORE, CHANGE, REMOVED
from airflow_merge_provider.jobs.merge_engine.records import (
    ADDS,
    DELETES,
    IGNORED,
    RECORD_POSITION,
    RECORD_PROBLEM,
    STORED,
    any_set,
    build_records,
)
from airflow_merge_provider.jobs.merge_engine.source_columns import parse_type
from airflow_merge_provider.jobs.run.change_set import DELETED, INSERTED, UPDATED, build_change
from airflow_merge_provider.jobs.spark import sql
from airflow_merge_provider.jobs.spark.exact_text import exact_text, has_equality
from airflow_merge_provider.jobs.spark.expressions import combine_with_or

_CHANGE_KINDS = {"+I": INSERTED, "+U": UPDATED, "-D": DELETED}


def fold_batch(
    plan: Plan, batch: DataFrame, stored: DataFrame | None, removed: DataFrame | None = None
) -> DataFrame:
    """Fold a batch with the target's rows and recorded removals, and return one row per key.

    Its columns are the key, ``BEFORE`` and ``AFTER`` (structs of the other columns, null if there is no
    row), ``CHANGE``, ``PROBLEM`` with an error text, counts, and ``REMOVED`` if removals are recorded.
    """
    aggregates = Aggregates(plan)
    counters = counting.per_key(plan)
    key_aggregates = {
        BEFORE: _read_row_before(plan),
        RECORD_PROBLEM: F.max(sql.quote_column(RECORD_PROBLEM)),
        **counters,
        **({REMOVED: _find_newest_removal(plan)} if plan.remembers else {}),
    }
    gathered = (
        build_records(plan, batch, stored, removed)
        .groupBy(*map(sql.quote_column, plan.key))
        .agg(
            *(value.alias(name) for name, value in key_aggregates.items()),
            *aggregates.list_aggregates(),
            *([python_fold.collect_history(plan)] if plan.folded_rules else []),
        )
    )
    if plan.folded_rules:
        gathered = python_fold.fold_in_python(plan, gathered)
    has_row = sql.quote_column(python_fold.ALIVE) if plan.folds_rows else aggregates.has_row()
    row = F.struct(
        *(aggregates.build_value(rule).alias(rule.name) for rule in plan.rules if rule.name not in plan.key),
        F.lit(True).alias(STORED),
    )
    problem = F.coalesce(
        *counting.list_problem_columns(plan, has_row),
        *aggregates.list_problems(),
        *([sql.quote_column(python_fold.FOLDED_PROBLEM)] if plan.folded_rules else []),
    )
    return gathered.select(
        *map(sql.quote_column, plan.key),
        sql.quote_column(BEFORE),
        F.when(has_row, row).alias(AFTER),
        problem.alias(RECORD_PROBLEM),
        *map(sql.quote_column, counters),
        *([_find_recorded_removal(plan).alias(REMOVED)] if plan.remembers else []),
    ).withColumn(CHANGE, _classify_change(plan))


def _read_row_before(plan: Plan) -> Column:
    row = F.struct(*map(sql.quote_column, plan.values), sql.quote_column(STORED))
    return F.first(F.when(sql.quote_column(STORED) & sql.quote_column(ADDS), row), ignorenulls=True)


def _find_newest_removal(plan: Plan) -> Column:
    """Return the newest removal of the batch; for groups, the Python fold selects the removing ones."""
    removes = ~sql.quote_column(ADDS) if plan.engine == DEDUPLICATE else sql.quote_column(DELETES)
    removes = removes & ~sql.quote_column(STORED) & ~sql.quote_column(IGNORED) & any_set(plan.remembered)
    ordering_values = F.struct(*map(sql.quote_column, plan.remembered))
    return F.max_by(ordering_values, F.when(removes, sql.quote_column(RECORD_POSITION)))


def _find_recorded_removal(plan: Plan) -> Column:
    if not plan.folds_rows:
        return sql.quote_column(REMOVED)
    return F.when(sql.quote_column(REMOVED).isNotNull(), sql.quote_column(python_fold.FOLDED_REMOVED))


def _classify_change(plan: Plan) -> Column:
    row_before, row_after = sql.quote_column(BEFORE), sql.quote_column(AFTER)
    differs = (~_is_same_value(column) for column in plan.columns if column.name not in plan.key)
    return (
        F.when(row_before.isNull() & row_after.isNotNull(), F.lit("+I"))
        .when(row_before.isNotNull() & row_after.isNull(), F.lit("-D"))
        .when(
            row_before.isNotNull() & row_after.isNotNull() & combine_with_or(differs),
            F.lit("+U"),
        )
    )


def _is_same_value(column: TableColumn) -> Column:
    """Return whether a column does not change; types that Spark cannot compare are compared as exact texts.

    Maps that differ only in the order of their entries are equal.
    """
    kind = parse_type(column.kind)
    before, after = (sql.quote_name(image, column.name) for image in (BEFORE, AFTER))
    if has_equality(kind):
        return F.expr(f"{before} <=> {after}")
    return exact_text(before, kind).eqNullSafe(exact_text(after, kind))


def select_results(plan: Plan, folded_rows: DataFrame) -> DataFrame:
    """Return the rows to write: key, values and ``CHANGE``; the values of removed rows are null."""
    after = sql.quote_column(AFTER)
    values = [sql.quote_column(name) if name in plan.key else after[name].alias(name) for name in plan.names]
    return folded_rows.where(sql.quote_column(CHANGE).isNotNull()).select(*values, sql.quote_column(CHANGE))


def select_changes(plan: Plan, folded_rows: DataFrame, kind: str = CHANGE) -> DataFrame:
    """Return the net changes: ``+I``, ``-U`` with the row before, ``+U`` with the row after, ``-D``."""
    changed = folded_rows.where(sql.quote_column(CHANGE).isNotNull())
    images = F.when(
        sql.quote_column(CHANGE) == "+U",
        F.array(_build_image("-U", BEFORE), _build_image("+U", AFTER)),
    ).otherwise(
        F.array(
            F.struct(
                sql.quote_column(CHANGE).alias("kind"),
                F.coalesce(sql.quote_column(AFTER), sql.quote_column(BEFORE)).alias("row"),
            )
        )
    )
    exploded = changed.select(*map(sql.quote_column, plan.key), F.explode(images).alias("image"))
    values = [
        sql.quote_column(name) if name in plan.key else F.col("image.row")[name].alias(name)
        for name in plan.names
    ]
    return exploded.select(F.col("image.kind").alias(kind), *values)


def list_changed_rows(plan: Plan, folded_rows: DataFrame) -> DataFrame:
    """Return the rows of the target that change, with the row kind of each change as its reason."""
    changed = folded_rows.where(sql.quote_column(CHANGE).isNotNull())
    kinds = F.create_map(*(F.lit(text) for pair in _CHANGE_KINDS.items() for text in pair))
    images = {name: _build_row(plan, image) for name, image in (("before", BEFORE), ("after", AFTER))}
    change = sql.quote_column(CHANGE)
    return changed.select(*build_change(kinds[change], change, **images))


def _build_row(plan: Plan, image: str) -> Column:
    """Return the whole row of an image, with its key; null if there is none."""
    row = sql.quote_column(image)
    values = (sql.quote_column(name) if name in plan.key else row[name] for name in plan.names)
    whole_row = F.struct(*(value.alias(name) for value, name in zip(values, plan.names, strict=True)))
    return F.when(row.isNotNull(), whole_row)


def _build_image(kind: str, row: str) -> Column:
    return F.struct(F.lit(kind).alias("kind"), sql.quote_column(row).alias("row"))
