"""Explain a row of a load's target: the runs that wrote it, and the source rows that the last of them read.

Neither Spark nor Airflow is needed: the target's older versions and the source at the version that the run
read are read with delta-rs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_merge_provider.core.capabilities import list_internal_columns
from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import MergeError
from airflow_merge_provider.core.source_offset import read_offsets
from airflow_merge_provider.core.value_text import Row
from airflow_merge_provider.explain.model.commits import CommitRef, KeyState, KeyStates
from airflow_merge_provider.explain.model.history import (
    HistoryColumns,
    HistoryExplanation,
    trace_history,
)
from airflow_merge_provider.explain.model.key import convert_key, parse_key
from airflow_merge_provider.explain.model.rows import (
    RowChange,
    RowExplanation,
    SourceRows,
    explain_absence,
    explain_source_rows,
    trace_changes,
)
from airflow_merge_provider.explain.reading import (
    list_types,
    read_input_rows,
    read_lineage,
    read_states,
    refuse_unknown_key,
)
from airflow_merge_provider.explain.target import open_target, read_history_columns, require_owner

if TYPE_CHECKING:
    from deltalake import DeltaTable

_MERGE_LOAD = "merge_load"


def explain_row(
    target: str, key: str, *, warehouse: str | None = None, version: int | None = None
) -> RowExplanation | HistoryExplanation:
    """Return which runs wrote the rows of a key, or the history of the key if the target is one.

    ``key`` is the value of the only key column, or a JSON object with the values of several columns. If the
    target has no key, the object names any columns. ``version`` is the version of the target to explain.

    :raises ConfigError: if the target or the key is not valid.
    :raises DataError: if no load wrote the target, or neither it nor its source ever had the key.
    """
    dataset, table = open_target(target, warehouse, version)
    require_owner(dataset, table, _MERGE_LOAD)
    columns = read_history_columns(table)
    if columns is None:
        return _explain_row(dataset, table, key)
    return _explain_history(dataset, table, key, columns)


def _explain_row(dataset: Dataset, table: DeltaTable, key: str) -> RowExplanation:
    texts, config = _parse_key(dataset, table, key)
    values = convert_key(texts, list_types(table))
    states = read_states(dataset, table, [values])
    changes = trace_changes(states)
    state = _find_deciding_state(states, changes)
    source = read_source_rows(state, values)
    _require_known(dataset, states, values, source)
    if not states.newest.rows:
        source = replace(source, reason=explain_absence(config, source))
    internal = list_internal_columns(_MERGE_LOAD)
    return RowExplanation(values, states.newest.rows, changes, source, states.missing, internal)


def _explain_history(
    dataset: Dataset, table: DeltaTable, key: str, columns: HistoryColumns
) -> HistoryExplanation:
    texts = parse_key(key, columns.key, list(list_types(table)))
    values = convert_key(texts, list_types(table))
    states = read_states(dataset, table, [values])
    versions = trace_history(states, columns)
    source = SourceRows()
    if not versions:
        source = read_source_rows(_find_deciding_state(states, ()), values)
        _require_known(dataset, states, values, source)
    return HistoryExplanation(values, columns, versions, source, states.missing)


def read_source_rows(state: KeyState, key: Row) -> SourceRows:
    """Return the source rows of a key at the version that a run read, and what the run did with them."""
    offsets = read_offsets(state.commit.state)
    if len(offsets) != 1:
        return SourceRows(missing="unknown, as the commit of the last change does not name its source")
    offset = offsets[0]
    try:
        _, rows = read_input_rows(offset, key)
    except MergeError as error:
        return SourceRows(offset.uri, offset.version, missing=str(error).splitlines()[0])
    config = state.commit.state.get("config") or {}
    return SourceRows(offset.uri, offset.version, explain_source_rows(config, state.rows, rows))


def _parse_key(
    dataset: Dataset, table: DeltaTable, key: str
) -> tuple[dict[str, str | None], Mapping[str, Any]]:
    """Return the key, and the configuration of the newest run that recorded one."""
    commits = map(CommitRef.from_entry, read_lineage(dataset, table).entries)
    config: Mapping[str, Any] = next(
        (commit.state["config"] for commit in commits if "config" in commit.state), {}
    )
    if config.get("primary_key"):
        return parse_key(key, config["primary_key"]), config
    # A group may have many rows, so an object may name any columns of them.
    columns = () if key.lstrip().startswith("{") else config.get("merge_key") or ()
    return parse_key(key, columns, list(list_types(table))), config


def _find_deciding_state(states: KeyStates, changes: Sequence[RowChange]) -> KeyState:
    """Return the state after the last change of a key; without changes, that after the newest run."""
    if changes:
        version = changes[-1].commit.version
        return next(state for state in states.states if state.commit.version == version)
    runs = [state for state in states.states if state.commit.state]
    return runs[-1] if runs else states.newest


def _require_known(dataset: Dataset, states: KeyStates, values: Row, source: SourceRows) -> None:
    """Raise an error if neither the target nor its source had a row of the key in any readable version."""
    if source.rows or any(state.rows for state in states.states):
        return
    hint = "" if source.missing else f"the source {source.source} has none in version {source.version} either"
    raise refuse_unknown_key(dataset, states, values, hint)
