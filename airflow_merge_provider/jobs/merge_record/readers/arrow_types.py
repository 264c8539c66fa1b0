"""The fields of Parquet and ORC files, by the types that pyarrow finds in their metadata.

Source: docs/semantics/merge_record.md, Types of files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from airflow_merge_provider.core.merge_record.schema import VOID, Field, Schema, Type
from airflow_merge_provider.jobs.spark.files.container_files import INT96, describe_type, find_hint
from airflow_merge_provider.jobs.spark.files.file_problem import UnreadableError
from airflow_merge_provider.jobs.spark.files.value_problems import GREGORIAN_START, is_written_by_spark

_ARROW_TYPE_NAMES: dict[pa.DataType, str] = {
    pa.null(): VOID,
    pa.bool_(): "boolean",
    # Narrow integers are one type, as in Avro: files with some of each share bins.
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    # Types with a sign that hold all values of those without one.
    pa.uint8(): "int",
    pa.uint16(): "int",
    pa.uint32(): "long",
    pa.uint64(): "decimal(20,0)",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.date64(): "date",
}
_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BYTES = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
)
_LISTS = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)
# Types of pyarrow that Spark reads as they are stored.
_STORED = ("arrow.json",)
_DECIMAL_MAX_DIGITS = 38
# Spark's own name of a type, in the metadata of ORC files.
_CATALYST_KEY = b"spark.sql.catalyst.type"
_SECONDS_BEFORE = (GREGORIAN_START - date(1970, 1, 1)).days * 24 * 60 * 60
# How pyarrow refuses a time of ORC before 1677 or after 2262, which it reads as nanoseconds.
_BEYOND = re.compile(r"ORC timestamp \((-?[0-9]+)s")
_SPARK_ROW = b"org.apache.spark.sql.parquet.row.metadata"
_SPARK_ONLY = re.compile(r'"(?:type|elementType|keyType|valueType)": "((interval|variant|void)\b[^"]*)"')
_SPARK_HINTS = {
    "interval": "write it as text, or as a number with its unit in the name",
    "variant": "write it as text, with to_json",
    "void": "write it as another type",
}
NANOS = "timestamp_nanos"
NANOS_NTZ = "timestamp_ntz_nanos"


def convert_parquet_schema(schema: pa.Schema, columns: Iterable[parquet.ColumnSchema]) -> Schema:
    """Return the fields of a Parquet file.

    :param columns: the columns as they are stored: times as INT96 are a TIMESTAMP of Spark.
    :raises UnreadableError: if Spark cannot read a type, with the name of the column.
    """
    fields, stored = [], iter(columns)
    types = _read_spark_types(schema)
    for field in schema:
        _refuse_spark_type(field.name, types.get(field.name))
        if kind := _convert_nanos(field):
            next(stored)
        fields.append(_build_field(field, kind or _convert_parquet_field(stored, field, field.name)))
    return Schema(tuple(fields))


def _convert_parquet_field(stored: Iterator[parquet.ColumnSchema], field: pa.Field, path: str) -> Type:
    if pa.types.is_nested(field.type):
        return _convert_nested_type(field.type, path, partial(_convert_parquet_field, stored))
    is_int96 = next(stored).physical_type == INT96
    return "timestamp" if is_int96 else convert_type(field.type, path)


def convert_orc_schema(schema: pa.Schema) -> Schema:
    """Return the fields of an ORC file, whose times Spark reads as TIMESTAMP unless it wrote something else.

    :raises UnreadableError: if Spark cannot read a type, with the name of the column.
    """
    return Schema(tuple(_build_field(field, _convert_orc_field(field, field.name)) for field in schema))


def describe_old_day(schema: pa.Schema, read: Callable[[str], pa.Table]) -> str | None:
    """Return which column of an ORC file has a date or a time that Spark takes for another day, or None.

    :param read: returns the values of a column.
    """
    if is_written_by_spark(schema.metadata):
        return None
    problems = (_describe_old_value(field, read) for field in schema if _has_days(field.type))
    return next((problem for problem in problems if problem), None)


def _has_days(kind: pa.DataType) -> bool:
    members = (kind.field(number).type for number in range(kind.num_fields))
    return pa.types.is_date(kind) or pa.types.is_timestamp(kind) or any(map(_has_days, members))


def _describe_old_value(field: pa.Field, read: Callable[[str], pa.Table]) -> str | None:
    try:
        path = _find_old_item(read(field.name).column(0), field.name)
    except pa.ArrowInvalid as error:
        beyond = _BEYOND.search(str(error))
        is_old = beyond is not None and int(beyond[1]) < _SECONDS_BEFORE
        return f"column {field.name!r} has a time" if is_old else None
    return f"column {path!r} has a date" if path else None


def _find_old_item(values: pa.ChunkedArray, path: str) -> str | None:
    """Return the path of the first date in values that is too old, or None."""
    if pa.types.is_date(values.type):
        oldest = pc.min(values).as_py()
        return path if oldest is not None and oldest < GREGORIAN_START else None
    inner: dict[str, pa.ChunkedArray] = {}
    if pa.types.is_struct(values.type):
        inner = {field.name: pc.struct_field(values, [field.name]) for field in values.type}
    elif pa.types.is_map(values.type):
        chunks = values.chunks
        inner = {
            "key": pa.chunked_array([one.keys for one in chunks], values.type.key_type),
            "value": pa.chunked_array([one.items for one in chunks], values.type.item_type),
        }
    elif pa.types.is_nested(values.type):
        inner = {"element": pc.list_flatten(values)}
    old_paths = (_find_old_item(items, f"{path}.{name}") for name, items in inner.items())
    return next((old_path for old_path in old_paths if old_path), None)


def convert_type(kind: pa.DataType, path: str) -> Type:
    """Return the schema type of an Arrow type.

    :param path: the column, for messages.
    :raises UnreadableError: if Spark cannot read it.
    """
    if kind in _ARROW_TYPE_NAMES:
        return _ARROW_TYPE_NAMES[kind]
    if any(is_text(kind) for is_text in _TEXTS):
        return "string"
    if any(is_bytes(kind) for is_bytes in _BYTES):
        return "bytes"
    if pa.types.is_decimal(kind) and kind.precision <= _DECIMAL_MAX_DIGITS:
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        return "timestamp" if kind.tz else "timestamp_ntz"
    if pa.types.is_dictionary(kind):
        return convert_type(kind.value_type, path)
    if getattr(kind, "extension_name", "") in _STORED:
        return convert_type(kind.storage_type, path)
    return _convert_nested_type(kind, path, lambda field, name: convert_type(field.type, name))


def _convert_nested_type(kind: pa.DataType, path: str, convert: Callable[[pa.Field, str], Type]) -> Type:
    if any(is_list(kind) for is_list in _LISTS):
        return {"array": convert(kind.value_field, f"{path}.element")}
    if pa.types.is_map(kind):
        keys = convert(kind.key_field, f"{path}.key")
        return {
            "map": convert(kind.item_field, f"{path}.value"),
            **({} if keys == "string" else {"keys": keys}),
        }
    if pa.types.is_struct(kind):
        members = (kind.field(number) for number in range(kind.num_fields))
        return {
            "fields": [_build_field(member, convert(member, f"{path}.{member.name}")) for member in members]
        }
    raise UnreadableError(describe_type(path, kind, find_hint(kind) or "write it as another type"))


def _read_spark_types(schema: pa.Schema) -> dict[str, Any]:
    """Return Spark's own types of the columns of a Parquet file that Spark has written."""
    written = json.loads((schema.metadata or {}).get(_SPARK_ROW, b'{"fields": []}'))
    return {field["name"]: field["type"] for field in written["fields"]}


