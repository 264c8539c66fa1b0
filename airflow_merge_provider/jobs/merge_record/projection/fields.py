"""Projection of records to the fields of a merged file: by name, with casts that keep values or say so.

Source: docs/semantics/merge_record.md, Schema union.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from pyspark.sql import Column, functions as F, types as T
from pyspark.sql.types import StringType

from airflow_merge_provider.core.merge_record.schema import (
    NO_MEMBERS,
    VOID,
    Field,
    Schema,
    Type,
    build_text_keys,
)
from airflow_merge_provider.jobs.merge_record.readers.spark_types import spark_type
from airflow_merge_provider.jobs.spark.exact_text import JSON_OPTIONS
from airflow_merge_provider.jobs.spark.expressions import cast_to
from airflow_merge_provider.jobs.spark.files.value_problems import combine_problems, find_in_items
from airflow_merge_provider.jobs.spark.sql import quote_column
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
# The first number beyond an integer type: as a float, it is cast to the last integer of the type.
_ENDS_OF_INTEGERS: dict[type[T.DataType], float] = {T.IntegerType: 2.0**31, T.LongType: 2.0**63}
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
    is_other = cast.isNull() | ~cast.try_cast(source.simpleString()).eqNullSafe(value)
    for integer, other, number in ((source, kind, cast), (kind, source, value)):
        if type(integer) in _ENDS_OF_INTEGERS and type(other) in _DIGITS_OF_FLOATS:
            is_other |= number >= _ENDS_OF_INTEGERS[type(integer)]
    return is_other


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


_ARRAY_ITEMS, _MAP = ("array", "items"), ("map", "values")
# A record as a text has all of its fields.
_RECORD_OPTIONS = {**JSON_OPTIONS, "ignoreNullFields": "false"}
_EXAMPLE_MAX_LENGTH = 100
# A field of the target with the value that it is filled from, and its type; None if there is no such value.
_Pair = tuple[Field, Column, Type]


def project_fields(schema: Schema, target: Schema) -> list[Column]:
    """Return the columns of the target schema from fields matched by name or alias; missing ones are NULL.

    A value that its field cannot hold is another one then, or NULL: see ``describe_lost_value``.
    """
    return [_convert_field(*pair) for pair in _pair_fields(schema.fields, target.fields, quote_column)]


def describe_lost_value(schema: Schema, target: Schema) -> Column | None:
    """Return the field, the value and both types if a field cannot hold its value of a record, or else NULL.

    :return: None if the target schema holds every record.
    """
    return _describe_fields(_pair_fields(schema.fields, target.fields, quote_column), "")


def read_as_texts(schema: Schema, target: Schema) -> Schema:
    """Return a schema for reading JSON files, with the type STRING for values that are texts in the target.

    A number may be written in several ways, and its text is that in the file, as for a list or a record.
    """
    fields = _read_as_text({"fields": schema.fields}, {"fields": target.fields})["fields"]
    return replace(schema, fields=tuple(fields))


def _read_as_text(source: Type, target: Type) -> Type:
    if source == VOID or spark_type(source) == spark_type(target):
        return source
    if isinstance(spark_type(target), StringType):
        return "string"
    if source != NO_MEMBERS and (fields := _pair_inner(source, target, "fields")):
        targets = {
            name: field["type"]
            for field in reversed(fields[1])
            for name in (field["name"], *(field.get("aliases") or ()))
        }
        members = (
            {**field, "type": _read_as_text(field["type"], targets.get(field["name"], field["type"]))}
            for field in fields[0]
        )
        return {"fields": list(members)}
    items = _pair_inner(source, target, *_ARRAY_ITEMS)
    return {"array": _read_as_text(*items)} if items else source


def _pair_fields(
    fields: Sequence[Field], targets: Sequence[Field], read: Callable[[str], Column]
) -> Iterator[_Pair]:
    sources = {str(field["name"]): field["type"] for field in fields}
    for field in targets:
        names = (str(field["name"]), *(field.get("aliases") or ()))
        source = next((name for name in names if name in sources), None)
        yield (field, F.lit(None), None) if source is None else (field, read(source), sources[source])


def _convert_field(field: Field, value: Column, source: Type) -> Column:
    kind = field["type"]
    return _convert_value(value, source, kind).alias(str(field["name"]))


def _convert_value(value: Column, source: Type, target: Type) -> Column:
    if source in (None, VOID):
        return cast_to(F.lit(None), spark_type(target))
    if spark_type(source) == spark_type(target):
        return value
    if fields := _pair_inner(source, target, "fields"):
        members = [_convert_field(*pair) for pair in _pair_fields(*fields, lambda name: value[name])]
        return F.when(value.isNotNull(), F.struct(*members))
    if items := _pair_inner(source, target, *_ARRAY_ITEMS):
        return F.transform(value, lambda item: _convert_value(item, *items))
    if values := _pair_inner(source, target, *_MAP):
        keys = _pair_keys(source, target)
        converted = F.transform_keys(value, lambda key, _: _convert_value(key, *keys))
        return F.transform_values(converted, lambda _, item: _convert_value(item, *values))
    if isinstance(source, Mapping) and isinstance(spark_type(target), StringType):
        return F.to_json(_convert_value(value, source, build_text_keys(source)), _RECORD_OPTIONS)
    return cast_or_null(value, spark_type(source), spark_type(target))


def _describe_fields(pairs: Iterable[_Pair], path: str) -> Column | None:
    return combine_problems(
        _describe_value(value, source, field["type"], f"{path}{field['name']}")
        for field, value, source in pairs
        if source is not None
    )


def _describe_value(value: Column, source: Type, target: Type, path: str) -> Column | None:
    source_kind, kind = spark_type(source), spark_type(target)
    if source_kind == kind or source == VOID:
        return None
    if fields := _pair_inner(source, target, "fields"):
        return _describe_fields(_pair_fields(*fields, lambda name: value[name]), f"{path}.")
    if items := _pair_inner(source, target, *_ARRAY_ITEMS):
        return _describe_items(value, *items, f"{path}.element")
    if values := _pair_inner(source, target, *_MAP):
        keys = _describe_items(F.map_keys(value), *_pair_keys(source, target), f"{path}.key")
        return combine_problems([keys, _describe_items(F.map_values(value), *values, f"{path}.value")])
    if isinstance(source, Mapping) and isinstance(kind, StringType):
        return _describe_value(value, source, build_text_keys(source), path)
    lost = is_lost(value, source_kind, kind)
    if lost is None:
        return None
    names = source_kind.simpleString().upper(), kind.simpleString().upper()
    # Each text is a value of BINARY, too.
    remedy = "BINARY" if isinstance(kind, StringType) else "STRING"
    problem = F.concat(
        F.lit(f"field {path!r}: the {names[0]} '"),
        F.left(F.make_valid_utf8(value.cast("string")), F.lit(_EXAMPLE_MAX_LENGTH)),
        F.lit(f"' is not a value of {names[1]} (set the field to {remedy} in the schema of the writer)"),
    )
    return F.when(value.isNotNull() & lost, problem)


def _describe_items(items: Column, source: Type, target: Type, path: str) -> Column | None:
    """Return the description of the first item that the target type cannot hold."""
    return find_in_items(items, lambda item: _describe_value(item, source, target, path))


def _pair_inner(source: Type, target: Type, *names: str) -> tuple[Type, Type] | None:
    """Return the types inside two types of the same kind; None if they are of two kinds."""
    if source == NO_MEMBERS and "fields" in names:
        source = {"fields": []}
    inner = [_find_inner(kind, *names) for kind in (source, target)]
    return None if None in inner else (inner[0], inner[1])


def _find_inner(kind: Type, *names: str) -> Type:
    return next((kind[name] for name in names if name in kind), None) if isinstance(kind, Mapping) else None


def _pair_keys(source: Type, target: Type) -> tuple[Type, Type]:
    return source.get("keys", "string"), target.get("keys", "string")
