"""Casts that keep a value, or are said to lose it: numbers with all digits, times with all microseconds.

Source: docs/semantics/merge_record.md, Schema union.
"""

from __future__ import annotations

from pyspark.sql import Column, functions as F, types as T

from airflow_merge_provider.jobs.spark.expressions import cast_to
from airflow_merge_provider.jobs.spark.text_values import is_text_of, trim_zeros

# The digits of the largest number of an integer type.
_INTEGERS: dict[type[T.DataType], int] = {
    T.ByteType: 3,
    T.ShortType: 5,
    T.IntegerType: 10,
    T.LongType: 19,
}
# The digits that each number of a type keeps: of all integers with so many digits.
_FLOATS: dict[type[T.DataType], int] = {T.FloatType: 7, T.DoubleType: 15}
_TIMES = (T.DateType, T.TimestampType, T.TimestampNTZType)
# Spark's times have six digits of a second; further digits of a text are cut.
_NANOS = r"\.[0-9]{6}[0-9]*[1-9]"


def cast_or_null(value: Column, source: T.DataType, kind: T.DataType) -> Column:
    """Return a value as another type; NULL if the type does not have it."""
    if isinstance(kind, T.StringType):
        return cast_to(value, kind)
    return cast_to(value.try_cast(kind.simpleString()) if _can_cast(source, kind) else F.lit(None), kind)


def is_lost(value: Column, source: T.DataType, kind: T.DataType) -> Column | None:
    """Return whether a value is another one after its cast; None if no value of the type is.

    A DOUBLE may be rounded to a FLOAT.
    """
    if isinstance(kind, T.StringType):
        return ~F.is_valid_utf8(value.cast("string")) if isinstance(source, T.BinaryType) else None
    if _holds_all(source, kind):
        return None
    if not _can_cast(source, kind):
        return F.lit(True)
    cast = value.try_cast(kind.simpleString())
    if isinstance(source, T.StringType):
        text = F.trim(value)
        is_text = F.lit(True) if isinstance(kind, T.BinaryType) else is_text_of(text, kind)
        return cast.isNull() | ~(is_text & _is_same_text(text, cast, kind))
    if isinstance(source, T.DoubleType) and isinstance(kind, T.FloatType):
        return F.abs(cast).eqNullSafe(F.lit(float("inf"))) & (F.abs(value) != F.lit(float("inf")))
    return cast.isNull() | ~cast.try_cast(source.simpleString()).eqNullSafe(value)


def _is_same_text(text: Column, cast: Column, kind: T.DataType) -> Column:
    """Return whether a text has the digits of the value that Spark has made of it."""
    if isinstance(kind, T.NumericType):
        return trim_zeros(text).eqNullSafe(trim_zeros(cast.cast("string")))
    if isinstance(kind, T.DateType):
        time = text.try_cast("timestamp_ntz")
        return time.isNull() | time.eqNullSafe(cast.cast("timestamp_ntz"))
    return ~text.rlike(_NANOS) if isinstance(kind, _TIMES) else F.lit(True)


def _holds_all(source: T.DataType, kind: T.DataType) -> bool:
    """Return whether a type has each number of another one."""
    digits, scale = _count_digits(source)
    if not digits:
        return isinstance(source, T.FloatType) and isinstance(kind, T.DoubleType)
    if isinstance(kind, T.DecimalType):
        return digits - scale <= kind.precision - kind.scale and scale <= kind.scale
    return scale == 0 and digits <= (_INTEGERS.get(type(kind)) or _FLOATS.get(type(kind), 0))


def _count_digits(kind: T.DataType) -> tuple[int, int]:
    """Return the digits of a number and those after the point; none for other types."""
    return (
        (kind.precision, kind.scale) if isinstance(kind, T.DecimalType) else (_INTEGERS.get(type(kind), 0), 0)
    )


def _can_cast(source: T.DataType, kind: T.DataType) -> bool:
    """Return whether Spark has a cast between two types, which it has no function to ask for."""
    numbers = [isinstance(one, T.NumericType) for one in (source, kind)]
    if isinstance(source, T.StringType):
        return not isinstance(kind, T.ArrayType | T.MapType | T.StructType | T.VariantType)
    if all(isinstance(one, _TIMES) for one in (source, kind)):
        return True
    if any(isinstance(one, T.TimestampType) for one in (source, kind)):
        return any(numbers)
    return all(
        number or isinstance(one, T.BooleanType) for number, one in zip(numbers, (source, kind), strict=True)
    )
