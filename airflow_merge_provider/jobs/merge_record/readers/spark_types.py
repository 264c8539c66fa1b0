"""Conversion between the types of a MergeRecord schema and Spark types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pyspark.sql import types as T

from airflow_merge_provider.core.change_plan.shown_rows import mask_text
from airflow_merge_provider.core.merge_record.schema import (
    VOID,
    Field,
    Schema,
    Type,
    is_choice,
    normalize_type,
    replace_void,
)
from airflow_merge_provider.jobs.merge_record.readers.arrow_types import NANOS, NANOS_NTZ
from airflow_merge_provider.jobs.spark.files.file_problem import UnreadableError

_TYPES_OF_WORDS: dict[str, T.DataType] = {
    "boolean": T.BooleanType(),
    "int": T.IntegerType(),
    "long": T.LongType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "string": T.StringType(),
    "uuid": T.StringType(),
    "bytes": T.BinaryType(),
    "date": T.DateType(),
    "time": T.StringType(),
    "timestamp": T.TimestampType(),
    "timestamp_ntz": T.TimestampNTZType(),
    "byte": T.ByteType(),
    "short": T.ShortType(),
    # Each reader has an INT for the NULLs of a column without values.
    VOID: T.IntegerType(),
    "variant": T.VariantType(),
    NANOS: T.TimestampType(),
    NANOS_NTZ: T.TimestampNTZType(),
}
_NAMES: dict[type[T.DataType], str] = {
    **{type(kind): word for word, kind in reversed(_TYPES_OF_WORDS.items())},
    T.NullType: VOID,
}
# Every decimal of so many digits equals a DOUBLE when it is written with them.
_DOUBLE_DIGITS = 15
# Protocol Buffers read types of up to 100 nested messages: three for each record, two for each list or map.
_DEEPEST = 80
TOO_DEEP = "its records are nested too deep for Spark Connect (read the inner ones as text)"
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def spark_schema(schema: Schema) -> T.StructType:
    """Return a schema as a Spark struct; every column is nullable, as Spark's file readers require."""
    return T.StructType(
        [T.StructField(str(field["name"]), spark_type(field["type"])) for field in schema.fields]
    )


def file_schema(schema: Schema) -> T.StructType:
    """Return the struct by which files of a schema are read: times in nanoseconds are numbers there."""
    struct = spark_schema(schema)
    kinds = {field["name"]: field["type"] for field in schema.fields}
    fields = (
        T.StructField(field.name, T.LongType()) if kinds[field.name] in (NANOS, NANOS_NTZ) else field
        for field in struct.fields
    )
    return T.StructType(list(fields))


def spark_type(kind: Type) -> T.DataType:
    """Return the Spark type of a schema type; a choice becomes a string, which can hold any value.

    :raises ValueError: when there is no such type.
    """
    if is_choice(kind):
        return T.StringType()
    if isinstance(kind, Mapping):
        return _build_nested_type(kind)
    word = str(kind).replace(" ", "").lower()
    if match := _DECIMAL.fullmatch(word):
        return T.DecimalType(int(match[1]), int(match[2]))
    word = word if word in _TYPES_OF_WORDS else str(normalize_type(word))
    if word not in _TYPES_OF_WORDS:
        raise ValueError(f"unknown type {kind!r} (use one of {', '.join(_TYPES_OF_WORDS)}, decimal(p,s))")
    return _TYPES_OF_WORDS[word]


def parse_schema(schema: Schema | str) -> Schema:
    """Return the fields of a schema, which may be DDL text, and check that every type is known."""
    struct = T.StructType.fromDDL(schema) if isinstance(schema, str) else spark_schema(schema)
    if not isinstance(struct, T.StructType):
        raise ValueError(f"{schema!r} is not a list of fields (use DDL such as 'id INT, v STRING')")  # noqa: TRY004 - the caller handles ValueError
    if (path := find_fieldless_record(struct)) is not None:
        raise ValueError(describe_fieldless_record(path))
    return replace_void(convert_schema(struct) if isinstance(schema, str) else schema, "string")


def convert_schema(struct: T.StructType) -> Schema:
    """Return the schema of a Spark struct."""
    return Schema(tuple(_build_field(field) for field in struct.fields))


def build_inferred_schema(struct: T.StructType, lossy: Mapping[str, str] = MappingProxyType({})) -> Schema:
    """Return the schema of a struct that was inferred from text; decimals with a fraction become doubles.

    :param lossy: numbers that no DOUBLE equals, by the paths of their fields: these fields stay decimals.
    :raises UnreadableError: if no type holds such a number.
    """
    return convert_schema(T.StructType([_widen_field(field, "", lossy) for field in struct.fields]))


def has_fractions(kind: T.DataType) -> bool:
    """Return whether a type that was inferred from text has numbers with a fraction, or mixed values."""
    if isinstance(kind, T.StructType):
        return any(has_fractions(field.dataType) for field in kind.fields)
    if isinstance(kind, T.ArrayType):
        return has_fractions(kind.elementType)
    if isinstance(kind, T.DecimalType):
        return kind.scale > 0 and kind.precision > _DOUBLE_DIGITS
    return isinstance(kind, T.DoubleType | T.VariantType)


