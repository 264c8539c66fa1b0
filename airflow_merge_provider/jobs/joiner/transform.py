"""The translation of a join plan into one lazy DataFrame, and of the rows without a match.

Every field gets an internal name from the positions of its input and of the field, so that names that are
equal, or that differ only in case, cannot collide.
Source: docs/semantics/joiner.md, Join plan; Hints; Conditions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, functions as F

from airflow_merge_provider.core.joiner.plan import JoinPlan, Salt
from airflow_merge_provider.core.schema.key_types import is_comparable
from airflow_merge_provider.jobs.spark.exact_text import shown_row
from airflow_merge_provider.jobs.spark.expressions import combine_with_and
from airflow_merge_provider.jobs.spark.key_columns import build_key_columns
from airflow_merge_provider.jobs.spark.sql import quote_column, quote_name

Frames = Mapping[str, DataFrame]

_SALT_COLUMN, _COPY = "__merge_salt", "__merge_salt_copy"


@dataclass(frozen=True, slots=True)
class _JoinedInputs:
    """The inputs joined so far: their rows, the columns that are compared, and which match on nulls."""

    rows: DataFrame
    keys: tuple[Column, ...]
    nulls: tuple[bool, ...]


def join_frames(frames: Frames, plan: JoinPlan) -> DataFrame:
    """Return the joined rows: key columns, then the selected columns in order, then the indicator column.

    :raises AnalysisException: when the plan's expression does not resolve or is no boolean.
    """
    return _by_expression(frames, plan) if plan.expression is not None else _by_chain(frames, plan)


def _by_chain(frames: Frames, plan: JoinPlan) -> DataFrame:
    """Join the inputs on their key fields; a cross join has no key fields."""
    first, *other_sides = (_build_side(frames[stage], plan, stage) for stage in plan.order)
    rows = _in_pairs([first, *other_sides]) if plan.coalesced else _in_a_row(first, other_sides, plan)
    outputs = [
        F.col(_name_cell(plan, output.stage, output.source)).alias(output.field.name)
        for output in plan.outputs
    ]
    return rows.select(*_key_columns(plan), *outputs, *_build_indicator(plan))


def _build_side(frame: DataFrame, plan: JoinPlan, stage: str) -> _JoinedInputs:
    clauses = zip(_list_key_cells(plan, stage), plan.comparisons, plan.null_keys.get(stage, ()), strict=True)
    columns = [
        (column, has_nulls)
        for cell, comparison, has_nulls in clauses
        for column in build_key_columns(cell, comparison)
    ]
    return _JoinedInputs(
        _select_needed(frame, plan, stage),
        tuple(column for column, _ in columns),
        tuple(has_nulls for _, has_nulls in columns),
    )


def _in_a_row(first: _JoinedInputs, other_sides: Sequence[_JoinedInputs], plan: JoinPlan) -> DataFrame:
    """Join the other inputs to the first one by one; the rows stay partitioned by the key of the first."""
    joined_rows = F.broadcast(first.rows) if plan.first_in_memory else first.rows
    for side, step in zip(other_sides, plan.steps, strict=True):
        rows, matches = side.rows, _build_conditions(first, side)
        if plan.salt is not None:
            rows = rows.withColumn(_COPY, F.explode(F.sequence(F.lit(0), F.lit(plan.salt.factor - 1))))
            matches.append(F.col(_SALT_COLUMN) == F.col(_COPY))
        if step.in_memory:
            rows = F.broadcast(rows)
        is_cross = step.how == "cross"
        joined_rows = (
            joined_rows.crossJoin(rows)
            if is_cross
            else joined_rows.join(rows, combine_with_and(matches), step.how)
        )
    return joined_rows


def _in_pairs(sides: Sequence[_JoinedInputs]) -> DataFrame:
    """Join the inputs in pairs, then the results in pairs, and so on.

    Spark does not track the partitioning of the rows of a full join, so it shuffles them again for the next
    join. Pairs reduce the number of rows and columns that are shuffled again.
    """
    while len(sides) > 1:
        pairs = [sides[start : start + 2] for start in range(0, len(sides), 2)]
        sides = [reduce(_join_sides, pair) for pair in pairs]
    return sides[0].rows


def _join_sides(left: _JoinedInputs, right: _JoinedInputs) -> _JoinedInputs:
    """Join two sides with a full join.

    All inputs that contribute to a row have the same key, so the first non-null key is the key of the row.
    """
    rows = left.rows.join(right.rows, combine_with_and(_build_conditions(left, right)), "full")
    keys = tuple(F.coalesce(*pair) for pair in zip(left.keys, right.keys, strict=True))
    return _JoinedInputs(rows, keys, tuple(a or b for a, b in zip(left.nulls, right.nulls, strict=True)))


def _build_conditions(left: _JoinedInputs, right: _JoinedInputs) -> list[Column]:
    pairs = zip(left.keys, right.keys, left.nulls, right.nulls, strict=True)
    return [
        left_key.eqNullSafe(right_key) if left_null and right_null else left_key == right_key
        for left_key, right_key, left_null, right_null in pairs
    ]


def _by_expression(frames: Frames, plan: JoinPlan) -> DataFrame:
    """Join two inputs under their aliases, with all fields, because the expression may refer to any field."""
    (step,) = plan.steps
    left, right = (_select_all(frames[stage], plan, stage) for stage in plan.order)
    left = F.broadcast(left) if plan.first_in_memory else left
    right = F.broadcast(right) if step.in_memory else right
    rows = left.join(right, F.expr(str(plan.expression)), step.how)
    outputs = [
        F.col(quote_name(plan.aliases[output.stage], output.source)).alias(output.field.name)
        for output in plan.outputs
    ]
    return rows.select(*outputs, *_build_indicator(plan))


def _select_needed(frame: DataFrame, plan: JoinPlan, stage: str) -> DataFrame:
    """Select the fields that the key and output columns need, under internal names."""
    columns = [
        quote_column(field).alias(_name_cell(plan, stage, field)) for field in plan.list_needed_fields(stage)
    ]
    if plan.indicator is not None:
        columns.append(F.lit(True).alias(_name_presence_column(plan, stage)))
    if plan.salt is not None and stage == plan.salt.stage:
        columns.append(_build_salt(plan, plan.salt).alias(_SALT_COLUMN))
    return frame.select(*columns)


def _select_all(frame: DataFrame, plan: JoinPlan, stage: str) -> DataFrame:
    """Select all fields under their own names and the alias of the input."""
    presence_columns = (
        [] if plan.indicator is None else [F.lit(True).alias(_name_presence_column(plan, stage))]
    )
    return frame.select("*", *presence_columns).alias(plan.aliases[stage])


def _build_salt(plan: JoinPlan, salt: Salt) -> Column:
    """Build the salt that distributes the rows of a key over partitions.

    It is a hash of the whole row, so that a retried task computes the same salt.
    """
    columns = [quote_column(field.name) for field in plan.schemas[salt.stage] if is_comparable(field.type)]
    return F.pmod(F.xxhash64(*columns), F.lit(salt.factor)).cast("int")


def list_key_columns(plan: JoinPlan, stage: str) -> list[Column]:
    """Return the columns of an input that are compared with those of other inputs, in the same order."""
    return [
        column
        for field, comparison in zip(plan.keys[stage], plan.comparisons, strict=True)
        for column in build_key_columns(quote_column(field), comparison)
    ]


def _list_key_cells(plan: JoinPlan, stage: str) -> list[Column]:
    return [F.col(_name_cell(plan, stage, field)) for field in plan.keys.get(stage, ())]


def _key_columns(plan: JoinPlan) -> list[Column]:
    """Build the key columns: the key of the first input in a row; all inputs in a row have the same key."""
    if not plan.key_columns:
        return []
    cells_by_column = zip(
        plan.key_columns, *(_list_key_cells(plan, stage) for stage in plan.order), strict=True
    )
    return [F.coalesce(*cells).alias(field.name) for field, *cells in cells_by_column]


def _build_indicator(plan: JoinPlan) -> list[Column]:
    """Build the indicator column: the names of the inputs that contribute to a row, in declared order."""
    if plan.indicator is None:
        return []
    present_inputs = [
        F.when(F.col(_name_presence_column(plan, stage)), F.lit(stage)) for stage in plan.schemas
    ]
    return [F.array_compact(F.array(*present_inputs)).alias(plan.indicator)]


def _name_cell(plan: JoinPlan, stage: str, field: str) -> str:
    names = [schema_field.name for schema_field in plan.schemas[stage]]
    return f"__merge_{list(plan.schemas).index(stage)}_{names.index(field)}"


def _name_presence_column(plan: JoinPlan, stage: str) -> str:
    return f"__merge_{list(plan.schemas).index(stage)}_there"


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
