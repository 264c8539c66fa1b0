"""Columns that are equal if, and only if, key values are equal, whatever the types of the values.

Source: docs/values.md, Keys of two types.
"""

from __future__ import annotations

from pyspark.sql import Column, functions as F

from airflow_merge_provider.core.schema.key_types import DIGITS_MAX, KeyComparison


def build_key_columns(value: Column, comparison: KeyComparison) -> list[Column]:
    """Return what is compared of a key value: one column, or two for a number that is split.

    All of them are NULL if the value is.
    """
    if comparison.is_split:
        # Neither rounds: a decimal divided by 1 leaves its fraction, with the sign of the value.
        integral = F.floor(value).cast(f"decimal({DIGITS_MAX},0)")
        return [integral, (value % F.lit(1)).cast(f"decimal({DIGITS_MAX},{DIGITS_MAX})")]
    return [value if comparison.type is None else value.cast(comparison.type)]
