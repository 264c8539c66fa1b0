"""Select the rows that have no match in some required input."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, functions as F

from airflow_merge_provider.core.joiner.plan import JoinPlan
from airflow_merge_provider.jobs.joiner.transform import Frames
from airflow_merge_provider.jobs.spark.expressions import every
from airflow_merge_provider.jobs.spark.sql import column

UNMATCHED = "joiner_unmatched"


def unmatched(frames: Frames, plan: JoinPlan) -> DataFrame:
    """Give the name of the input and the whole row, as JSON, of every row that comes out nowhere."""
    left_out = [_left_out(frames, plan, stage) for stage in plan.schemas if plan.required - {stage}]
    return reduce(DataFrame.unionAll, left_out)


def _left_out(frames: Frames, plan: JoinPlan, stage: str) -> DataFrame:
    """Give an input's rows that lack a partner in some other required input."""
    others = [each for each in plan.order if each in plan.required and each != stage]
    row = F.to_json(F.struct(*map(column, frames[stage].columns)), {"ignoreNullFields": "false"})
    left_out = [F.lit(stage).alias("input"), row.alias("row")]
    if plan.expression is not None:
        mine, theirs = (frames[each].alias(plan.aliases[each]) for each in (stage, *others))
        return mine.join(theirs, F.expr(plan.expression), "left_anti").select(*left_out)
    mine = frames[stage].select(*left_out, *_keys(plan, stage))
    partners = reduce(
        lambda found, each: found.join(
            frames[each].select(*_keys(plan, each)), _match(plan, others[0], each), "left_semi"
        ),
        others[1:],
        frames[others[0]].select(*_keys(plan, others[0])),
    )
    return mine.join(partners, _match(plan, stage, others[0]), "left_anti").select("input", "row")


def _keys(plan: JoinPlan, stage: str) -> list[Column]:
    return [column(field).alias(_key(stage, place)) for place, field in enumerate(plan.keys[stage])]


def _match(plan: JoinPlan, left: str, right: str) -> Column:
    pairs = [(column(_key(left, place)), column(_key(right, place))) for place in range(len(plan.keys[left]))]
    return every(a.eqNullSafe(b) if plan.nulls_match else a == b for a, b in pairs)


def _key(stage: str, place: int) -> str:
    return f"__merge_key_{stage}_{place}"
