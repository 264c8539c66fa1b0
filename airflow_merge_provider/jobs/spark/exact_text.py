"""One exact text of a value, for comparisons, digests and plans: values are equal if their texts are.

``to_json`` alone cuts times to milliseconds, writes them in the time zone of the session, keeps the order of
a map's entries, writes keys that are not text by their address in memory, and replaces bytes that are not
UTF-8.

Source: docs/values.md, Comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

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

_TIME_FORMAT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
# Options of to_json and of text writers that keep every digit of a time, in any time zone of the session.
JSON_OPTIONS = {
    "timestampFormat": f"{_TIME_FORMAT}XXX",
    "timestampNTZFormat": _TIME_FORMAT,
    "timeZone": "UTC",
}
# The beginning of the form of a text that is not UTF-8, or that begins like this form. JSON has the same
# replacement character for all bytes that are not UTF-8, so only a text that contains it needs the form.
_REPLACED = "\ufffd"
_BYTES_MARK = f"{_REPLACED}x"
_ZEROS: dict[type[DataType], str] = {FloatType: "0F", DoubleType: "0D"}


def exact_text(value: str, kind: DataType) -> Column:
    """Return the exact text of a value; NULL for NULL.

    :param value: the value as SQL, such as a quoted column.
    """
    return F.expr(exact_sql(value, kind))


def exact_sql(value: str, kind: DataType) -> str:
    """Return the exact text of a value as SQL, like ``exact_text``."""
    if isinstance(kind, StructType | ArrayType | MapType | VariantType):
        return _format_json(lambda normalizer: normalizer.normalize(value, kind))
    # to_json takes no plain values.
    text = _format_json(lambda normalizer: f"named_struct('v', {normalizer.normalize(value, kind)})")
    return f"if({value} IS NULL, NULL, {text})"


def exact_row(rows: DataFrame, names: Iterable[str]) -> Column:
    """Return the exact text of some columns of rows as a JSON object without NULL columns."""
    return F.expr(_format_json(_collect_fields(rows, names)))


def shown_text(value: str, kind: DataType) -> Column:
    """Return a nested value as text for people, like ``exact_text`` but with the sign of zero."""
    return F.expr(_format_json(lambda normalizer: normalizer.normalize(value, kind), keeps_signs=True))


def shown_row(rows: DataFrame, names: Iterable[str], *, keeps_nulls: bool = True) -> Column:
    """Return some columns of rows as text for people, with the sign of zero and by default NULL columns."""
    return F.expr(_format_json(_collect_fields(rows, names), keeps_nulls=keeps_nulls, keeps_signs=True))


def _collect_fields(rows: DataFrame, names: Iterable[str]) -> Callable[[_Normalizer], str]:
    kinds = {field.name: field.dataType for field in rows.schema.fields}
    selected_names = tuple(names)

    def build_struct(normalizer: _Normalizer) -> str:
        pairs = (
            f"{quote_text(name)}, {normalizer.normalize(quote_name(name), kinds[name])}"
            for name in selected_names
        )
        return f"named_struct({', '.join(pairs)})"

    return build_struct


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


def _format_json(
    build_value: Callable[[_Normalizer], str], *, keeps_nulls: bool = False, keeps_signs: bool = False
) -> str:
    options = {**JSON_OPTIONS, "ignoreNullFields": str(not keeps_nulls).lower()}
    pairs = ", ".join(quote_text(text) for pair in options.items() for text in pair)
    text, marked = (
        f"to_json({build_value(_Normalizer(marks_bytes, keeps_signs))}, map({pairs}))"
        for marks_bytes in (False, True)
    )
    return text if text == marked else f"if(contains({text}, {quote_text(_REPLACED)}), {marked}, {text})"


@dataclass(frozen=True, slots=True)
class _Normalizer:
    """Writes values as SQL in which equal values have one form.

    :param marks_bytes: whether texts of any bytes have one.
    :param keeps_signs: whether -0.0 stays apart from 0.0, to which it is equal.
    """

    marks_bytes: bool
    keeps_signs: bool

    def normalize(self, value: str, kind: DataType, depth: int = 0) -> str:
        """Return the form of a value; the value itself if it has only one.

        A map becomes sorted entries, and -0.0 becomes 0.0.
        """
        if not self.keeps_signs and (zero := _ZEROS.get(type(kind))):
            return f"({value} + {zero})"
        if isinstance(kind, StringType):
            return self._mark_bytes(value) if self.marks_bytes else value
        if isinstance(kind, ArrayType):
            item = f"v{depth}"
            normal = self.normalize(item, kind.elementType, depth + 1)
            return value if normal == item else f"transform({value}, {item} -> {normal})"
        if isinstance(kind, StructType):
            return self._normalize_struct(value, kind, depth)
        if isinstance(kind, MapType):
            return self._normalize_map(value, kind, depth)
        return value

    def _mark_bytes(self, value: str) -> str:
        # Without a collation, which could find the mark in other texts.
        text, mark = f"CAST({value} AS STRING)", quote_text(_BYTES_MARK)
        is_plain = f"is_valid_utf8({text}) AND NOT startswith({text}, {mark})"
        return f"if({is_plain}, {text}, concat({mark}, hex({text})))"

    def _normalize_struct(self, value: str, kind: StructType, depth: int) -> str:
        fields = {field.name: f"{value}.{quote_name(field.name)}" for field in kind.fields}
        normals = {
            field.name: self.normalize(fields[field.name], field.dataType, depth) for field in kind.fields
        }
        if normals == fields:
            return value
        pairs = ", ".join(f"{quote_text(name)}, {normal}" for name, normal in normals.items())
        return f"if({value} IS NULL, NULL, named_struct({pairs}))"

    def _normalize_map(self, value: str, kind: MapType, depth: int) -> str:
        key = f"v{depth}"
        entry = f"named_struct('key', {self.normalize(key, kind.keyType, depth + 1)}, 'value', "
        entry += f"{self.normalize(f'element_at({value}, {key})', kind.valueType, depth + 1)})"
        entries = f"transform(array_sort(map_keys({value})), {key} -> {entry})"
        return f"map_from_entries({entries})" if isinstance(kind.keyType, StringType) else entries
