"""Build expressions: combine many columns in a tree of low depth, and cast values.

Spark walks expressions recursively, and so do the messages of Spark Connect: a chain of some hundred
operators, one for each column of a wide table, overflows the stack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from pyspark.sql import Column, DataFrame, functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType
from pyspark.sql.utils import is_remote


def add_columns(frame: DataFrame, columns: Mapping[str, Column]) -> DataFrame:
    """Add or replace columns; the mapping may be empty, which Spark Connect itself does not accept."""
    return frame.withColumns(dict(columns)) if columns else frame


def cast_to(value: Column, kind: DataType | str) -> Column:
    """Cast to a type of a DataFrame's schema, or to a type given in SQL.

    Spark Connect would turn a plain string type into one with an explicit collation, which delta-rs and other
    readers of a table do not support.
    """
    return value.cast(_with_plain_strings(kind) if isinstance(kind, DataType) and is_remote() else kind)


def _with_plain_strings(kind: DataType) -> DataType:
    if isinstance(kind, StringType) and type(kind) is StringType and kind.isUTF8BinaryCollation():
        return StringType("")
    if isinstance(kind, ArrayType):
        return ArrayType(_with_plain_strings(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        key, value = map(_with_plain_strings, (kind.keyType, kind.valueType))
        return MapType(key, value, kind.valueContainsNull)
    if isinstance(kind, StructType):
        fields = ((field.name, _with_plain_strings(field.dataType), field.nullable) for field in kind)
        return StructType([StructField(*field) for field in fields])
    return kind


def combine_with_and(conditions: Iterable[Column]) -> Column:
    """Return whether all conditions hold; true if there are none."""
    return combine_columns(Column.__and__, conditions, F.lit(True))


def combine_with_or(conditions: Iterable[Column]) -> Column:
    """Return whether one of the conditions holds; false if there are none."""
    return combine_columns(Column.__or__, conditions, F.lit(False))


def build_array(parts: Iterable[tuple[Column, Sequence[Column]]], none: Column) -> Column:
    """Build an array of the items whose condition holds; ``none`` is an empty array.

    Spark compiles this expression. It does not compile functions that take a lambda, such as
    ``array_compact`` internally, nor the arguments of such a function.
    """
    return F.concat(
        none, *(F.when(condition, F.array(*items)).otherwise(F.array()) for condition, items in parts)
    )


def combine_columns(
    operation: Callable[[Column, Column], Column], columns: Iterable[Column], none: Column
) -> Column:
    """Combine columns by an associative operation; return ``none`` if there are no columns."""
    terms = list(columns) or [none]
    while len(terms) > 1:
        pairs = [operation(left, right) for left, right in zip(terms[::2], terms[1::2], strict=False)]
        terms = [*pairs, *terms[len(pairs) * 2 :]]
    return terms[0]
