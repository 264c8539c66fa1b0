"""Describe which record of a key provides each value that a fold changes, for the examples of a plan."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, functions as F
from pyspark.sql.types import StructType

from airflow_merge_provider.core.change_plan.summary import ChangeExample
from airflow_merge_provider.core.merge_engine.fold import Record
from airflow_merge_provider.core.merge_engine.plan import Plan
from airflow_merge_provider.core.merge_engine.trace import KeyTrace, trace_records
from airflow_merge_provider.jobs.merge_engine.python_fold import convert_times
from airflow_merge_provider.jobs.merge_engine.records import (
    ADDS,
    CLEARS,
    DELETES,
    IGNORED,
    STORED,
    build_records,
    build_window,
)
from airflow_merge_provider.jobs.spark import sql
from airflow_merge_provider.jobs.spark.exact_text import JSON_OPTIONS
from airflow_merge_provider.jobs.spark.expressions import combine_with_and

_WINNER_KEY, _WINNER_NUMBER, _WINNER_POSITION, _VALUES = "#key", "#number", "#at", "#values"


def describe_winners(
    plan: Plan,
    batch: DataFrame,
    stored: DataFrame | None,
    removed: DataFrame | None,
    examples: Sequence[ChangeExample],
) -> list[ChangeExample]:
    """Return the examples with the winning record of each changed column as their detail.

    The records of a key are numbered from the oldest; the stored row is the oldest one.
    Source: docs/semantics/merge_engine.md, Counts and traces.
    """
    rows = build_records(plan, batch, stored, removed)
    selected = rows.where(~sql.quote_column(IGNORED)).select(
        *map(sql.quote_column, plan.key),
        F.row_number().over(build_window(plan)).alias(_WINNER_POSITION),
        *(sql.quote_column(name) for name in (ADDS, DELETES, STORED, *([CLEARS] if plan.clears else []))),
        F.struct(*map(sql.quote_column, plan.names)).alias(_VALUES),
    )
    records: defaultdict[int, list[Record]] = defaultdict(list)
    joined = _join_keys(plan, selected, examples).orderBy(_WINNER_NUMBER, _WINNER_POSITION).toArrow()
    kinds = pa.schema([field.with_type(convert_times(field.type)) for field in joined.schema])
    for row in joined.cast(kinds).to_pylist():
        clears = frozenset(row[CLEARS] or ()) if plan.clears else frozenset[str]()
        record = Record(row[_VALUES], row[ADDS], row[DELETES], row[STORED], clears)
        records[row[_WINNER_NUMBER]].append(record)
    return [
        example.model_copy(update={"detail": "; ".join(_describe_columns(plan, example, records[number]))})
        for number, example in enumerate(examples)
    ]


def _join_keys(plan: Plan, rows: DataFrame, examples: Sequence[ChangeExample]) -> DataFrame:
    """Return the rows of the examples' keys, with the number of the example; keys are compared by type."""
    texts = [(number, json.dumps(_read_key(plan, example))) for number, example in enumerate(examples)]
    kinds = StructType([rows.schema[name] for name in plan.key])
    keys = rows.sparkSession.createDataFrame(texts, f"`{_WINNER_NUMBER}` INT, text STRING").select(
        sql.quote_column(_WINNER_NUMBER), F.from_json("text", kinds, JSON_OPTIONS).alias(_WINNER_KEY)
    )
    pairs = (
        rows[sql.quote_name(name)].eqNullSafe(keys[sql.quote_name(_WINNER_KEY)][name]) for name in plan.key
    )
    return rows.join(F.broadcast(keys), combine_with_and(pairs))


def _describe_columns(plan: Plan, example: ChangeExample, records: Sequence[Record]) -> Iterator[str]:
    """Yield a text for each column that changes, or for the removal of the row."""
    if not records:
        return
    trace = trace_records(plan, records)
    if not trace.is_live:
        yield _describe_removal(trace, records)
        return
    for name, _, _ in example.list_changed_columns():
        if name in trace.values:
            source = trace.values[name]
            numbers = ", ".join(_name_record(records, position) for position in source.records)
            yield f"{name}: {source.why}{f' ({numbers})' if numbers else ''}"


def _describe_removal(trace: KeyTrace, records: Sequence[Record]) -> str:
    removing = [position for position, effect in enumerate(trace.did) if effect == "removed the row"]
    position = removing[-1] if removing else len(records) - 1
    return f"removed by {_name_record(records, position)}"


def _name_record(records: Sequence[Record], position: int) -> str:
    if records[position].stored:
        return "the stored row"
    return f"record {position + 1} of {len(records)}"


def _read_key(plan: Plan, example: ChangeExample) -> dict[str, Any]:
    """Return the key of an example; NULLs are left out."""
    row = (example.before if example.after is None else example.after) or {}
    return {name: row[name] for name in plan.key if name in row}
