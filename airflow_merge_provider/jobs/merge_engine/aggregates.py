"""Build the Spark aggregates that compute column values, one per column or sequence group.

Conditions are part of the ordering expression of ``max_by`` and ``min_by``, which skip records whose
ordering is null.
Source: docs/semantics/merge_engine.md, Execution in Spark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property

from pyspark.sql import Column, functions as F

from airflow_merge_provider.core.merge_engine import refusals
from airflow_merge_provider.core.merge_engine.columns import INTEGERS, type_text
from airflow_merge_provider.core.merge_engine.exact_numbers import INFINITE, TOO_MANY_DIGITS
from airflow_merge_provider.core.merge_engine.functions import SERIALIZED
from airflow_merge_provider.core.merge_engine.options import DEDUPLICATE, FIRST_ROW
from airflow_merge_provider.core.merge_engine.plan import ColumnRole, ColumnRule, Plan
from airflow_merge_provider.jobs.merge_engine import serialized
from airflow_merge_provider.jobs.merge_engine.records import (
    ADDS,
    LIVE,
    RECORD_POSITION,
    STORED,
    any_set,
    group_order,
    is_cleared,
)
from airflow_merge_provider.jobs.spark import sql

_RECORD_ROW = "#row"
_LIVE_ROW = "#lives"


class Aggregates:
    """The aggregates of a plan per key, and the expressions that derive column values from them."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def list_aggregates(self) -> Iterator[Column]:
        """Yield the aggregates over the records of a key."""
        plan = self._plan
        if plan.engine in {DEDUPLICATE, FIRST_ROW}:
            yield self._whole_row().alias(_RECORD_ROW)
            return
        if not plan.folds_rows:
            yield F.max(sql.quote_column(LIVE) & sql.quote_column(ADDS)).alias(_LIVE_ROW)
        for group_index in range(len(plan.groups)):
            if not plan.folds_rows:
                yield self._aggregate_group(group_index).alias(_group_name(group_index))
        for rule in plan.rules:
            if not rule.folded and rule.role in {ColumnRole.SEQUENCE, ColumnRole.FREE, ColumnRole.FUNCTION}:
                yield _ColumnAggregate(plan, rule).expression.alias(rule.name)

    def has_row(self) -> Column:
        """Return whether the key has a row; only for plans without ``folds_rows``."""
        if self._plan.engine == DEDUPLICATE:
            return F.coalesce(sql.quote_column(_RECORD_ROW)[ADDS], F.lit(False))
        if self._plan.engine == FIRST_ROW:
            return sql.quote_column(_RECORD_ROW).isNotNull()
        return F.coalesce(sql.quote_column(_LIVE_ROW), F.lit(False))

    def build_value(self, rule: ColumnRule) -> Column:
        """Return the value of a column, derived from the aggregates."""
        if rule.column.kind == "void":
            return F.lit(None)
        if rule.role is ColumnRole.WHOLE_ROW:
            return sql.quote_column(_RECORD_ROW)[rule.name]
        if rule.folded or rule.role in {ColumnRole.KEY, ColumnRole.SEQUENCE, ColumnRole.FREE}:
            return sql.quote_column(rule.name)
        if rule.role in {ColumnRole.ORDER, ColumnRole.PROTECTED}:
            newest = sql.quote_column(_group_name(rule.group or 0))
            if rule.role is ColumnRole.ORDER:
                return newest[rule.name]
            return F.when(newest[ADDS], newest[rule.name])
        return _cast_to_column(rule)

    def list_problems(self) -> Iterator[Column]:
        """Yield, for each column whose value may be invalid, the error text; NULL if the value is valid."""
        for rule in self._plan.rules:
            if rule.function == "rbm32":
                is_broken = (F.size(sql.quote_column(rule.name)) > 0) & _cast_to_column(rule).isNull()
                yield F.when(is_broken, F.lit(refusals.broken_bitmap(rule)))
            if rule.role is ColumnRole.FUNCTION and not rule.folded and _can_overflow(rule):
                yield _find_overflow(rule)

    def _whole_row(self) -> Column:
        plan = self._plan
        columns = [sql.quote_column(name) for name in plan.values]
        if plan.engine == FIRST_ROW:
            first = F.when(sql.quote_column(LIVE) & sql.quote_column(ADDS), sql.quote_column(RECORD_POSITION))
            return F.min_by(F.struct(sql.quote_column(ADDS), *columns), first)
        return F.max_by(
            F.struct(sql.quote_column(ADDS), *columns),
            F.when(sql.quote_column(LIVE), sql.quote_column(RECORD_POSITION)),
        )

    def _aggregate_group(self, group_index: int) -> Column:
        """Return the newest record of a group: ordering columns, protected columns, whether it adds."""
        plan, group = self._plan, self._plan.groups[group_index]
        column_names = [
            rule.name
            for rule in plan.rules
            if rule.group == group_index and rule.role in {ColumnRole.ORDER, ColumnRole.PROTECTED}
        ]
        newest = F.struct(sql.quote_column(ADDS), *map(sql.quote_column, column_names))
        return F.max_by(
            newest, F.when(sql.quote_column(LIVE) & any_set(group.order), group_position(plan, group_index))
        )


