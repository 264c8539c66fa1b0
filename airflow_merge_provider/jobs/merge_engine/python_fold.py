"""Fold records one by one in Python, and describe which record provides each value that a fold changes."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, functions as F
from pyspark.sql.types import BooleanType, StringType, StructField, StructType

from airflow_merge_provider.core import merge_engine as core
from airflow_merge_provider.core.change_plan.summary import ChangeExample
from airflow_merge_provider.core.merge_engine.fold import FoldResult, Record, fold_records
from airflow_merge_provider.core.merge_engine.plan import Plan
from airflow_merge_provider.core.merge_engine.trace import KeyTrace, trace_records
from airflow_merge_provider.jobs import merge_engine as jobs
from airflow_merge_provider.jobs.merge_engine.records import (
    ADDS,
    CLEARS,
    DELETES,
    IGNORED,
    RECORD_POSITION,
    STORED,
    build_records,
    build_window,
)
from airflow_merge_provider.jobs.spark import sql
from airflow_merge_provider.jobs.spark.exact_text import JSON_OPTIONS
from airflow_merge_provider.jobs.spark.expressions import combine_with_and
from airflow_merge_provider.jobs.spark.pickling import pickle_once

HISTORY = "#history"
ALIVE = "#folded_alive"
FOLDED_PROBLEM = "#folded_problem"
FOLDED_REMOVED = "#folded_removed"
_FOLDED_AT = "at"


def collect_history(plan: Plan) -> Column:
    """Return the aggregate that collects the records of a key, with the columns that the fold reads."""
    flags = {_FOLDED_AT: RECORD_POSITION, "adds": ADDS, "deletes": DELETES, "stored": STORED}
    flags |= {"clears": CLEARS} if plan.clears else {}
    record = F.struct(
        *(sql.quote_column(name).alias(as_) for as_, name in flags.items()),
        F.struct(*map(sql.quote_column, _list_columns(plan))).alias("values"),
    )
    return F.collect_list(F.when(~sql.quote_column(IGNORED), record)).alias(HISTORY)


def fold_in_python(plan: Plan, gathered: DataFrame) -> DataFrame:
    """Replace the history of each key with its folded columns, ``ALIVE`` and ``PROBLEM``.

    ``ALIVE`` is whether the key has a row, ``PROBLEM`` an error text. If removals are recorded and whole
    rows are folded, ``REMOVED`` holds the ordering values of the newest removal.
    """
    other_fields = [field for field in gathered.schema.fields if field.name != HISTORY]
    values_type = _values_type(gathered)
    folded = [StructField(rule.name, values_type[rule.name].dataType) for rule in plan.folded_rules]
    flags = [StructField(ALIVE, BooleanType()), StructField(FOLDED_PROBLEM, StringType())]
    if plan.remembers and plan.folds_rows:
        flags.append(StructField(FOLDED_REMOVED, StructType([values_type[name] for name in plan.remembered])))
    return gathered.mapInArrow(_build_folder(plan), StructType([*other_fields, *folded, *flags]))


def _list_columns(plan: Plan) -> list[str]:
    """Return the columns that the fold reads: the folded ones and the ordering columns of their groups."""
    groups = {rule.group for rule in plan.folded_rules if rule.group is not None} | set(plan.removing_groups)
    ordering = [name for group_index in sorted(groups) for name in plan.groups[group_index].order]
    return list(dict.fromkeys([*(rule.name for rule in plan.folded_rules), *ordering]))


def _values_type(gathered: DataFrame) -> StructType:
    element: Any = gathered.schema[HISTORY].dataType
    values: StructType = element.elementType["values"].dataType
    return values


def _build_folder(plan: Plan) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    rules = plan.folded_rules

    def fold_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            histories = batch.column(HISTORY)
            keys = histories.cast(convert_times(histories.type)).to_pylist()
            results = [fold_records(plan, rules, _read_records(entries)) for entries in keys]
            yield _with_results(plan, batch, results)

    return pickle_once(fold_batches, core, jobs)


def convert_times(kind: pa.DataType) -> pa.DataType:
    """Return a type with numbers for dates and timestamps: Python only has those of the years 1 to 9999."""
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(convert_times(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(convert_times(kind.value_type)))
    if pa.types.is_map(kind):
        fields = (kind.key_field, kind.item_field)
        return pa.map_(*(field.with_type(convert_times(field.type)) for field in fields))
    return kind


def _build_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return folded values, whose times are numbers, in the type of their column."""
    numbers = pa.array(values, convert_times(kind))
    return numbers if numbers.type == kind else numbers.cast(kind)


def _read_records(entries: list[dict[str, Any]]) -> Iterator[Record]:
    for entry in sorted(entries, key=lambda item: int(item[_FOLDED_AT])):
        clears = frozenset(entry.get("clears") or ())
        yield Record(entry["values"], entry["adds"], entry["deletes"], entry["stored"], clears)


def _with_results(plan: Plan, batch: pa.RecordBatch, results: list[FoldResult]) -> pa.RecordBatch:
    values = batch.schema.field(HISTORY).type.value_type.field("values").type
    columns = {name: batch.column(name) for name in batch.schema.names if name != HISTORY}
    for name in (rule.name for rule in plan.folded_rules):
        column_values = [result.values.get(name) for result in results]
        columns[name] = _build_array(column_values, values.field(name).type)
    columns[ALIVE] = pa.array([result.is_live for result in results], pa.bool_())
    columns[FOLDED_PROBLEM] = pa.array([result.problem for result in results], pa.string())
    if plan.remembers and plan.folds_rows:
        ordering = pa.struct([values.field(name) for name in plan.remembered])
        columns[FOLDED_REMOVED] = _build_array([result.removed for result in results], ordering)
    return pa.RecordBatch.from_pydict(columns)


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
