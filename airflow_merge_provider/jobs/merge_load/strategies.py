"""Which strategy a run follows: what it needs of its rows, what it changes, and what its table rests on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_load.config import AnyLoad
from airflow_merge_provider.core.merge_load.keyed import DeleteInsertConfig, UpsertConfig
from airflow_merge_provider.core.merge_load.scd2 import HASH_COLUMN, shape
from airflow_merge_provider.jobs.merge_load import history, keyed, replacing, versions
from airflow_merge_provider.jobs.merge_load.changes import Changes
from airflow_merge_provider.jobs.merge_load.history import History
from airflow_merge_provider.jobs.merge_load.intake import Intake, Wanted
from airflow_merge_provider.jobs.merge_load.memory import Memory
from airflow_merge_provider.jobs.merge_load.writing import Shape, shape_of


@dataclass(frozen=True, slots=True)
class Strategy:
    """What a run does with its rows."""

    wanted: Wanted
    changes: Callable[[Intake, DataFrame | None], Changes]
    kinds: Sequence[str]
    added: Sequence[str] = ()
    shape: Shape | None = None


def strategy_of(config: AnyLoad, boundary: datetime, memory: Memory) -> Strategy:
    """Find the strategy of a configuration.

    ``boundary`` is when a load without a time of its own holds, ``memory`` what the target's history knows.
    """
    if isinstance(config, DeleteInsertConfig):
        change = partial(replacing.changes, config=config)
        return Strategy(replacing.wanted(config), change, ("inserted", "updated", "deleted"))
    if isinstance(config, UpsertConfig):
        change = partial(keyed.changes, config=config)
        return Strategy(keyed.wanted(config), change, ("inserted", "updated", "deleted"))
    rests_on = Shape(HASH_COLUMN, shape(config))
    if config.natural_key is not None:

        def change_history(taken: Intake, stored: DataFrame | None) -> Changes:
            return History(taken, stored, config, boundary, memory).changes()

        return Strategy(history.wanted(config), change_history, history.KINDS, config.added_columns, rests_on)
    return Strategy(
        versions.wanted(config),
        partial(versions.changes, config=config, boundary=boundary),
        ("opened", "closed", "reopened", "removed"),
        config.added_columns,
        rests_on,
    )


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
