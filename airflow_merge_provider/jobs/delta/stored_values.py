"""Prepare rows so that a Delta table holds their values as they are, and every reader can open it.

Spark Connect gives texts an explicit collation in casts and in results of Python functions. It does not show
in the schema of a DataFrame, but in that of a table, which only Spark can open then. Delta stores a partition
value as text, and takes an empty text for NULL.
Source: docs/guides/read_targets.md, Values of partition columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pyspark.sql import Column, DataFrame, functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    CalendarIntervalType,
    CharType,
    DataType,
    DayTimeIntervalType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimeType,
    VarcharType,
    YearMonthIntervalType,
)

from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.jobs.spark.causes import raise_problem
from airflow_merge_provider.jobs.spark.errors import LOST_PARTITION_VALUE
from airflow_merge_provider.jobs.spark.exact_text import shown_row
from airflow_merge_provider.jobs.spark.expressions import cast_to
from airflow_merge_provider.jobs.spark.sql import quote_column, quote_name

# Delta reads an empty text as NULL, and Spark writes NULL into the folder of the other name.
_NULL_TEXTS = ("", "__HIVE_DEFAULT_PARTITION__")
_LOST_ROW_MAX_CHARS = 300
# Types that Delta does not have, or that no reader but Spark has.
_UNSTORABLE = CalendarIntervalType | DayTimeIntervalType | NullType | TimeType | YearMonthIntervalType


def require_storable(fields: Iterable[StructField], table: str) -> None:
    """Raise an error if columns have types that a Delta table cannot hold, or that only Spark can read.

    :param table: the dataset that has or would get the columns.
    :raises DataError: with every such column.
    """
    problems = [
        Problem(
            table,
            "type",
            f"a Delta table cannot hold column {field.name!r} of type {field.dataType.simpleString()}",
            f"replace it by a column such as CAST({quote_name(field.name)} AS STRING) upstream",
        )
        for field in fields
        if _is_unstorable(field.dataType)
    ]
    if problems:
        raise DataError.from_problems(problems)


def _is_unstorable(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_is_unstorable(field.dataType) for field in kind.fields)
    if isinstance(kind, MapType):
        return _is_unstorable(kind.keyType) or _is_unstorable(kind.valueType)
    if isinstance(kind, ArrayType):
        return _is_unstorable(kind.elementType)
    # Only Spark opens a table whose texts have a collation.
    return isinstance(kind, _UNSTORABLE) or (
        isinstance(kind, StringType) and not kind.isUTF8BinaryCollation()
    )


def prepare_rows(rows: DataFrame, partitions: Collection[str], *, with_types: bool) -> DataFrame:
    """Return rows whose texts have no collation, and that raise an error instead of losing a partition value.

    The error is raised while the rows are written, so that nothing is committed and no row is read twice.

    :param partitions: the names of the partition columns of the table.
    :param with_types: whether the write can define types of columns.
    """
    if not partitions and not with_types:
        return rows
    names = {name.casefold() for name in partitions}
    fields = rows.schema.fields
    checked = {field.name for field in fields if field.name.casefold() in names and _is_text(field.dataType)}
    if not checked and not (with_types and any(_has_text(field.dataType) for field in fields)):
        return rows
    return rows.select(*(_prepare_column(rows, field, is_checked=field.name in checked) for field in fields))


def _check_partition(rows: DataFrame, name: str) -> Column:
    """Return a partition column that raises an error, with the row, if its value would be lost."""
    value = quote_column(name)
    example = F.substring(shown_row(rows, rows.columns), 1, _LOST_ROW_MAX_CHARS)
    problem = F.concat(F.lit(f"{LOST_PARTITION_VALUE} {name!r} in the row "), example)
    return F.when(_is_lost(value), raise_problem(F.lit(""), problem)).otherwise(value)


def _prepare_column(rows: DataFrame, field: StructField, *, is_checked: bool) -> Column:
    value = _check_partition(rows, field.name) if is_checked else quote_column(field.name)
    if _has_text(field.dataType):
        value = cast_to(value, field.dataType)
    return value.alias(field.name, metadata=field.metadata) if field.metadata else value.alias(field.name)


def _is_lost(value: Column) -> Column:
    """Return whether the text of a value is not a name of a folder that stands for this value only."""
    text = value.cast("string")
    return text.isin(*_NULL_TEXTS) | text.contains("\0") | ~F.is_valid_utf8(text)


def _is_text(kind: DataType) -> bool:
    return isinstance(kind, BinaryType | CharType | StringType | VarcharType)


def _has_text(kind: DataType) -> bool:
    """Return whether a type is a text, or contains one."""
    if isinstance(kind, StructType):
        return any(_has_text(field.dataType) for field in kind.fields)
    if isinstance(kind, MapType):
        return _has_text(kind.keyType) or _has_text(kind.valueType)
    return _has_text(kind.elementType) if isinstance(kind, ArrayType) else isinstance(kind, StringType)
