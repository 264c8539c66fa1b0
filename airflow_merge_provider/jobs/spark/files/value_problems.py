"""Values of files that Spark changes in silence: texts that are not UTF-8, and old days of ORC files.

Source: docs/values.md, Files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pyspark.sql import Column, functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from airflow_merge_provider.jobs.spark.files.foreign_times import GREGORIAN_START
from airflow_merge_provider.jobs.spark.sql import quote_column

_EXAMPLE_MAX_LENGTH = 100
# Returns what is wrong with a value that is not NULL, or NULL; None if each value of the type is right.
Rule = Callable[[Column, DataType], Column | None]


def describe_invalid_text(schema: StructType) -> Column:
    """Return which column of a record has a text that is not UTF-8; NULL if none has."""
    problems = (
        describe_value(quote_column(field.name), field.dataType, field.name, find_invalid_text)
        for field in schema.fields
    )
    return or_null(combine_problems(problems))


def describe_value(
    value: Column, kind: DataType, path: str, rule: Rule, prefix: str = "column {!r} has "
) -> Column | None:
    """Return the path of what is wrong with a value or in it, and the problem; NULL if nothing is.

    :param prefix: how a problem begins, with its path.
    :return: None if each value of the type is right.
    """
    own = rule(value, kind)
    text = None if own is None else F.concat(F.lit(prefix.format(path)), own)
    problem = None if text is None else F.when(value.isNotNull(), text)

    def describe_items(items: Column, inner: DataType, name: str) -> Column | None:
        inner_path = f"{path}.{name}"
        return find_in_items(items, lambda item: describe_value(item, inner, inner_path, rule, prefix))

    parts: list[Column | None] = []
    if isinstance(kind, StructType):
        parts = [
            describe_value(value[field.name], field.dataType, f"{path}.{field.name}", rule, prefix)
            for field in kind.fields
        ]
    elif isinstance(kind, ArrayType):
        parts = [describe_items(value, kind.elementType, "element")]
    elif isinstance(kind, MapType):
        parts = [
            describe_items(F.map_keys(value), kind.keyType, "key"),
            describe_items(F.map_values(value), kind.valueType, "value"),
        ]
    return combine_problems([problem, *parts])


def combine_problems(problems: Iterable[Column | None]) -> Column | None:
    """Return the first problem of a record; None if there are none to look for."""
    columns = [problem for problem in problems if problem is not None]
    return F.coalesce(*columns) if columns else None


def find_in_items(items: Column, describe_item: Callable[[Column], Column | None]) -> Column | None:
    """Return the first problem of the items of a list; None if there is none to look for."""
    if describe_item(F.lit(None)) is None:
        return None
    problems = F.transform(items, lambda item: or_null(describe_item(item)))
    return F.get(F.filter(problems, F.isnotnull), F.lit(0))


def or_null(problem: Column | None) -> Column:
    """Return the column of a problem, with NULL if there is none to look for."""
    return F.lit(None).cast("string") if problem is None else problem


def find_invalid_text(value: Column, kind: DataType) -> Column | None:
    """Return the problem of a text that is not UTF-8: other readers refuse it, and Spark changes it."""
    if not isinstance(kind, StringType):
        return None
    example = F.left(F.make_valid_utf8(value), F.lit(_EXAMPLE_MAX_LENGTH))
    problem = F.concat(F.lit("a text that is not UTF-8 (write it as binary), such as '"), example, F.lit("'"))
    return F.when(~F.is_valid_utf8(value), problem)


def find_old_day(value: Column, kind: DataType) -> Column | None:
    """Return the problem of a day of an ORC file that is another one in the calendar of Spark."""
    if not isinstance(kind, DateType | TimestampType):
        return None
    problem = F.concat(
        F.lit(f"a {kind.simpleString().upper()} before {GREGORIAN_START}, which Spark reads as '"),
        value.cast("string"),
        F.lit(
            "': the file does not name its calendar (write Parquet, or set the option "
            "orc.proleptic.gregorian.default to true for files of pyarrow, pandas, polars or DuckDB, and to "
            "false for those of Hive)"
        ),
    )
    return F.when(value < F.lit(GREGORIAN_START).cast(kind), problem)
