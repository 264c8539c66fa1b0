"""The types of the texts of CSV files.

Source: docs/semantics/merge_record.md, Formats.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column, functions as F

from airflow_merge_provider.core.merge_record.schema import VOID

_NUMBER = "^-?[0-9]"
# The types of columns by the kinds of their texts.
_TYPES: tuple[tuple[set[str], str], ...] = (
    (set(), VOID),
    ({"int"}, "int"),
    ({"int", "long"}, "long"),
    ({"double"}, "double"),
    ({"boolean"}, "boolean"),
)


def classify_text(text: Column) -> Column:
    """Return the kind of a text; NULL for NULL."""

    def is_kept(kind: str) -> Column:
        return text.rlike(_NUMBER) & text.try_cast(kind).cast("string").eqNullSafe(text)

    return (
        F.when(is_kept("int"), "int")
        .when(is_kept("long"), "long")
        .when(is_kept("double"), "double")
        .when(text.isin("true", "false"), "boolean")
        .when(text.isNotNull(), "string")
    )


def choose_type(kinds: Iterable[str]) -> str:
    """Return the type of a column from the kinds of its texts."""
    present_kinds = set(kinds)
    return next(
        (type_name for type_kinds, type_name in _TYPES if present_kinds <= type_kinds),
        "string",
    )
