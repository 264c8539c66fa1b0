"""Find the columns that identify the rows of a target, in what its properties and commits record."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig
from airflow_merge_provider.core.merge_load.scd2 import HASH_COLUMN
from airflow_merge_provider.core.merge_load.target_form import read_history_settings
from airflow_merge_provider.explain.model.commits import CommitRef
from airflow_merge_provider.explain.model.history import HistoryColumns
from airflow_merge_provider.explain.model.joins import JoinDescription
from airflow_merge_provider.explain.reading import find_column, list_types, read_lineage
from airflow_merge_provider.explain.target import identify_owner

if TYPE_CHECKING:
    from deltalake import DeltaTable

_OUTPUT_ID = "_id"


def find_key_columns(dataset: Dataset, table: DeltaTable) -> tuple[str, ...]:
    """Return the columns whose values a KEY has; empty if the target has no key, or does not record it."""
    history = read_history_columns(table)
    return _find_recorded_key(dataset, table) if history is None else history.key


def find_row_columns(dataset: Dataset, table: DeltaTable) -> tuple[str, ...]:
    """Return the columns that identify one row: in a history, those of a version of a key."""
    history = read_history_columns(table)
    if history is None:
        return _find_recorded_key(dataset, table)
    return (*(history.key or (history.hash,)), history.valid_from)


def read_history_columns(table: DeltaTable) -> HistoryColumns | None:
    """Return the columns of a history; None if the table is not one."""
    settings = read_history_settings(json.loads(table.schema().to_json())["fields"])
    return None if settings is None else HistoryColumns.from_settings(settings, HASH_COLUMN)


def _find_recorded_key(dataset: Dataset, table: DeltaTable) -> tuple[str, ...]:
    owner, types = identify_owner(table), list_types(table)
    if owner is None:
        return ()
    commits = map(CommitRef.from_entry, read_lineage(dataset, table).entries)
    states = (commit.state for commit in commits if commit.state.get("capability") == owner)
    names = next((key for state in states for key in _list_keys(owner, state)), ())
    columns = [find_column(name, types) for name in ((_OUTPUT_ID,) if owner == "merge_source" else names)]
    return tuple(column for column in columns if column is not None)


def _list_keys(owner: str, state: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the key that the state of a run records, if it does."""
    if owner == "merge_load" and "config" in state:
        config = state["config"]
        yield tuple(config.get("primary_key") or config.get("merge_key") or ())
    if owner == "merge_engine" and state.get("configs"):
        yield MergeEngineConfig.parse(next(iter(state["configs"].values()))).primary_key
    if owner == "joiner" and "join" in state:
        yield JoinDescription.from_state(state["join"]).key_columns
