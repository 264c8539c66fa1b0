"""Casts that keep a value, or are said to lose it: numbers with all digits, times with all microseconds.

Source: docs/semantics/merge_record.md, Schema union.
"""

from __future__ import annotations

from pyspark.sql import Column, functions as F, types as T

from airflow_merge_provider.jobs.spark.exact_text import JSON_OPTIONS
from airflow_merge_provider.jobs.spark.expressions import cast_to
from airflow_merge_provider.jobs.spark.text_values import is_text_of, trim_zeros

# The digits of the largest number of an integer type.
_DIGITS_OF_INTEGERS: dict[type[T.DataType], int] = {
    T.ByteType: 3,
    T.ShortType: 5,
    T.IntegerType: 10,
    T.LongType: 19,
}
# The digits that each number of a type keeps: of all integers with so many digits.
_DIGITS_OF_FLOATS: dict[type[T.DataType], int] = {T.FloatType: 7, T.DoubleType: 15}
_MOMENTS = (T.TimestampType, T.TimestampNTZType)
_TIME_TYPES_OF_SPARK = (T.DateType, *_MOMENTS)


def cast_or_null(value: Column, source: T.DataType, kind: T.DataType) -> Column:
    """Return a value as another type; NULL if the type does not have it."""
    if isinstance(kind, T.StringType):
        return cast_to(_format_time(value) if isinstance(source, _MOMENTS) else value, kind)
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
        is_text = F.lit(True) if isinstance(kind, T.BinaryType) else is_text_of(value, kind)
        return cast.isNull() | ~(is_text & _is_same_text(value, cast, kind))
    if isinstance(source, T.DoubleType) and isinstance(kind, T.FloatType):
        infinite = F.lit(float("inf"))
        is_beyond = F.abs(cast).eqNullSafe(infinite) & (F.abs(value) != infinite)
        return is_beyond | ((cast == 0) & (value != 0))
    return cast.isNull() | ~cast.try_cast(source.simpleString()).eqNullSafe(value)


def _format_time(value: Column) -> Column:
    """Return a time as a text like that of a time in a JSON file, with its time zone if it has one."""
    return F.get_json_object(F.to_json(F.struct(value.alias("v")), JSON_OPTIONS), "$.v")


def _is_same_text(text: Column, cast: Column, kind: T.DataType) -> Column:
    """Return whether a text has the digits of the value that Spark has made of it."""
    if not isinstance(kind, T.NumericType):
        return F.lit(True)
    return trim_zeros(text).eqNullSafe(trim_zeros(cast.cast("string")))


def _holds_all(source: T.DataType, kind: T.DataType) -> bool:
    """Return whether a type has each number of another one."""
    digits, scale = _count_digits(source)
    if not digits:
        return isinstance(source, T.FloatType) and isinstance(kind, T.DoubleType)
    if isinstance(kind, T.DecimalType):
        return digits - scale <= kind.precision - kind.scale and scale <= kind.scale
    return scale == 0 and digits <= (
        _DIGITS_OF_INTEGERS.get(type(kind)) or _DIGITS_OF_FLOATS.get(type(kind), 0)
    )


def _count_digits(kind: T.DataType) -> tuple[int, int]:
    """Return the digits of a number and those after the point; none for other types."""
    return (
        (kind.precision, kind.scale)
        if isinstance(kind, T.DecimalType)
        else (_DIGITS_OF_INTEGERS.get(type(kind), 0), 0)
    )


def _can_cast(source: T.DataType, kind: T.DataType) -> bool:
    """Return whether values of one type may be values of another one: no number is a time or a boolean."""
    numbers = (isinstance(one, T.NumericType) for one in (source, kind))
    if isinstance(source, T.StringType):
        return not isinstance(kind, T.ArrayType | T.MapType | T.StructType | T.VariantType)
    if all(isinstance(one, _TIME_TYPES_OF_SPARK) for one in (source, kind)):
        return True
    return all(numbers)
