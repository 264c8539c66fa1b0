"""Select the strategy of a load: its staging requirements, its changes, and the shape of its table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_load.config import AnyLoad
from airflow_merge_provider.core.merge_load.keyed_loads import DeleteInsertConfig, UpsertConfig
from airflow_merge_provider.core.merge_load.scd2 import HASH_COLUMN, build_history_shape
from airflow_merge_provider.jobs.merge_load import delete_insert, upsert
from airflow_merge_provider.jobs.merge_load.scd2 import history, versions
from airflow_merge_provider.jobs.merge_load.scd2.history import History
from airflow_merge_provider.jobs.merge_load.scd2.load_times import LoadTimes
from airflow_merge_provider.jobs.merge_load.scd2.snapshot import Snapshot
from airflow_merge_provider.jobs.merge_load.sequences import Sequences
from airflow_merge_provider.jobs.merge_load.staging import StagedLoad, StagingRequirements
from airflow_merge_provider.jobs.merge_load.writing import CountedChanges, TableShape, count_load, read_shape

Found = Callable[[StagedLoad, DataFrame | None, ExitStack], CountedChanges]


@dataclass(frozen=True, slots=True)
class Strategy:
    """The steps of a load that depend on its configuration."""

    requirements: StagingRequirements
    find_changes: Found
    added: Sequence[str] = ()
    shape: TableShape | None = None


def choose_strategy(
    config: AnyLoad, boundary: datetime, load_times: LoadTimes, sequences: Sequences
) -> Strategy:
    """Return the strategy of a configuration.

    ``boundary`` is the time from which rows without a time of their own are valid, ``load_times`` the
    recorded load times of the target's history, ``sequences`` the recorded sequences of rows that the target
    does not show.
    """
    if isinstance(config, DeleteInsertConfig):

        def find_replaced(load: StagedLoad, stored: DataFrame | None, held: ExitStack) -> CountedChanges:
            return delete_insert.find_changes(load, stored, config, held)

        return Strategy(delete_insert.build_requirements(config), find_replaced)
    if isinstance(config, UpsertConfig):

        def by_key(load: StagedLoad, stored: DataFrame | None, held: ExitStack) -> CountedChanges:
            return upsert.find_changes(load, stored, config, held, sequences, boundary)

        return Strategy(upsert.build_requirements(config), by_key)
    shape = TableShape(HASH_COLUMN, build_history_shape(config))
    if config.natural_key is None:

        def by_version(load: StagedLoad, stored: DataFrame | None, held: ExitStack) -> CountedChanges:
            return versions.find_changes(load, stored, config, boundary, held)

        return Strategy(versions.build_requirements(config), by_version, config.added_columns, shape)

    def in_history(load: StagedLoad, stored: DataFrame | None, held: ExitStack) -> CountedChanges:
        key_history = History(load, stored, config, boundary, load_times, sequences, held)
        return (
            Snapshot(key_history).find_changes()
            if config.mode == "snapshot"
            else count_load(load, key_history.find_changes(), held)
        )

    return Strategy(history.build_requirements(config), in_history, config.added_columns, shape)


def require_shape(stored: StructType, strategy: Strategy, target: str) -> None:
    """Raise an error if the target was written with other history settings than those of this load.

    :raises DataError: with every difference.
    """
    stored_shape = read_shape(stored, HASH_COLUMN)
    load_shape = None if strategy.shape is None else dict(strategy.shape.content)
    if stored_shape == load_shape:
        return
    hint = "choose another target, or rebuild it with full_refresh=True, which replaces its content"
    if stored_shape is None or load_shape is None:
        is_history, loads_history = ("is", "does not write") if stored_shape else ("is not", "writes")
        message = f"the target {is_history} an SCD2 history, but this load {loads_history} one"
        raise DataError.from_problems([Problem(target, "shape", message, hint)])
    raise DataError.from_problems(
        [
            Problem(
                name,
                "shape",
                f"is {load_shape.get(name)!r}, but the target was written with {stored_shape.get(name)!r}",
                hint,
            )
            for name in sorted({*stored_shape, *load_shape})
            if stored_shape.get(name) != load_shape.get(name)
        ]
    )
