"""Conversion of Spark schemas and types to those of the joiner."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from airflow_merge_provider.core.joiner import schema
from airflow_merge_provider.core.joiner.schema import Field, Schema


def read_schema(frame: DataFrame) -> Schema:
    """Return the fields of a DataFrame; no rows are read."""
    return tuple(Field(field.name, type_text(field.dataType), field.nullable) for field in frame.schema)


def type_text(kind: DataType) -> str:
    """Return the joiner's notation of a Spark type."""
    if isinstance(kind, ArrayType):
        return f"array<{type_text(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{type_text(kind.keyType)},{type_text(kind.valueType)}>"
    if isinstance(kind, StructType):
        return schema.format_struct((field.name, type_text(field.dataType)) for field in kind)
    return schema.normalize_type(kind.simpleString())
