"""Open a target at a version with delta-rs, and find who writes it and which columns identify its rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from airflow_merge_provider.core.capabilities import CAPABILITIES
from airflow_merge_provider.core.dataset import Dataset, resolve_dataset
from airflow_merge_provider.core.errors import ConfigError, DataError, Problem
from airflow_merge_provider.core.merge_load.columns import read_history_settings
from airflow_merge_provider.core.merge_load.scd2 import HASH_COLUMN
from airflow_merge_provider.core.population import WRITER
from airflow_merge_provider.delta_rs import open_table
from airflow_merge_provider.explain.model.commits import CommitRef
from airflow_merge_provider.explain.model.history import HistoryColumns
from airflow_merge_provider.explain.reading import find_column, list_types, read_lineage

if TYPE_CHECKING:
    from deltalake import DeltaTable


def open_target(target: str, warehouse: str | None, version: int | None = None) -> tuple[Dataset, DeltaTable]:
    """Open a target.

    :raises ConfigError: when it has no location.
    :raises DataError: when it is not a Delta table.
    """
    from deltalake.exceptions import TableNotFoundError

    dataset = resolve_dataset(target, warehouse, at="target")
    if dataset.path is None:
        problem = Problem(
            "target",
            "dataset",
            "the location of a catalog table is unknown without Spark",
            "set target to the location",
        )
        raise ConfigError.from_problems([problem])
    try:
        return dataset, open_table(dataset.path, version)
    except TableNotFoundError:
        raise DataError(f"{dataset.uri} is not a Delta table: check the name and the warehouse") from None


def require_owner(dataset: Dataset, table: DeltaTable, owner: str) -> None:
    """Raise an error if a target was not written by a capability.

    :raises DataError: if the properties of the table do not name the capability.
    """
    writer = table.metadata().configuration.get(WRITER)
    if writer != owner:
        raise refuse_owner(dataset, writer, owner)


def refuse_owner(dataset: Dataset, writer: str | None, owner: str) -> DataError:
    """Return the error of a table that another writer has written."""
    message = f"{dataset.uri} was written by {writer or 'another program'}, not by {owner}"
    hint = "set target to the target of a task, and check the warehouse"
    return DataError.from_problems([Problem("target", "foreign-target", message, hint)])


def find_owner(target: str, warehouse: str | None) -> str | None:
    """Return the capability that writes a target; None if another program writes the table.

    :raises ConfigError, DataError: as ``open_target`` does.
    """
    _, table = open_target(target, warehouse)
    return identify_owner(table)


def identify_owner(table: DeltaTable) -> str | None:
    """Return the capability that writes a table; None if another program does."""
    owner = table.metadata().configuration.get(WRITER)
    is_golden = owner is None and any(field.name == "_members" for field in table.schema().fields)
    return "merge_source" if is_golden else owner


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
    if owner is None or owner not in CAPABILITIES:
        # A side table has an owner of its own.
        return ()
    commits = map(CommitRef.from_entry, read_lineage(dataset, table).entries)
    states = [commit.state for commit in commits if commit.state.get("capability") == owner]
    # The newest run that records a key decides. Some capabilities have one key, whatever their runs record.
    keys = map(CAPABILITIES[owner].find_recorded_key, [*states, {}])
    columns = [find_column(name, types) for name in next((key for key in keys if key is not None), ())]
    return tuple(column for column in columns if column is not None)
