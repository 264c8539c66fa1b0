"""Exact sums and products: numbers that are gathered are rounded once, when their column gets them.

Source: docs/semantics/merge_engine.md, Aggregate functions.
"""

# ruff: noqa: ARG001 - all functions have one signature

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from fractions import Fraction
from typing import Any

from airflow_merge_provider.core.merge_engine.columns import find_bounds, find_precision, type_text
from airflow_merge_provider.core.merge_engine.plan import ColumnRule

# Nothing gathered yet: different from null, which locks first_value.
EMPTY: Any = object()

# What errors say of a result that is too large to be shown; Spark's aggregates say the same.
TOO_MANY_DIGITS = "a number with more than 38 digits"
INFINITE = "infinite"
_EXACT_CONTEXT = Context(MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)
_SHOWN_DIGITS_MAX = 38
_STRUCT_FORMATS = {"float": "<f", "double": "<d"}


class FoldError(ValueError):
    """Raised when records cannot be folded; the text is shown to users."""


def finish_number(gathered: Any, rule: ColumnRule) -> Any:
    """Return a sum, product or count as its column has it.

    :raises FoldError: when it is beyond what the column can hold.
    """
    if isinstance(gathered, float | Fraction) and rule.column.family in _STRUCT_FORMATS:
        return _round_to_float(gathered, rule)
    value = _round_to_scale(gathered, rule) if isinstance(gathered, Fraction) else gathered
    limits = find_bounds(rule.column.kind)
    if limits and not limits[0] <= value <= limits[1]:
        raise FoldError(_describe_overflow(rule, _show_number(value)))
    return value


def _round_to_float(value: float | Fraction, rule: ColumnRule) -> float:
    """Return a number as the column has it; an infinity among the values stays what it is."""
    code = _STRUCT_FORMATS[rule.column.family]
    try:
        return float(struct.unpack(code, struct.pack(code, float(value)))[0])
    except OverflowError as error:
        raise FoldError(_describe_overflow(rule, INFINITE)) from error


def _round_to_scale(value: Fraction, rule: ColumnRule) -> Decimal:
    """Return the decimal of the column that is nearest to a number, rounded half up."""
    _, scale = find_precision(rule.column.kind) or (0, 0)
    doubled, denominator = 2 * abs(value.numerator) * 10**scale, value.denominator
    digits = (doubled + denominator) // (2 * denominator)
    return Decimal(digits if value >= 0 else -digits).scaleb(-scale, _EXACT_CONTEXT)


def _show_number(value: int | Decimal) -> str:
    """Return a number as text; Python and Spark cannot show any number of digits."""
    digits = math.log10(abs(value)) if isinstance(value, int) else len(value.as_tuple().digits)
    return TOO_MANY_DIGITS if digits > _SHOWN_DIGITS_MAX else str(value)


def _describe_overflow(rule: ColumnRule, value: str) -> str:
    kind = type_text(rule.column.kind)
    return f"overflow: {rule.function} of column {rule.column.name!r} is {value}, out of range for {kind}"


def _apply_operation(operation: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """Return the exact result of an operation on two numbers; of infinities and NaN, that of floats.

    Only an exact result is the same for every order of records: it is rounded once, when it is finished.
    """
    if isinstance(right, int):
        return operation(left, right)
    if all(not isinstance(number, float) or math.isfinite(number) for number in (left, right)):
        return operation(Fraction(left), Fraction(right))
    return operation(_reduce_to_float(left), _reduce_to_float(right))


def _reduce_to_float(number: Any) -> float:
    """Return a float with the sign of a number, which is all that counts beside an infinity or NaN."""
    if isinstance(number, float) and not math.isfinite(number):
        return number
    return float((number > 0) - (number < 0))


def add_number(gathered: Any, value: Any, rule: ColumnRule) -> Any:
    return _apply_operation(operator.add, gathered, value)


def subtract_number(gathered: Any, value: Any, rule: ColumnRule) -> Any:
    if value is None:
        return gathered
    negative = -value if not isinstance(value, Decimal) else value.copy_negate()
    return negative if gathered is None or gathered is EMPTY else add_number(gathered, negative, rule)


def multiply_number(gathered: Any, value: Any, rule: ColumnRule) -> Any:
    return _apply_operation(operator.mul, gathered, value)


def divide_number(gathered: Any, value: Any, rule: ColumnRule) -> Any:
    if value is None or gathered is None or gathered is EMPTY:
        return gathered
    if not value:
        if isinstance(value, float):
            return _reduce_to_float(gathered) * math.copysign(math.inf, value)
        raise FoldError(f"product of column {rule.column.name!r} cannot retract a factor of zero")
    if isinstance(value, int):
        magnitude = abs(gathered) // abs(value)
        return magnitude if (gathered < 0) == (value < 0) else -magnitude
    quotient = _apply_operation(operator.truediv, gathered, value)
    if isinstance(value, Decimal) and not _is_finite_decimal(quotient):
        raise FoldError(
            f"product of column {rule.column.name!r} cannot retract {value}: "
            "the quotient is not a finite decimal"
        )
    return quotient


def _is_finite_decimal(value: Fraction) -> bool:
    denominator = value.denominator
    for factor in (2, 5):
        while denominator % factor == 0:
            denominator //= factor
    return denominator == 1
