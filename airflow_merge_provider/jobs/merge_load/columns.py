"""Map the rows of a load to the target's columns and types, hash their content, and find false flags."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_load.columns import check_layout
from airflow_merge_provider.core.merge_load.load import SchemaEvolution
from airflow_merge_provider.core.merge_load.timestamps import to_microseconds
from airflow_merge_provider.core.schema.key_types import FindExample
from airflow_merge_provider.jobs.delta.stored_values import require_storable
from airflow_merge_provider.jobs.spark import sql
from airflow_merge_provider.jobs.spark.errors import first_line
from airflow_merge_provider.jobs.spark.exact_text import exact_sql, has_equality
from airflow_merge_provider.jobs.spark.sql import quote_column, quote_name

# Texts of flags that most systems write for false, in lower case.
_FALSE_TEXTS = ("", "0", "false", "f", "no", "n", "off")


@dataclass(frozen=True, slots=True)
class TargetColumns:
    """The columns that come from the source, in the target's order and types."""

    fields: tuple[StructField, ...]
    new: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The column names."""
        return tuple(field.name for field in self.fields)

    def find_type(self, name: str) -> DataType | None:
        """Return the type of a column; None if there is no such column."""
        return next((field.dataType for field in self.fields if field.name == name), None)

    def select_fields(self, names: Iterable[str]) -> list[StructField]:
        """Return some of the columns, ordered by name."""
        selected_names = set(names)
        return sorted(
            (field for field in self.fields if field.name in selected_names), key=lambda field: field.name
        )


def find_layout(
    source: StructType,
    stored: StructType | None,
    added: Sequence[str],
    evolution: SchemaEvolution,
    target: str,
    *,
    optional: Sequence[str] = (),
    keys: Sequence[str] = (),
    find_example: FindExample = lambda _: None,
) -> TargetColumns:
    """Return the columns and types that a load writes.

    Source: docs/semantics/merge_load.md, Target columns.

    ``optional`` are columns that a source may always leave out, ``keys`` those that identify a stored row.
    ``find_example`` returns a value of a column of the source.

    :raises DataError: with every column that does not fit.
    """
    stored_types = None if stored is None else list_types(stored)
    check_layout(
        list_types(source),
        stored_types,
        added,
        evolution,
        target,
        optional,
        keys=keys,
        find_example=find_example,
    )
    fields = tuple(
        StructField(field.name, field.dataType)
        for field in source.fields
        if not isinstance(field.dataType, NullType)
    )
    if stored is None:
        require_storable(fields, target)
        return TargetColumns(fields)
    stored_fields = tuple(field for field in stored.fields if field.name not in added)
    stored_names = {field.name for field in stored_fields}
    new = tuple(field for field in fields if field.name not in stored_names)
    added_fields = () if evolution.new_columns == "ignore" else new
    require_storable(added_fields, target)
    return TargetColumns((*stored_fields, *added_fields), tuple(field.name for field in added_fields))


def align_columns(source: DataFrame, layout: TargetColumns) -> list[Column]:
    """Return the target's columns of a source: cast, and NULL if the source does not have them."""
    names = set(source.columns)
    return [
        (quote_column(field.name) if field.name in names else F.lit(None))
        .cast(field.dataType)
        .alias(field.name)
        for field in layout.fields
    ]


def content_hash(fields: Sequence[StructField]) -> Column:
    """Return a hash of 32 characters over columns; a NULL column hashes as if it were missing.

    So a new column that is NULL does not change a hash, whereas a value in another column does.
    """
    parts: list[Column] = []
    for field in sorted(fields, key=lambda column: column.name):
        value = F.expr(_hashable_text(field))
        # Spark's hash skips NULLs, so the hashed name before each value identifies its column.
        parts += [F.when(value.isNotNull(), F.lit(_hash_name(field.name))), value]
    halves = [F.lpad(F.hex(F.xxhash64(F.lit(seed), *parts)), 16, "0") for seed in (1, 2)]
    return F.concat(*halves)


