"""The join as one DataFrame expression, as its plan says; nothing is read here.

Every field gets an internal name by the places of its input and of itself, so that names that are equal, or
that differ in case only, never meet. Source: joiner spec §2.2 (b), §8, §9.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, functions as F

from airflow_merge_provider.core.joiner.plan import JoinPlan, Salt, Step
from airflow_merge_provider.core.joiner.schema import comparable
from airflow_merge_provider.jobs.sql import column, name

Frames = Mapping[str, DataFrame]

_SALT, _COPY = "__merge_salt", "__merge_salt_copy"


def joined(frames: Frames, plan: JoinPlan) -> DataFrame:
    """Give the result: the key's columns, the chosen ones in order and under their names, the indicator.

    :raises AnalysisException: when the plan's expression does not resolve or is no boolean.
    """
    return _by_expression(frames, plan) if plan.expression is not None else _by_chain(frames, plan)


def _by_chain(frames: Frames, plan: JoinPlan) -> DataFrame:
    """Join one input after the other, each by its key fields; a cross join has none."""
    found = _slim(frames[plan.first], plan, plan.first)
    if plan.first_in_memory:
        found = F.broadcast(found)
    keys = _keys(plan, plan.first)
    for step in plan.steps:
        found = _next(found, _slim(frames[step.stage], plan, step.stage), keys, step, plan)
        if plan.coalesced:
            # The inputs that are there agree on the key, so the first of them tells it.
            keys = [F.coalesce(*pair) for pair in zip(keys, _keys(plan, step.stage), strict=True)]
    outputs = [
        F.col(_cell(plan, output.stage, output.source)).alias(output.field.name) for output in plan.outputs
    ]
    return found.select(*_key_columns(plan), *outputs, *_indicator(plan))


def _next(
    found: DataFrame, other: DataFrame, keys: Sequence[Column], step: Step, plan: JoinPlan
) -> DataFrame:
    if plan.salt is not None:
        copies = F.explode(F.sequence(F.lit(0), F.lit(plan.salt.factor - 1)))
        other = other.withColumn(_COPY, copies)
    if step.in_memory:
        other = F.broadcast(other)
    if step.how == "cross":
        return found.crossJoin(other)
    pairs = zip(keys, _keys(plan, step.stage), step.null_safe, strict=True)
    matches = [left.eqNullSafe(right) if null_safe else left == right for left, right, null_safe in pairs]
    if plan.salt is not None:
        matches.append(F.col(_SALT) == F.col(_COPY))
    return found.join(other, reduce(Column.__and__, matches), step.how)


def _by_expression(frames: Frames, plan: JoinPlan) -> DataFrame:
    """Join two inputs under their aliases, each with all its fields: the expression may name any."""
    (step,) = plan.steps
    left, right = (_whole(frames[stage], plan, stage) for stage in plan.order)
    left = F.broadcast(left) if plan.first_in_memory else left
    right = F.broadcast(right) if step.in_memory else right
    found = left.join(right, F.expr(str(plan.expression)), step.how)
    outputs = [
        F.col(name(plan.aliases[output.stage], output.source)).alias(output.field.name)
        for output in plan.outputs
    ]
    return found.select(*outputs, *_indicator(plan))


def _slim(frame: DataFrame, plan: JoinPlan, stage: str) -> DataFrame:
    """Keep the fields that keys and columns need, under internal names."""
    kept = [column(field).alias(_cell(plan, stage, field)) for field in plan.needed(stage)]
    if plan.indicator is not None:
        kept.append(F.lit(True).alias(_there(plan, stage)))
    if plan.salt is not None and stage == plan.salt.stage:
        kept.append(_salt(plan, plan.salt).alias(_SALT))
    return frame.select(*kept)


def _whole(frame: DataFrame, plan: JoinPlan, stage: str) -> DataFrame:
    """Keep all fields under their own names and the input's alias."""
    there = [] if plan.indicator is None else [F.lit(True).alias(_there(plan, stage))]
    return frame.select("*", *there).alias(plan.aliases[stage])


def _salt(plan: JoinPlan, salt: Salt) -> Column:
    """Spread a key over parts by what the whole row holds, so that a retried task spreads it likewise."""
    hashed = [column(field.name) for field in plan.schemas[salt.stage] if comparable(field.type)]
    return F.pmod(F.xxhash64(*hashed), F.lit(salt.factor)).cast("int")


def _keys(plan: JoinPlan, stage: str) -> list[Column]:
    return [F.col(_cell(plan, stage, field)) for field in plan.keys.get(stage, ())]


def _key_columns(plan: JoinPlan) -> list[Column]:
    """Show the key of the first input that is there; those that are agree on it."""
    if not plan.key_columns:
        return []
    by_place = zip(plan.key_columns, *(_keys(plan, stage) for stage in plan.order), strict=True)
    return [F.coalesce(*cells).alias(field.name) for field, *cells in by_place]


def _indicator(plan: JoinPlan) -> list[Column]:
    """List the inputs that are there, in declared order."""
    if plan.indicator is None:
        return []
    there = [F.when(F.col(_there(plan, stage)), F.lit(stage)) for stage in plan.schemas]
    return [F.array_compact(F.array(*there)).alias(plan.indicator)]


def _cell(plan: JoinPlan, stage: str, field: str) -> str:
    names = [each.name for each in plan.schemas[stage]]
    return f"__merge_{list(plan.schemas).index(stage)}_{names.index(field)}"


def _there(plan: JoinPlan, stage: str) -> str:
    return f"__merge_{list(plan.schemas).index(stage)}_there"
