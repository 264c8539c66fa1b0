"""Explain a key of any target by the capability that wrote it, and list every state of a key of any table."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Protocol

from airflow_merge_provider.core.capabilities import CAPABILITIES, list_internal_columns
from airflow_merge_provider.core.capability import load_function
from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.table_history import HistoryEntry
from airflow_merge_provider.delta_rs import is_table, parse_entry
from airflow_merge_provider.explain.merge_record import explain_merged_file, find_state_folders
from airflow_merge_provider.explain.merge_source import find_output_key
from airflow_merge_provider.explain.model.key import convert_key, parse_key
from airflow_merge_provider.explain.model.timeline import Timeline, build_timeline
from airflow_merge_provider.explain.reading import list_types, open_version, read_states, refuse_unknown_key
from airflow_merge_provider.explain.target import (
    find_key_columns,
    find_owner,
    identify_owner,
    open_target,
    read_history_columns,
    refuse_owner,
)


class AnyExplanation(Protocol):
    """The explanation of a key, as lines of text or as a JSON object."""

    def format_lines(self) -> Iterator[str]:
        """Yield the explanation as text."""

    def as_object(self) -> dict[str, Any]:
        """Return the explanation as a JSON object."""


def explain_target(
    target: str, key: str, *, warehouse: str | None = None, version: int | None = None
) -> AnyExplanation:
    """Return the explanation of a key of a target, whichever capability wrote it.

    :raises ConfigError: if the target or the key is not valid.
    :raises DataError: if no capability of this package wrote the target, or it never had the key.
    """
    dataset = resolve_dataset(target, warehouse, at="target")
    if dataset.path is not None and not is_table(dataset.path) and find_state_folders(dataset):
        return explain_merged_file(target, key, warehouse=warehouse, version=version)
    owner = find_owner(target, warehouse)
    capability = CAPABILITIES.get(owner or "")
    if capability is None or capability.explanation is None:
        raise refuse_owner(dataset, owner, "this package")
    explain = load_function(capability.explanation)
    explanation: AnyExplanation = explain(target, key, warehouse=warehouse, version=version)
    return explanation


def list_history(target: str, warehouse: str | None, limit: int) -> list[HistoryEntry]:
    """Return the newest commits of a table, or the states of a merge record, newest first.

    :raises ConfigError: if the target has no location.
    :raises DataError: if it is neither a Delta table nor a folder of a merge record.
    """
    dataset = resolve_dataset(target, warehouse, at="target")
    entries: list[HistoryEntry] = []
    if dataset.path is not None and not is_table(dataset.path):
        for folder in find_state_folders(dataset):
            entries += islice(folder.list_states(), limit)
    if entries:
        return entries
    _, table = open_target(target, warehouse)
    return list(map(parse_entry, table.history(limit)))


def trace_key(target: str, key: str, *, warehouse: str | None = None, version: int | None = None) -> Timeline:
    """Return the rows of a key after each commit that changed them.

    :param key: the value of the only key column, or a JSON object with the values of any columns. Of a merge
        source, the ID of an output or of an entity, or a ``$stable_id``.
    :param version: the version of the target at which the timeline ends; None for the newest.
    :raises ConfigError: if the target or the key is not valid.
    :raises DataError: if the target is not a Delta table, does not have the version, or never had the key.
    """
    dataset, table = open_target(target, warehouse)
    if version is not None:
        table = open_version(dataset, version)
    is_object = key.lstrip().startswith("{")
    if not is_object and identify_owner(table) == "merge_source":
        texts: dict[str, str | None] = {**find_output_key(dataset, table, key)}
    else:
        columns = () if is_object else find_key_columns(dataset, table)
        texts = parse_key(key, columns, list(list_types(table)))
    values = convert_key(texts, list_types(table))
    states = read_states(dataset, table, [values])
    if not any(state.rows for state in states.states):
        raise refuse_unknown_key(dataset, states, values)
    internal_columns = list_internal_columns(identify_owner(table))
    return build_timeline(values, states, read_history_columns(table), internal_columns)
