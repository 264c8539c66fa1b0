"""Build expressions: combine many columns in a tree of low depth, and cast values.

Spark walks expressions recursively, and so do the messages of Spark Connect: a chain of some hundred
operators, one for each column of a wide table, overflows the stack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from pyspark.sql import Column, DataFrame, functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType
from pyspark.sql.utils import is_remote

from airflow_merge_provider.jobs.spark.sql import quote_column


def add_columns(frame: DataFrame, columns: Mapping[str, Column]) -> DataFrame:
    """Add or replace columns; the mapping may be empty, which Spark Connect itself does not accept."""
    return frame.withColumns(dict(columns)) if columns else frame


def cast_to(value: Column, kind: DataType | str) -> Column:
    """Cast to a type of a DataFrame's schema, or to a type given in SQL.

    Spark Connect would turn a plain string type into one with an explicit collation, which delta-rs and other
    readers of a table do not support.
    """
    return value.cast(_with_plain_strings(kind) if isinstance(kind, DataType) and is_remote() else kind)


def drop_collations(rows: DataFrame) -> DataFrame:
    """Return rows whose texts are equal only if their bytes are, as those of other columns.

    Spark compares, hashes and sorts a text with a collation such as UNICODE_CI by other rules.
    """
    kinds = {field.name: _without_collations(field.dataType) for field in rows.schema}
    plain = {
        field.name: cast_to(quote_column(field.name), kinds[field.name])
        for field in rows.schema
        if field.dataType != kinds[field.name]
    }
    return add_columns(rows, plain)


def _with_plain_strings(kind: DataType) -> DataType:
    return _replace_texts(kind, lambda text: StringType("") if text.isUTF8BinaryCollation() else text)


def _without_collations(kind: DataType) -> DataType:
    return _replace_texts(kind, lambda text: text if text.isUTF8BinaryCollation() else StringType())


def _replace_texts(kind: DataType, replace: Callable[[StringType], StringType]) -> DataType:
    """Return a type with other types of its texts; CHAR and VARCHAR stay."""
    if isinstance(kind, StringType) and type(kind) is StringType:
        return replace(kind)
    if isinstance(kind, ArrayType):
        return ArrayType(_replace_texts(kind.elementType, replace), kind.containsNull)
    if isinstance(kind, MapType):
        key, value = (_replace_texts(part, replace) for part in (kind.keyType, kind.valueType))
        return MapType(key, value, kind.valueContainsNull)
    if isinstance(kind, StructType):
        fields = ((field.name, _replace_texts(field.dataType, replace), field.nullable) for field in kind)
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
