"""Explain a row of a copy: the runs that changed it."""

from __future__ import annotations

from airflow_merge_provider.core.source_offset import read_offsets
from airflow_merge_provider.explain.model.key import convert_key, parse_key
from airflow_merge_provider.explain.model.rows import (
    RowExplanation,
    SourceRow,
    SourceRows,
    trace_changes,
)
from airflow_merge_provider.explain.reading import list_types, read_input_rows, read_states
from airflow_merge_provider.explain.target import find_key_columns, open_target


def explain_copied_row(
    target: str, key: str, *, warehouse: str | None = None, version: int | None = None
) -> RowExplanation:
    dataset, table = open_target(target, warehouse, version)
    values = convert_key(parse_key(key, find_key_columns(dataset, table)), list_types(table))
    states = read_states(dataset, table, [values])
    source = SourceRows(missing="an undo reads no source")
    for offset in read_offsets(states.newest.commit.state):
        rows = tuple(SourceRow(row, "copied") for row in read_input_rows(offset, values)[1])
        source = SourceRows(offset.uri, offset.version, rows)
    return RowExplanation(values, states.newest.rows, trace_changes(states), source, states.missing)