def to_comparable(field: StructField, alias: str | None = None) -> Column:
    """Return a form of a column that is equal for equal values only."""
    return F.expr(comparable_text(field, alias))


def comparable_text(field: StructField, alias: str | None = None) -> str:
    """Return the comparable form of a column as SQL: the exact text of values that Spark cannot compare."""
    value = sql.quote_name(alias, field.name) if alias else sql.quote_name(field.name)
    return value if has_equality(field.dataType) else exact_sql(value, field.dataType)


def _hashable_text(field: StructField) -> str:
    """Return a value as SQL whose nested NULLs affect the hash: Spark's hash skips all NULLs."""
    value, kind = sql.quote_name(field.name), field.dataType
    if isinstance(kind, MapType) and has_equality(kind.keyType) and has_equality(kind.valueType):
        # The text of the entries is in the hashes of stored histories.
        entry = StructType([StructField("key", kind.keyType), StructField("value", kind.valueType)])
        return exact_sql(f"array_sort(map_entries({value}))", ArrayType(entry))
    is_nested = isinstance(kind, ArrayType | MapType | StructType)
    return exact_sql(value, kind) if is_nested or not has_equality(kind) else value


def refer_to_columns(names: Iterable[str], alias: str | None = None) -> list[Column]:
    """Return references to columns by their exact names."""
    return [F.col(sql.quote_name(alias, name)) if alias else quote_column(name) for name in names]


def moment_column(at: datetime | None) -> Column:
    """Return a time as a timestamp literal; NULL for None."""
    return F.lit(None).cast("timestamp") if at is None else F.timestamp_micros(F.lit(to_microseconds(at)))


def filter_rows(frame: DataFrame, condition: str, path: str) -> DataFrame:
    """Return the rows that satisfy a user's condition, which is given in the argument ``path``.

    :raises DataError: when it is no condition on these columns.
    """
    try:
        rows = frame.where(F.expr(condition))
        # Spark Connect knows the schema of filtered rows without analysing the filter.
        rows.select(F.lit(1)).schema  # noqa: B018 - analyses the filter
    except AnalysisException as error:
        raise DataError.from_problems(
            [Problem(path, "condition", first_line(error), "correct the condition")]
        ) from error
    return rows


def list_types(schema: StructType) -> dict[str, str]:
    """Return the type of each column by its name, as Spark's errors write types."""
    return {field.name: field.dataType.simpleString() for field in schema.fields}


def _hash_name(name: str) -> int:
    """Return a number that represents a column name in hashes and never changes."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)


def find_false_flag(source: DataFrame, flag: str | None) -> Column:
    """Return the text of a flag that looks false, NULL for others; NULL is not a flag."""
    kind: DataType | None = source.schema[flag].dataType if flag and flag in source.columns else None
    condition = None if flag is None else write_true_condition(kind, quote_name(flag))
    if flag is None or condition is None:
        return F.lit(None).cast("string")
    text = quote_column(flag).cast("string")
    is_text = isinstance(kind, StringType)
    looks_false = F.lower(F.trim(text)).isin(*_FALSE_TEXTS) if is_text else ~F.expr(condition)
    return F.when(looks_false, text)


def write_true_condition(kind: DataType | None, flag: str) -> str | None:
    """Return the condition under which a flag looks true; None for types without values that look false."""
    if isinstance(kind, StringType):
        return f"lower(trim({flag})) IN ('true', 't', 'yes', 'y', '1')"
    if isinstance(kind, NumericType):
        return f"{flag} <> 0"
    if isinstance(kind, DateType | TimestampType | TimestampNTZType):
        # Many systems write a time in the year 9999 for never.
        return f"year({flag}) < 9999"
    if isinstance(kind, BinaryType):
        return f"length({flag}) > 0"
    return f"size({flag}) > 0" if isinstance(kind, ArrayType | MapType) else None