def group_position(plan: Plan, group_index: int) -> Column:
    """Return the sort key of records in a sequence group: its ordering columns, then the position."""
    return F.struct(*group_order(plan, group_index), sql.quote_column(RECORD_POSITION))


class _ColumnAggregate:
    """The aggregate of one column that has a rule of its own."""

    def __init__(self, plan: Plan, rule: ColumnRule) -> None:
        self._rule = rule
        self._value = sql.quote_column(rule.name)
        self._position = (
            sql.quote_column(RECORD_POSITION) if rule.group is None else group_position(plan, rule.group)
        )
        self._taken = sql.quote_column(LIVE)
        if rule.group is not None:
            self._taken &= any_set(plan.groups[rule.group].order)
        if rule.options.ignore_retract:
            self._taken &= sql.quote_column(ADDS)
        # A record sets the column if its value is not null or if it clears the column explicitly.
        self._said = self._value.isNotNull()
        if rule.name in plan.clearable:
            self._said |= is_cleared(rule.name)

    @property
    def expression(self) -> Column:
        """The aggregate over the column's values."""
        if self._rule.role is ColumnRole.SEQUENCE:
            return F.max_by(self._value, self._find_position(self._taken))
        if self._rule.role is ColumnRole.FREE:
            return F.max_by(self._value, self._find_position(self._added & self._said))
        return self._functions[str(self._rule.function)]()

    @property
    def _added(self) -> Column:
        return self._taken & sql.quote_column(ADDS)

    def _find_position(self, condition: Column) -> Column:
        return F.when(condition, self._position)

    @cached_property
    def _functions(self) -> Mapping[str, Callable[[], Column]]:
        value, added = self._value, self._added
        value_if_added = F.when(sql.quote_column(ADDS), value)
        return {
            "sum": self._aggregate_sum,
            "count": self._aggregate_count,
            "max": lambda: F.max(F.when(added, value)),
            "min": lambda: F.min(F.when(added, value)),
            "bool_and": lambda: F.bool_and(F.when(added, value)),
            "bool_or": lambda: F.bool_or(F.when(added, value)),
            "last_value": lambda: F.max_by(value_if_added, self._find_position(self._taken)),
            "last_non_null_value": lambda: F.max_by(
                value_if_added, self._find_position(self._taken & self._said)
            ),
            "first_value": lambda: F.min_by(value, self._find_position(added)),
            "first_non_null_value": lambda: F.min_by(value, self._find_position(added & value.isNotNull())),
            "primary-key": lambda: F.max_by(value, self._find_position(self._taken)),
            "hll_sketch": lambda: self._aggregate_sketch(F.hll_union_agg(F.when(added, value), F.lit(True))),
            "theta_sketch": lambda: self._aggregate_sketch(F.theta_union_agg(F.when(added, value))),
            "rbm32": lambda: F.collect_list(F.when(added, value)),
        }

    def _aggregate_sketch(self, union: Column) -> Column:
        """Return NULL if there is no sketch; Spark's union of no sketches is an empty sketch."""
        return F.when(F.count(F.when(self._added, self._value)) > 0, union)

    def _aggregate_sum(self) -> Column:
        family = str(self._rule.column.family)
        wide = self._value if family == "decimal" else self._value.cast(_WIDE.get(family, "double"))
        signed = F.when(self._taken, F.when(sql.quote_column(ADDS), wide).otherwise(-wide))
        count = F.count(signed).alias("values")
        if family not in _FLOAT_NAMES:
            return F.struct(F.try_sum(signed).alias("value"), count)
        # A sum that is infinite in one order of its values only is finite if they are made smaller before.
        total, scaled = F.sum(signed), F.sum(signed * F.lit(1 / _SCALE)) * F.lit(_SCALE)
        value = F.when(_is_finite(total), total).otherwise(scaled).alias("value")
        return F.struct(value, count, F.bool_and(_is_finite(signed)).alias("finite"))

    def _aggregate_count(self) -> Column:
        """Sum the stored count, 1 for each added and -1 for each retracted value; NULL values count 0."""
        sign = F.when(sql.quote_column(ADDS), F.lit(1)).otherwise(F.lit(-1))
        step = F.when(self._value.isNull(), F.lit(0)).otherwise(sign).cast("bigint")
        counted = F.when(
            self._taken, F.when(sql.quote_column(STORED), self._value.cast("bigint")).otherwise(step)
        )
        return F.struct(F.try_sum(counted).alias("value"), F.count(counted).alias("values"))


