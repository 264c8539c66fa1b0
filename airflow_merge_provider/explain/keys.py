"""Find the columns that identify the rows of a target, in what its properties and commits record."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from airflow_merge_provider.core.capabilities import CAPABILITIES
from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.merge_load.scd2 import HASH_COLUMN
from airflow_merge_provider.core.merge_load.target_form import read_history_settings
from airflow_merge_provider.explain.model.commits import CommitRef
from airflow_merge_provider.explain.model.history import HistoryColumns
from airflow_merge_provider.explain.reading import find_column, list_types, read_lineage
from airflow_merge_provider.explain.target import identify_owner

if TYPE_CHECKING:
    from deltalake import DeltaTable


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
    keys = map(CAPABILITIES[owner].find_recorded_key, states)
    columns = [find_column(name, types) for name in next(filter(None, keys), ())]
    return tuple(column for column in columns if column is not None)
