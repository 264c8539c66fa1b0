"""Texts of Parquet, ORC and Avro files that are not UTF-8: other readers refuse them, Spark changes them.

Source: docs/semantics/merge_record.md, Types of files.
"""

from __future__ import annotations

from functools import reduce
from operator import or_

from pyspark.sql import Column, functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from airflow_merge_provider.jobs.spark.sql import quote_column


def describe_invalid_text(schema: StructType) -> Column:
    """Return which column of a record has a text that is not UTF-8; NULL if none has."""
    problems = [
        F.when(
            _is_invalid(quote_column(field.name), field.dataType),
            F.lit(f"column {field.name!r} has a text that is not UTF-8 (write it as binary)"),
        )
        for field in schema.fields
        if _has_texts(field.dataType)
    ]
    return F.coalesce(*problems, F.lit(None).cast("string"))


def _has_texts(kind: DataType) -> bool:
    return "string" in kind.simpleString()


def _is_invalid(value: Column, kind: DataType) -> Column:
    """Return whether a value is, or contains, such a text; NULL counts as no."""
    parts = [F.lit(False)]
    if isinstance(kind, StringType):
        parts += [~F.is_valid_utf8(value)]
    elif isinstance(kind, StructType):
        inner = [field for field in kind.fields if _has_texts(field.dataType)]
        parts += [_is_invalid(value[field.name], field.dataType) for field in inner]
    elif isinstance(kind, ArrayType):
        parts += [F.exists(value, lambda item: _is_invalid(item, kind.elementType))]
    elif isinstance(kind, MapType):
        parts += [F.exists(F.map_keys(value), lambda item: _is_invalid(item, kind.keyType))]
        parts += [F.exists(F.map_values(value), lambda item: _is_invalid(item, kind.valueType))]
    return reduce(or_, (F.coalesce(part, F.lit(False)) for part in parts))
