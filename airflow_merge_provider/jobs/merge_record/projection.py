"""Projection of records to the fields of a merged file: by name, with types that hold each value exactly.

Source: docs/semantics/merge_record.md, Schema union.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import Column, functions as F
from pyspark.sql.types import DoubleType, FloatType, StringType

from airflow_merge_provider.core.merge_record.schema import Field, Schema, Type
from airflow_merge_provider.jobs.merge_record.readers.spark_types import spark_type
from airflow_merge_provider.jobs.spark.exact_text import JSON_OPTIONS
from airflow_merge_provider.jobs.spark.expressions import cast_to
from airflow_merge_provider.jobs.spark.sql import quote_column


def project_fields(schema: Schema, target: Schema) -> list[Column]:
    """Return the columns of the target schema from fields matched by name or alias; missing ones are NULL.

    A value that its field cannot hold makes the query fail, with the field, the value and both types.
    """
    return _project_members(schema.fields, target.fields, quote_column, "")


def _project_members(
    fields: Sequence[Field], targets: Sequence[Field], read: Callable[[str], Column], path: str
) -> list[Column]:
    sources = {str(field["name"]): field["type"] for field in fields}
    columns = []
    for field in targets:
        name = str(field["name"])
        source = next((one for one in (name, *(field.get("aliases") or ())) if one in sources), None)
        value = (
            cast_to(F.lit(None), spark_type(field["type"]))
            if source is None
            else _convert_value(read(source), sources[source], field["type"], f"{path}{name}")
        )
        columns.append(value.alias(name))
    return columns


def _convert_value(value: Column, source: Type, target: Type, path: str) -> Column:
    if spark_type(source) == spark_type(target):
        return value
    if isinstance(spark_type(target), StringType):
        return F.to_json(value, JSON_OPTIONS) if isinstance(source, Mapping) else cast_to(value, StringType())
    if not isinstance(source, Mapping) or not isinstance(target, Mapping):
        return _cast_exactly(value, source, target, path)
    if "fields" in source and "fields" in target:
        members = _project_members(source["fields"], target["fields"], lambda name: value[name], f"{path}.")
        return F.when(value.isNotNull(), F.struct(*members))
    items, new_items = (_find_inner(kind, "array", "items") for kind in (source, target))
    if items and new_items:
        return F.transform(value, lambda item: _convert_value(item, items, new_items, f"{path}.element"))
    items, new_items = (_find_inner(kind, "map", "values") for kind in (source, target))
    if items and new_items:
        return F.transform_values(
            value, lambda _, item: _convert_value(item, items, new_items, f"{path}.value")
        )
    return _cast_exactly(value, source, target, path)


def _find_inner(kind: Mapping[str, Any], *names: str) -> Any:
    return next((kind[name] for name in names if name in kind), None)


def _cast_exactly(value: Column, source: Type, target: Type, path: str) -> Column:
    """Cast a value, and fail if it is another value then; a DOUBLE may be rounded to a FLOAT."""
    source_kind, kind = spark_type(source), spark_type(target)
    names = source_kind.simpleString().upper(), kind.simpleString().upper()
    converted = value.try_cast(kind.simpleString())
    is_same = converted.isNotNull()
    if not isinstance(source_kind, StringType) and (source_kind, kind) != (DoubleType(), FloatType()):
        is_same = converted.try_cast(source_kind.simpleString()).eqNullSafe(value)
    problem = F.concat(
        F.lit(f"field {path!r}: the {names[0]} "),
        value.cast("string"),
        F.lit(f" is not a value of {names[1]} (set the field to STRING in the schema of the writer)"),
    )
    failed = F.raise_error(problem).cast(kind.simpleString())
    return F.when(value.isNull() | is_same, cast_to(converted, kind)).otherwise(failed)
