"""One exact text of a value, for comparisons, digests and plans: values are equal if their texts are.

``to_json`` alone cuts times to milliseconds, writes them in the time zone of the session, keeps the order of
a map's entries, and writes keys that are not text by their address in memory.

Source: docs/values.md, Comparison.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column, DataFrame, functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructType,
    VariantType,
)

from airflow_merge_provider.jobs.spark.sql import quote_name, quote_text

_TIME = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
# Options of to_json and of text writers that keep every digit of a time, in any time zone of the session.
JSON_OPTIONS = {"timestampFormat": f"{_TIME}XXX", "timestampNTZFormat": _TIME, "timeZone": "UTC"}
_ZEROS: dict[type[DataType], str] = {FloatType: "0F", DoubleType: "0D"}


def exact_text(value: str, kind: DataType) -> Column:
    """Return the exact text of a value; NULL for NULL.

    :param value: the value as SQL, such as a quoted column.
    """
    return F.expr(exact_sql(value, kind))


def exact_sql(value: str, kind: DataType) -> str:
    """Return the exact text of a value as SQL, like ``exact_text``."""
    normal = _normalize_value(value, kind)
    if isinstance(kind, StructType | ArrayType | MapType | VariantType):
        return _format_json(normal)
    # to_json takes no plain values.
    text = _format_json(f"named_struct('v', {normal})")
    return f"if({value} IS NULL, NULL, {text})"


def exact_row(rows: DataFrame, names: Iterable[str], *, keeps_nulls: bool = False) -> Column:
    """Return the exact text of some columns of rows as a JSON object, by default without NULL columns."""
    kinds = {field.name: field.dataType for field in rows.schema.fields}
    pairs = (f"{quote_text(name)}, {_normalize_value(quote_name(name), kinds[name])}" for name in names)
    return F.expr(_format_json(f"named_struct({', '.join(pairs)})", keeps_nulls=keeps_nulls))


def has_equality(kind: DataType) -> bool:
    """Return whether Spark can compare values of a type, and does so exactly."""
    if isinstance(kind, StructType):
        return all(has_equality(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return has_equality(kind.elementType)
    if isinstance(kind, StringType):
        # A collation may ignore case or blanks.
        return kind.isUTF8BinaryCollation()
    return not isinstance(kind, MapType | VariantType)


def _format_json(value: str, *, keeps_nulls: bool = False) -> str:
    options = {**JSON_OPTIONS, "ignoreNullFields": str(not keeps_nulls).lower()}
    pairs = ", ".join(quote_text(text) for pair in options.items() for text in pair)
    return f"to_json({value}, map({pairs}))"


def _normalize_value(value: str, kind: DataType, depth: int = 0) -> str:
    """Return a value as SQL in which equal values have one form; the value itself if it has only one.

    A map becomes sorted entries, and -0.0 becomes 0.0, to which it is equal.
    """
    if zero := _ZEROS.get(type(kind)):
        return f"({value} + {zero})"
    if isinstance(kind, ArrayType):
        item = f"v{depth}"
        normal = _normalize_value(item, kind.elementType, depth + 1)
        return value if normal == item else f"transform({value}, {item} -> {normal})"
    if isinstance(kind, StructType):
        fields = {field.name: f"{value}.{quote_name(field.name)}" for field in kind.fields}
        normals = {
            field.name: _normalize_value(fields[field.name], field.dataType, depth) for field in kind.fields
        }
        if normals == fields:
            return value
        pairs = ", ".join(f"{quote_text(name)}, {normal}" for name, normal in normals.items())
        return f"if({value} IS NULL, NULL, named_struct({pairs}))"
    if isinstance(kind, MapType):
        return _normalize_map(value, kind, depth)
    return value


def _normalize_map(value: str, kind: MapType, depth: int) -> str:
    key = f"v{depth}"
    entry = f"named_struct('key', {_normalize_value(key, kind.keyType, depth + 1)}, 'value', "
    entry += f"{_normalize_value(f'element_at({value}, {key})', kind.valueType, depth + 1)})"
    entries = f"transform(array_sort(map_keys({value})), {key} -> {entry})"
    return f"map_from_entries({entries})" if isinstance(kind.keyType, StringType) else entries