def is_too_deep(ddl: str) -> bool:
    """Return whether a type, as Spark writes it, is nested so deep that Spark Connect cannot transfer it.

    >>> is_too_deep("ARRAY<" * 9 + "INT" + ">" * 9), is_too_deep("STRUCT<a: " * 40 + "INT" + ">" * 40)
    (False, True)
    """
    costs: list[int] = []
    deepest = 0
    for word, mark in re.findall(r"(\w*)([<>])", re.sub("`[^`]*`", "", ddl)):
        if mark == "<":
            costs.append(3 if word.upper() in ("STRUCT", "OBJECT") else 2)
            deepest = max(deepest, sum(costs))
        elif costs:
            costs.pop()
    return deepest > _DEEPEST


def find_repeated_name(kind: T.DataType) -> str | None:
    """Return the name of a field that a record has more than once, also inside a type, or None."""
    if isinstance(kind, T.StructType):
        names = kind.names
        repeated = next((name for name in names if names.count(name) > 1), None)
        inner = (find_repeated_name(field.dataType) for field in kind.fields)
        return repeated if repeated is not None else next((name for name in inner if name is not None), None)
    if isinstance(kind, T.ArrayType):
        return find_repeated_name(kind.elementType)
    if isinstance(kind, T.MapType):
        return find_repeated_name(kind.valueType)
    return None


def find_fieldless_record(kind: T.DataType, path: str = "") -> str | None:
    """Return the path of a record without fields in a type, which Spark cannot read from files, or None."""
    inner: list[tuple[T.DataType, str]] = []
    if isinstance(kind, T.StructType):
        if path and not kind.fields:
            return path
        inner = [(field.dataType, field.name) for field in kind.fields]
    elif isinstance(kind, T.ArrayType):
        inner = [(kind.elementType, "element")]
    elif isinstance(kind, T.MapType):
        inner = [(kind.keyType, "key"), (kind.valueType, "value")]
    paths = (find_fieldless_record(one, f"{path}.{name}" if path else name) for one, name in inner)
    return next((one for one in paths if one is not None), None)


def describe_fieldless_record(path: str) -> str:
    """Return the problem of a record without fields."""
    return f"field {path!r} is a record without fields (leave it out, or give it a field)"


def _build_nested_type(kind: Mapping[str, Any]) -> T.DataType:
    if "fields" in kind:
        return spark_schema(Schema(tuple(kind["fields"])))
    for name in ("array", "items"):
        if name in kind:
            return T.ArrayType(spark_type(kind[name]))
    for name in ("map", "values"):
        if name in kind:
            return T.MapType(spark_type(kind.get("keys", "string")), spark_type(kind[name]))
    raise ValueError(f"unknown type {dict(kind)!r} (use an object with the key fields, array or map)")


def _build_field(field: T.StructField) -> Field:
    return {"name": field.name, "type": _convert_type(field.dataType), "nullable": True}


def _convert_type(kind: T.DataType) -> Type:
    if isinstance(kind, T.StructType):
        return {"fields": [dict(_build_field(field)) for field in kind.fields]}
    if isinstance(kind, T.ArrayType):
        return {"array": _convert_type(kind.elementType)}
    if isinstance(kind, T.MapType):
        keys = {} if isinstance(kind.keyType, T.StringType) else {"keys": _convert_type(kind.keyType)}
        return {"map": _convert_type(kind.valueType), **keys}
    if isinstance(kind, T.DecimalType):
        return f"decimal({kind.precision},{kind.scale})"
    return _NAMES.get(type(kind), "string")


def _widen_field(field: T.StructField, path: str, lossy: Mapping[str, str]) -> T.StructField:
    return T.StructField(field.name, _widen_type(field.dataType, f"{path}.{field.name}", lossy))


def _widen_type(kind: T.DataType, path: str, lossy: Mapping[str, str]) -> T.DataType:
    if isinstance(kind, T.StructType) and not kind.fields:
        # Spark cannot write a struct without fields; a map without entries has the same JSON text.
        return T.MapType(T.StringType(), T.NullType())
    if isinstance(kind, T.StructType):
        return T.StructType([_widen_field(field, path, lossy) for field in kind.fields])
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_widen_type(kind.elementType, f"{path}[]", lossy))
    if isinstance(kind, T.DecimalType):
        exact = kind if kind.scale else T.DecimalType(38, 0)
        return T.DoubleType() if kind.scale and path not in lossy else exact
    if isinstance(kind, T.DoubleType) and (number := lossy.get(path)):
        raise UnreadableError(
            f"field {path[1:]!r}: no number type holds {mask_text(str(number))} and the other values "
            "(set a schema of the reader, in which the field is a STRING or a DECIMAL)"
        )
    # A string can hold values of several types.
    return T.StringType() if isinstance(kind, T.VariantType) else kind
