"""Convert typed values to VARIANT: a NULL field of a struct is absent, everything else is kept."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, functions as F
from pyspark.sql.types import (
    ArrayType,
    AtomicType,
    BinaryType,
    DataType,
    DayTimeIntervalType,
    MapType,
    NullType,
    StringType,
    StructType,
    TimeType,
    VariantType,
    YearMonthIntervalType,
)

from airflow_merge_provider.jobs.spark.expressions import build_array
from airflow_merge_provider.jobs.spark.sql import quote_column

VARIANT = "variant"
VARIANTS = "array<variant>"
PROPERTIES = "map<string,variant>"


def check_variant_type(kind: DataType) -> str:
    """Return which part of a type VARIANT cannot hold; an empty string if it can hold the whole type."""
    if isinstance(kind, ArrayType):
        return check_variant_type(kind.elementType)
    if isinstance(kind, MapType):
        has_names = isinstance(kind.keyType, AtomicType) and not isinstance(kind.keyType, BinaryType)
        return check_variant_type(kind.valueType) if has_names else kind.simpleString().upper()
    if isinstance(kind, StructType):
        return next((wrong for field in kind if (wrong := check_variant_type(field.dataType))), "")
    unfit = isinstance(kind, DayTimeIntervalType | TimeType | YearMonthIntervalType)
    return kind.simpleString().upper() if unfit else ""


def as_variant(value: Column, kind: DataType) -> Column:
    """Convert one value; NULL stays NULL."""
    if isinstance(kind, VariantType):
        return value
    if isinstance(kind, StructType):
        fields = {field.name: (value[field.name], field.dataType) for field in kind}
        return F.when(value.isNotNull(), F.to_variant_object(build_field_properties(fields)))
    if isinstance(kind, MapType):
        entries = F.transform_values(value, lambda _, item: _to_item(item, kind.valueType))
        if not isinstance(kind.keyType, StringType):
            entries = F.transform_keys(entries, lambda key, _: name_key(key, kind.keyType))
        return F.when(value.isNotNull(), F.to_variant_object(entries))
    if isinstance(kind, ArrayType):
        return convert_items(value, kind).cast(VARIANT)
    return value.cast(VARIANT)


def name_key(key: Column, kind: DataType) -> Column:
    """Return the key of a map as a text; different keys have different texts."""
    return F.hex(key) if isinstance(kind, BinaryType) else key.cast("string")


def convert_items(value: Column, kind: ArrayType) -> Column:
    """Convert an array's items; a NULL item is a null value."""
    return F.transform(value, lambda item: _to_item(item, kind.elementType))


def drop_missing(values: Mapping[str, Column], null_checks: Mapping[str, Column] | None = None) -> Column:
    """Build a map of variants that has only the values that are not NULL.

    :param null_checks: expressions that are NULL exactly if the value is missing, for values that cost more
        to compute; the value itself is used for all others.
    """
    checks = {**values, **(null_checks or {})}
    entries = (
        (checks[name].isNotNull(), [F.struct(F.lit(name).alias("name"), value.alias("value"))])
        for name, value in values.items()
    )
    return F.map_from_entries(
        build_array(entries, F.array().cast("array<struct<name:string,value:variant>>"))
    )


def build_properties(kinds: Mapping[str, DataType]) -> Column:
    """Build the map of properties of a row with typed columns."""
    return build_field_properties({name: (quote_column(name), kind) for name, kind in kinds.items()})


def build_field_properties(fields: Mapping[str, tuple[Column, DataType]]) -> Column:
    """Build the map of properties from columns, or fields of a struct, and their types."""
    values = {name: as_variant(value, kind) for name, (value, kind) in fields.items()}
    return drop_missing(values, {name: value for name, (value, _) in fields.items()})


def properties_map(entity: Column) -> Column:
    """Keep the content of an entity's root: no name with a leading ``_``, no ``$ids``, no ``$replaced``."""
    return F.map_filter(entity, lambda name, _: ~name.startswith("_") & ~name.isin("$ids", "$replaced"))


def splice_variants(values: Column) -> Column:
    """Combine variants into one list: the items of a list one level deep, anything else as one item."""
    return F.flatten(F.transform(values, lambda value: F.coalesce(as_items(value), F.array(value))))


def as_items(value: Column) -> Column:
    """Return a variant's items if it is a list, else NULL."""
    return F.try_variant_get(value, "$", VARIANTS)


def _to_item(item: Column, kind: DataType) -> Column:
    null = F.parse_json(F.lit("null"))
    if isinstance(kind, NullType):
        return null
    return F.coalesce(as_variant(item, kind), null)
