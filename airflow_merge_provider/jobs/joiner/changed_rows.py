"""The rows that a join adds to its target and removes from it, with the inputs that have their keys.

Source: docs/plan.md, Joins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce

from pyspark.sql import Column, DataFrame, functions as F

from airflow_merge_provider.core.joiner.plan import JoinPlan, list_output_keys
from airflow_merge_provider.core.schema.key_types import KeyComparison, choose_comparison
from airflow_merge_provider.jobs.joiner.transform import Frames
from airflow_merge_provider.jobs.run.change_set import (
    AFTER,
    BEFORE,
    COLUMNS,
    DELETED,
    DETAIL,
    INSERTED,
    KIND,
    ChangeSet,
    replace_all_rows,
)
from airflow_merge_provider.jobs.spark.key_columns import build_key_columns
from airflow_merge_provider.jobs.spark.sql import quote_column

_OUTPUT_KEY, _INPUT, _INPUT_FLAGS = "__merge_key", "__merge_input", "__merge_inputs"


def list_changed_rows(stored: DataFrame, joined: DataFrame, frames: Frames, plan: JoinPlan) -> ChangeSet:
    """Return the difference between the stored and the joined rows.

    The detail of a removed row names the required inputs that have no row with its key, that of a new row the
    inputs that have one; both only if the target has the columns of the key, and has keys that can be
    compared with those of the inputs.
    """
    names = list_output_keys(plan)
    keys = names if set(names) <= set(stored.columns) else ()
    changes = replace_all_rows(stored, joined, keys)
    comparisons = _choose_comparisons([stored, joined], keys, frames, plan)
    if not comparisons:
        return changes
    # The changes are read twice: for their keys, and with what the inputs have for them.
    rows = changes.rows.localCheckpoint(eager=False)
    after, before = (
        _build_key([F.col(image)[name] for name in keys], comparisons) for image in (AFTER, BEFORE)
    )
    key = F.when(F.col(KIND) == INSERTED, after).when(F.col(KIND) == DELETED, before)
    rows = rows.withColumn(_OUTPUT_KEY, key)
    listed = rows.where(F.col(_OUTPUT_KEY).isNotNull()).select(_OUTPUT_KEY).distinct()
    inputs = [
        frames[stage]
        .select(
            _build_key(map(quote_column, fields), comparisons).alias(_OUTPUT_KEY), F.lit(stage).alias(_INPUT)
        )
        .join(listed, _OUTPUT_KEY, "left_semi")
        for stage, fields in plan.keys.items()
    ]
    present = (
        reduce(DataFrame.unionAll, inputs).groupBy(_OUTPUT_KEY).agg(F.collect_set(_INPUT).alias(_INPUT_FLAGS))
    )
    explained = (
        rows.drop(DETAIL).join(present, _OUTPUT_KEY, "left").withColumn(DETAIL, _describe_inputs(plan))
    )
    return replace(changes, rows=explained.select(*COLUMNS))


def _describe_inputs(plan: JoinPlan) -> Column:
    """Return which inputs have a row with the key of a new row, or which lack one for a removed row."""
    present = F.coalesce(F.col(_INPUT_FLAGS), F.array().cast("array<string>"))

    def list_inputs(stages: Iterable[str], *, is_present: bool) -> Column:
        listed = F.array(*map(F.lit, stages)).cast("array<string>")
        names = F.array_intersect(listed, present) if is_present else F.array_except(listed, present)
        return F.nullif(F.concat_ws(", ", names), F.lit(""))

    required = [stage for stage in plan.order if stage in plan.required]
    missing = F.concat(F.lit("no row in "), list_inputs(required, is_present=False))
    matched = F.concat(F.lit("rows in "), list_inputs(plan.order, is_present=True))
    return F.when(F.col(KIND) == DELETED, missing).when(F.col(KIND) == INSERTED, matched)


def _choose_comparisons(
    tables: Iterable[DataFrame], keys: Sequence[str], frames: Frames, plan: JoinPlan
) -> list[KeyComparison]:
    """Return how the key values of inputs and of tables are compared; empty if they cannot be.

    The stored rows may have been joined by keys of other types.
    """
    sides = [(table, keys) for table in tables] + [(frames[stage], plan.keys[stage]) for stage in plan.keys]
    types = ([_format_type(table, name) for name in names] for table, names in sides)
    comparisons = [choose_comparison(clause) for clause in zip(*types, strict=True)] if keys else []
    exact_comparisons = [comparison for comparison in comparisons if comparison is not None]
    return exact_comparisons if len(exact_comparisons) == len(comparisons) else []


def _format_type(table: DataFrame, name: str) -> str:
    return next(field.dataType.simpleString() for field in table.schema if field.name == name)


def _build_key(values: Iterable[Column], comparisons: Sequence[KeyComparison]) -> Column:
    """Return key values as one value: the inputs may have them in other types and under other names."""
    pairs = zip(values, comparisons, strict=True)
    columns = [column for value, comparison in pairs for column in build_key_columns(value, comparison)]
    return F.struct(*(column.alias(f"k{n}") for n, column in enumerate(columns)))
