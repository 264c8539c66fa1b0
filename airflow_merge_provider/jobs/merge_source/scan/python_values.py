"""Pass typed values to Python workers exactly: times as numbers, keys of maps as texts."""

from __future__ import annotations

from functools import partial

from pyspark.sql import Column, functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    FloatType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from airflow_merge_provider.jobs.merge_source.scan import typed_rows
from airflow_merge_provider.jobs.merge_source.scan.variants import name_key

_READERS: dict[type[DataType], typed_rows.Read] = {
    DateType: typed_rows.read_day,
    TimestampType: typed_rows.read_time,
    TimestampNTZType: typed_rows.read_time,
    FloatType: typed_rows.read_float,
    VariantType: typed_rows.read_variant,
}


def build_reader(kind: DataType) -> typed_rows.Read:
    """Return the function that reads an encoded value of a type in a worker."""
    if isinstance(kind, StructType):
        return partial(typed_rows.read_fields, {field.name: build_reader(field.dataType) for field in kind})
    if isinstance(kind, ArrayType):
        return partial(typed_rows.read_items, build_reader(kind.elementType))
    if isinstance(kind, MapType):
        return partial(typed_rows.read_entries, build_reader(kind.valueType))
    return _READERS.get(type(kind), typed_rows.keep_value)


def encode_value(value: Column, kind: DataType) -> Column:
    """Return a value in the form that the reader of its type takes: no time in it depends on a time zone."""
    if not _is_encoded(kind):
        return value
    if isinstance(kind, StructType):
        fields = (encode_value(value[field.name], field.dataType).alias(field.name) for field in kind)
        return F.when(value.isNotNull(), F.struct(*fields))
    if isinstance(kind, ArrayType):
        return F.transform(value, lambda item: encode_value(item, kind.elementType))
    if isinstance(kind, MapType):
        entries = F.transform_keys(value, lambda key, _: name_key(key, kind.keyType))
        return F.transform_values(entries, lambda _, item: encode_value(item, kind.valueType))
    if isinstance(kind, DateType):
        return F.unix_date(value)
    return F.unix_micros(value.cast("timestamp"))


def _is_encoded(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_is_encoded(field.dataType) for field in kind)
    if isinstance(kind, ArrayType):
        return _is_encoded(kind.elementType)
    if isinstance(kind, MapType):
        return not isinstance(kind.keyType, StringType) or _is_encoded(kind.valueType)
    return isinstance(kind, DateType | TimestampType | TimestampNTZType)
