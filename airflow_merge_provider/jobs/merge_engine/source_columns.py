"""Align the source's columns with those of the target, and reject columns that do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from pyspark.sql import Column as Expression, DataFrame, functions as F
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType

from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_engine.checks import check_columns, plan_fold
from airflow_merge_provider.core.merge_engine.columns import Column, is_text, parse_columns
from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig
from airflow_merge_provider.core.merge_engine.plan import Plan
from airflow_merge_provider.jobs.delta.table import read_example
from airflow_merge_provider.jobs.merge_engine.records import CLEARS, RECORD_ARRIVAL, RECORD_KIND
from airflow_merge_provider.jobs.merge_engine.source import IncrementalRead
from airflow_merge_provider.jobs.spark import sql
from airflow_merge_provider.jobs.spark.expressions import cast_to


def table_columns(schema: StructType) -> tuple[Column, ...]:
    """Return the columns of a table, or of a source from which a table is created."""
    fields = schema.jsonValue()["fields"]
    own_names = {RECORD_ARRIVAL, CLEARS, RECORD_KIND}
    return parse_columns([field for field in fields if field["name"] not in own_names])


def parse_type(kind: Any) -> DataType:
    """Return the type of a column in Spark."""
    field = {"name": "", "type": kind, "nullable": True, "metadata": {}}
    return StructField.fromJson(field).dataType


def plan_for_table(config: MergeEngineConfig, read: IncrementalRead, schema: StructType) -> Plan:
    """Plan the fold for a table with these columns, and for records with or without row kinds.

    :raises ConfigError: with every problem between the configuration and the columns.
    """
    kinds = read.with_kinds or bool(config.row_kind_column or config.table_options.row_kind_field)
    return plan_fold(config, table_columns(schema), retracts=kinds)


def fit_rows(config: MergeEngineConfig, rows: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """Return the rows with the table's columns in its order, and with ``ARRIVAL``, ``KIND`` and ``CLEARS``.

    :raises DataError: when a column is too much, missing, or of another type.
    """
    source_columns = {column.name.casefold(): column for column in table_columns(rows.schema)}
    check_columns(config, list(source_columns.values()), columns, partial(read_example, rows))
    values = [
        sql.quote_column(source_columns[column.name.casefold()].name).alias(column.name)
        if column.name.casefold() in source_columns
        else _build_missing(column).alias(column.name)
        for column in columns
    ]
    extra_columns = [sql.quote_column(name) for name in (RECORD_ARRIVAL, RECORD_KIND) if name in rows.columns]
    if CLEARS in rows.columns:
        extra_columns.append(_read_clears(config, rows).alias(CLEARS))
    return rows.select(*values, *extra_columns)


def _read_clears(config: MergeEngineConfig, rows: DataFrame) -> Expression:
    """Return the lower-case names of the cleared columns, from an array or a comma-separated string."""
    kind, raw_names = rows.schema[CLEARS].dataType, sql.quote_column(CLEARS)
    if kind == StringType():
        raw_names = F.split(raw_names, ",")
    elif kind not in (ArrayType(StringType(), True), ArrayType(StringType(), False)):
        message = f"column {config.clear_column!r} has type {kind.simpleString().upper()}"
        raise DataError.from_problems(
            [
                Problem(
                    "clear_column", "type", message, "use ARRAY<STRING>, or STRING with commas between names"
                )
            ]
        )
    names = F.transform(raw_names, lambda word: F.lower(F.trim(word)))
    return F.filter(names, lambda word: word != "")


def _build_missing(column: Column) -> Expression:
    """Return NULL in the type of a column that the source lacks."""
    if is_text(column.kind) or column.kind == "void":
        return F.lit(None).cast("string")
    return cast_to(F.lit(None), parse_type(column.kind))