# These types are wide enough for the sum of as many values as a cluster can hold.
_WIDE = dict.fromkeys(INTEGERS, "bigint") | {"long": "decimal(28,0)"}
_FLOAT_NAMES = frozenset({"float", "double"})
# A power of two, so that no digit changes.
_SCALE = 2.0**64


def _group_name(group_index: int) -> str:
    return f"#group{group_index}"


def _can_overflow(rule: ColumnRule) -> bool:
    return rule.function in {"sum", "count"}


def _is_finite(value: Column) -> Column:
    # NaN is the greatest number.
    return F.abs(value) < F.lit(math.inf)


def _find_overflow(rule: ColumnRule) -> Column:
    """Return the error text if a sum or count does not fit its column, else NULL."""
    total, result = sql.quote_column(rule.name), _cast_to_column(rule)
    if rule.column.family in _FLOAT_NAMES:
        exceeds, value_text = total["finite"] & ~_is_finite(result), F.lit(INFINITE)
    else:
        # A sum of decimals is NULL if it has more digits than any decimal.
        exceeds = result.isNull() & (total["values"] > 0)
        value_text = F.coalesce(total["value"].cast("string"), F.lit(TOO_MANY_DIGITS))
    prefix = f"overflow: {rule.function} of column {rule.name!r} is "
    suffix = f", out of range for {type_text(rule.column.kind)}"
    return F.when(exceeds, F.concat(F.lit(prefix), value_text, F.lit(suffix)))


def _cast_to_column(rule: ColumnRule) -> Column:
    """Return the value in the column's type; NULL if it is too large for the type."""
    gathered = sql.quote_column(rule.name)
    if rule.function == "rbm32":
        return serialized.unite_bitmaps(gathered)
    if rule.function in SERIALIZED:
        return serialized.compact_sketch(str(rule.function), gathered)
    return gathered["value"].try_cast(rule.column.kind) if _can_overflow(rule) else gathered
