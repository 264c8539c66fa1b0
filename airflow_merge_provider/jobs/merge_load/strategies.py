"""Which strategy a run follows: what it needs of its rows, what it changes, and what its table rests on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_load.config import AnyLoad
from airflow_merge_provider.core.merge_load.keyed import DeleteInsertConfig, UpsertConfig
from airflow_merge_provider.core.merge_load.scd2 import HASH_COLUMN, shape
from airflow_merge_provider.jobs.merge_load import history, keyed, replacing, versions
from airflow_merge_provider.jobs.merge_load.history import History
from airflow_merge_provider.jobs.merge_load.intake import Intake, Wanted
from airflow_merge_provider.jobs.merge_load.memory import LoadTimes
from airflow_merge_provider.jobs.merge_load.snapshot import Snapshot
from airflow_merge_provider.jobs.merge_load.writing import Shape, Weighed, of_load, shape_of

Found = Callable[[Intake, DataFrame | None, ExitStack], Weighed]


@dataclass(frozen=True, slots=True)
class Strategy:
    """What a run does with its rows."""

    wanted: Wanted
    found: Found
    added: Sequence[str] = ()
    shape: Shape | None = None


def strategy_of(config: AnyLoad, boundary: datetime, memory: LoadTimes) -> Strategy:
    """Find the strategy of a configuration.

    ``boundary`` is when a load without a time of its own holds, ``memory`` what the target's history knows.
    """
    if isinstance(config, DeleteInsertConfig):

        def replaced(taken: Intake, stored: DataFrame | None, held: ExitStack) -> Weighed:
            return replacing.found(taken, stored, config, held)

        return Strategy(replacing.wanted(config), replaced)
    if isinstance(config, UpsertConfig):

        def by_key(taken: Intake, stored: DataFrame | None, held: ExitStack) -> Weighed:
            return keyed.found(taken, stored, config, held)

        return Strategy(keyed.wanted(config), by_key)
    rests_on = Shape(HASH_COLUMN, shape(config))
    if config.natural_key is None:

        def by_version(taken: Intake, stored: DataFrame | None, held: ExitStack) -> Weighed:
            return versions.found(taken, stored, config, boundary, held)

        return Strategy(versions.wanted(config), by_version, config.added_columns, rests_on)

    def in_history(taken: Intake, stored: DataFrame | None, held: ExitStack) -> Weighed:
        into = History(taken, stored, config, boundary, memory, held)
        return Snapshot(into).found() if config.mode == "snapshot" else of_load(taken, into.changes(), held)

    return Strategy(history.wanted(config), in_history, config.added_columns, rests_on)


def require_shape(stored: StructType, strategy: Strategy, target: str) -> None:
    """Refuse a table whose rows rest on something else than this load's.

    :raises DataError: with every difference.
    """
    found = shape_of(stored, HASH_COLUMN)
    content = None if strategy.shape is None else dict(strategy.shape.content)
    if found == content:
        return
    hint = "choose another target, or write it anew with full_refresh=True, which drops what it holds"
    if found is None or content is None:
        is_history, loads_history = ("is", "no") if found else ("is not", "a")
        message = f"the target {is_history} a history of versions, this load writes {loads_history} history"
        raise DataError.of([Problem(target, "shape", message, hint)])
    raise DataError.of(
        [
            Problem(
                name,
                "shape",
                f"is {content.get(name)!r}, the target was written with {found.get(name)!r}",
                hint,
            )
            for name in sorted({*found, *content})
            if found.get(name) != content.get(name)
        ]
    )
