"""Selection of the rows that have no match in at least one required input."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, functions as F

from airflow_merge_provider.core.joiner.plan import JoinPlan
from airflow_merge_provider.jobs.joiner.transform import Frames
from airflow_merge_provider.jobs.spark.expressions import all_of
from airflow_merge_provider.jobs.spark.sql import quote_column

UNMATCHED = "joiner_unmatched"


def find_unmatched(frames: Frames, plan: JoinPlan) -> DataFrame:
    """Return all input rows that the result lacks: columns ``input`` (its name) and ``row`` (as JSON)."""
    left_out = [
        _find_without_partner(frames, plan, stage) for stage in plan.schemas if plan.required - {stage}
    ]
    return reduce(DataFrame.unionAll, left_out)


def _find_without_partner(frames: Frames, plan: JoinPlan, stage: str) -> DataFrame:
    """Return the rows of an input that have no match in at least one other required input."""
    others = [each for each in plan.order if each in plan.required and each != stage]
    row = F.to_json(F.struct(*map(quote_column, frames[stage].columns)), {"ignoreNullFields": "false"})
    left_out = [F.lit(stage).alias("input"), row.alias("row")]
    if plan.expression is not None:
        mine, theirs = (frames[each].alias(plan.aliases[each]) for each in (stage, *others))
        return mine.join(theirs, F.expr(plan.expression), "left_anti").select(*left_out)
    mine = frames[stage].select(*left_out, *_list_key_columns(plan, stage))
    partners = reduce(
        lambda found, each: found.join(
            frames[each].select(*_list_key_columns(plan, each)),
            _build_condition(plan, others[0], each),
            "left_semi",
        ),
        others[1:],
        frames[others[0]].select(*_list_key_columns(plan, others[0])),
    )
    return mine.join(partners, _build_condition(plan, stage, others[0]), "left_anti").select("input", "row")


def _list_key_columns(plan: JoinPlan, stage: str) -> list[Column]:
    return [
        quote_column(field).alias(_name_key(stage, place)) for place, field in enumerate(plan.keys[stage])
    ]


def _build_condition(plan: JoinPlan, left: str, right: str) -> Column:
    pairs = [
        (quote_column(_name_key(left, place)), quote_column(_name_key(right, place)))
        for place in range(len(plan.keys[left]))
    ]
    return all_of(a.eqNullSafe(b) if plan.nulls_match else a == b for a, b in pairs)


def _name_key(stage: str, place: int) -> str:
    return f"__merge_key_{stage}_{place}"
