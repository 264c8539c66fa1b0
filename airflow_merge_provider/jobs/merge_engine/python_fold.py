"""Fold records one by one in Python: the records of a key are sent as Arrow, and values come back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, functions as F
from pyspark.sql.types import BooleanType, StringType, StructField, StructType

from airflow_merge_provider.core import merge_engine as core
from airflow_merge_provider.core.merge_engine.fold import FoldResult, Record, fold_records
from airflow_merge_provider.core.merge_engine.plan import Plan
from airflow_merge_provider.jobs import merge_engine as jobs
from airflow_merge_provider.jobs.merge_engine.records import (
    ADDS,
    CLEARS,
    DELETES,
    IGNORED,
    RECORD_POSITION,
    STORED,
)
from airflow_merge_provider.jobs.spark import sql
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
