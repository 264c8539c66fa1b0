"""Select the strategy of a load: its staging requirements, its changes, and the shape of its table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import DataFrame

from airflow_merge_provider.core.merge_load.config import AnyLoad, DeleteInsertConfig, UpsertConfig
from airflow_merge_provider.core.merge_load.requirements import StagingRequirements, build_requirements
from airflow_merge_provider.core.merge_load.scd2 import HASH_COLUMN, build_history_shape
from airflow_merge_provider.jobs.merge_load import delete_insert, upsert
from airflow_merge_provider.jobs.merge_load.scd2 import versions
from airflow_merge_provider.jobs.merge_load.scd2.history import History, LoadTimes
from airflow_merge_provider.jobs.merge_load.scd2.snapshot import Snapshot
from airflow_merge_provider.jobs.merge_load.sequences import Sequences
from airflow_merge_provider.jobs.merge_load.staging import StagedLoad
from airflow_merge_provider.jobs.merge_load.writing import CountedChanges, TableShape, count_load

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

        return Strategy(build_requirements(config), find_replaced)
    if isinstance(config, UpsertConfig):

        def by_key(load: StagedLoad, stored: DataFrame | None, held: ExitStack) -> CountedChanges:
            return upsert.find_changes(load, stored, config, held, sequences, boundary)

        return Strategy(build_requirements(config), by_key)
    shape = TableShape(HASH_COLUMN, build_history_shape(config))
    if config.natural_key is None:

        def by_version(load: StagedLoad, stored: DataFrame | None, held: ExitStack) -> CountedChanges:
            return versions.find_changes(load, stored, config, boundary, held)

        return Strategy(build_requirements(config), by_version, config.added_columns, shape)

    def in_history(load: StagedLoad, stored: DataFrame | None, held: ExitStack) -> CountedChanges:
        key_history = History(load, stored, config, boundary, load_times, sequences, held)
        return (
            Snapshot(key_history).find_changes()
            if config.mode == "snapshot"
            else count_load(load, key_history.find_changes(), held)
        )

    return Strategy(build_requirements(config), in_history, config.added_columns, shape)