def _refuse_spark_type(path: str, kind: Any) -> None:
    """Refuse a type that Spark has written as numbers or bytes, which it reads without their meaning."""
    if match := _SPARK_ONLY.search(json.dumps({"type": kind})):
        raise UnreadableError(f"column {path!r} has the type {match[1]} of Spark ({_SPARK_HINTS[match[2]]})")


def _convert_nanos(field: pa.Field) -> str | None:
    """Return the word for a column of nanoseconds, which is read as a number; None for another column."""
    if not pa.types.is_timestamp(field.type) or field.type.unit != "ns":
        return None
    return NANOS if field.type.tz else NANOS_NTZ


def _convert_orc_field(field: pa.Field, path: str) -> Type:
    metadata: Mapping[bytes, bytes] = field.metadata or {}
    _refuse_spark_type(path, metadata.get(_CATALYST_KEY, b"").decode())
    if metadata.get(_CATALYST_KEY) == b"timestamp_ntz":
        return "timestamp_ntz"
    # ORC has no unit of time; pyarrow always reports nanoseconds.
    if pa.types.is_timestamp(field.type):
        return "timestamp"
    if pa.types.is_nested(field.type):
        return _convert_nested_type(field.type, path, _convert_orc_field)
    return convert_type(field.type, path)


def _build_field(field: pa.Field, kind: Any) -> Field:
    return {"name": field.name, "type": kind, "nullable": field.nullable}
