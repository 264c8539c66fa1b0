"""Selection of the rows that have no match in at least one required input."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, functions as F

from airflow_merge_provider.core.joiner.plan import JoinPlan
from airflow_merge_provider.jobs.joiner.transform import Frames, list_key_columns
from airflow_merge_provider.jobs.spark.exact_text import shown_row
from airflow_merge_provider.jobs.spark.expressions import combine_with_and
from airflow_merge_provider.jobs.spark.sql import quote_column

UNMATCHED_OWNER = "joiner_unmatched"


def find_unmatched(frames: Frames, plan: JoinPlan) -> DataFrame:
    """Return all input rows that the result lacks: columns ``input`` (its name) and ``row`` (as JSON)."""
    frames_by_input = [
        _find_without_partner(frames, plan, stage) for stage in plan.schemas if plan.required - {stage}
    ]
    return reduce(DataFrame.unionAll, frames_by_input)


def _find_without_partner(frames: Frames, plan: JoinPlan, stage: str) -> DataFrame:
    """Return the rows of an input that have no match in at least one other required input."""
    other_stages = [name for name in plan.order if name in plan.required and name != stage]
    row = shown_row(frames[stage], frames[stage].columns)
    output_columns = [F.lit(stage).alias("input"), row.alias("row")]
    if plan.expression is not None:
        input_rows, other_rows = (frames[name].alias(plan.aliases[name]) for name in (stage, *other_stages))
        return input_rows.join(other_rows, F.expr(plan.expression), "left_anti").select(*output_columns)
    input_rows = frames[stage].select(*output_columns, *_name_key_columns(plan, stage))
    partners = reduce(
        lambda matches, name: matches.join(
            frames[name].select(*_name_key_columns(plan, name)),
            _build_condition(plan, other_stages[0], name),
            "left_semi",
        ),
        other_stages[1:],
        frames[other_stages[0]].select(*_name_key_columns(plan, other_stages[0])),
    )
    return input_rows.join(partners, _build_condition(plan, stage, other_stages[0]), "left_anti").select(
        "input", "row"
    )


def _name_key_columns(plan: JoinPlan, stage: str) -> list[Column]:
    return [
        column.alias(_name_key(stage, position))
        for position, column in enumerate(list_key_columns(plan, stage))
    ]


def _build_condition(plan: JoinPlan, left: str, right: str) -> Column:
    pairs = [
        (quote_column(_name_key(left, position)), quote_column(_name_key(right, position)))
        for position in range(len(list_key_columns(plan, left)))
    ]
    return combine_with_and(a.eqNullSafe(b) if plan.nulls_match else a == b for a, b in pairs)


def _name_key(stage: str, position: int) -> str:
    return f"__merge_key_{stage}_{position}"
