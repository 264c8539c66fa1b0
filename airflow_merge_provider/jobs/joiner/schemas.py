"""Conversion of Spark schemas to those of the joiner."""

from __future__ import annotations

from pyspark.sql import DataFrame

from airflow_merge_provider.core.joiner.schema import Schema, parse_table_fields


def read_schema(frame: DataFrame) -> Schema:
    """Return the fields of a DataFrame; no rows are read."""
    return parse_table_fields(frame.schema.jsonValue()["fields"])
