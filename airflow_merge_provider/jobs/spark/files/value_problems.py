"""Values of files that Spark changes in silence: texts that are not UTF-8, old days of ORC, and INT96.

Source: docs/values.md, Files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc
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

from airflow_merge_provider.jobs.spark.sql import quote_column

# ORC's Java library, and so Spark, takes earlier days in files of others for those of the Julian calendar.
GREGORIAN_START = date(1582, 10, 15)
_NANOS_MAX = 2**63 - 1
_NANOS_PER_SECOND = 10**9
ODD_NANOS = "a time with nanoseconds, which Spark cuts"
_WRITTEN_BY_SPARK = b"org.apache.spark.version"


def is_written_by_spark(metadata: Mapping[bytes, bytes] | None) -> bool:
    """Return whether the metadata of a Parquet or ORC file is that of Spark."""
    return _WRITTEN_BY_SPARK in (metadata or {})


def find_odd_nanos(columns: Iterable[str], read: Callable[[str, str], pa.ChunkedArray]) -> str | None:
    """Return a column of INT96 with a time, also inside a value, whose nanoseconds Spark cuts; or None.

    :param read: returns the times of a column with a unit, as pyarrow reads them.
    """
    for name in columns:
        pairs = zip(_list_times(read(name, "ns")), _list_times(read(name, "us")), strict=True)
        if any(nanos.type != micros.type and _is_odd(nanos, micros) for nanos, micros in pairs):
            return name
    return None


def _is_odd(nanos: pa.ChunkedArray, micros: pa.ChunkedArray) -> bool:
    nanos, micros = nanos.cast(pa.int64()), micros.cast(pa.int64())
    # Times beyond the years that nanoseconds hold come out as others.
    is_held = pc.less(pc.abs(micros), _NANOS_MAX // 1000)
    is_odd = pc.not_equal(nanos, pc.multiply(pc.if_else(is_held, micros, 0), 1000))
    return bool(pc.any(pc.and_(is_held, is_odd)).as_py())


def find_lost_time(values: pa.ChunkedArray) -> str | None:
    """Return what is wrong with a time of an ORC file of another program, also inside a value; or None."""
    for times in _list_times(values):
        nanos = times.cast(pa.int64())
        is_fraction = pc.and_(pc.less(nanos, 0), _is_between(nanos, _NANOS_PER_SECOND))
        if pc.any(is_fraction).as_py():
            return "a TIMESTAMP before 1970 with a fraction of a second, which Spark cannot read in this file"
        if pc.any(_is_between(nanos, 1000)).as_py():
            return ODD_NANOS
    return None


def _list_times(values: pa.ChunkedArray) -> Iterator[pa.ChunkedArray]:
    """Yield the times in the values of a column."""
    kind = values.type
    parts: list[pa.ChunkedArray] = []
    if pa.types.is_timestamp(kind):
        yield values
    elif pa.types.is_struct(kind):
        parts = [pc.struct_field(values, [field.name]) for field in kind]
    elif pa.types.is_map(kind):
        parts = [pa.chunked_array([part]) for one in values.chunks for part in (one.keys, one.items)]
    elif pa.types.is_list(kind):
        parts = [pc.list_flatten(values)]
    for part in parts:
        yield from _list_times(part)


def _is_between(nanos: pa.ChunkedArray, unit: int) -> pa.ChunkedArray:
    """Return which times are not a whole number of units."""
    return pc.not_equal(nanos, pc.multiply(pc.divide(nanos, unit), unit))


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
