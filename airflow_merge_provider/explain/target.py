"""Open a target at a version with delta-rs, without Spark, and raise clear errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_merge_provider.core.dataset import Dataset, resolve_dataset
from airflow_merge_provider.core.errors import ConfigError, DataError, Problem
from airflow_merge_provider.core.population import WRITER
from airflow_merge_provider.delta_rs import open_table

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
