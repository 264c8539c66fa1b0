"""Test that runs, retries and undos keep their guarantees in every order of their steps.

The decisions are those of the package; only the commits are made in memory. Each world is explored in full.
Whatever happens, later runs leave every batch of the source in the target once, and once in its change log,
and keep the rows of other writers.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.run.previous_run import load_previous_run
from tests.protocol.lake import Lake, LakeLog
from tests.protocol.model import (
    CHANGES,
    ENGINE,
    FOREIGN,
    LOG,
    SOURCE,
    TARGET,
    Process,
    World,
    append_batch,
    settle,
)

A, A_AGAIN, B = Process("a"), Process("a"), Process("b")
UNDO, LATER_UNDO = Process("u", "undo"), Process("v", "undo")
WORLDS = [
    ([A, B], ["append", "crash"]),
    ([A, A_AGAIN], ["append", "crash"]),
    ([A, B], ["append", "optimize"]),
    ([A, B], ["append", "foreign"]),
    ([A], ["append", "crash", "foreign"]),
    ([A, B], ["append", "expire"]),
    ([A], ["append", "crash", "expire"]),
    ([A, B], ["wait", "expire"]),
    ([A, UNDO], ["wait"]),
    ([A, UNDO], ["append", "crash", "optimize"]),
    ([A, B, UNDO], ["append"]),
    ([A, UNDO, LATER_UNDO], ["append"]),
    ([A, UNDO, UNDO], ["append"]),
    ([A, B, UNDO], ["append", "append", "crash", "optimize"]),
    ([A, A_AGAIN, B, UNDO], ["append", "crash"]),
]


def list_worlds() -> Iterator[Any]:
    """Yield the worlds, each without a target and with one; those that take longer than a second are long."""
    for processes, events in WORLDS:
        for has_target in (False, True)[: 1 if len(processes) > 3 else 2]:
            is_long = len(processes) + len(events) > 4 or (UNDO in processes and has_target)
            yield pytest.param(processes, events, has_target, marks=pytest.mark.long if is_long else ())


@pytest.mark.parametrize(("processes", "events", "has_target"), [*list_worlds()])
def test_every_batch_is_folded_once(
    processes: Sequence[Process], events: Sequence[str], has_target: bool
) -> None:
    lake = append_batch(Lake())
    if has_target:
        lake = append_batch(settle(lake, "first")[0])

    assert explore(World(lake, tuple(processes), tuple(events)))["committed"]


def explore(start: World) -> Counter[str]:
    """Check a world and all worlds that can follow; return how often each outcome was reached."""
    keys, waiting, outcomes = {start.key}, deque([start]), Counter[str]()
    while waiting:
        world = waiting.popleft()
        rows = Counter(world.lake[TARGET].rows)
        assert not rows or max(rows.values()) == 1, world
        if all(process.step == "done" for process in world.processes):
            check_end(world)
            outcomes.update(process.outcome.split(":")[0] for process in world.processes)
        for following in world.list_next():
            if following.key not in keys:
                keys.add(following.key)
                waiting.append(following)
    return outcomes


def check_end(world: World) -> None:
    """Let runs do what is left, and compare target, change log and source."""
    if any(process.outcome == "unreverted" for process in world.processes):
        # The task has failed, and says what to repair.
        return
    lake, outcomes = settle(world.lake)
    if lake[TARGET].oldest and outcomes[-1].startswith(
        "refused: source: the history of /lake/state no longer"
    ):
        check_refresh(lake)
        return
    assert outcomes[-1] == "noop", (outcomes, world)
    assert Counter(lake[TARGET].rows) == Counter((*lake[SOURCE].rows, *world.foreign_rows)), world
    last = load_previous_run(LakeLog(lake), resolve_dataset(TARGET, "/lake"), ENGINE)
    assert last is not None
    assert Counter(lake[CHANGES].read_rows(last.side_table_versions[LOG])) == Counter(lake[SOURCE].rows), (
        world
    )


def check_refresh(lake: Lake) -> None:
    """Fold the source again: nobody knows how far it was folded, but the change log of that is kept."""
    process, committed = Process("refresh", full_refresh=True), set(lake[TARGET].rows) - {FOREIGN}
    while process.step != "done":
        process, lake = process.advance(lake)
    assert process.outcome == "committed", process
    assert lake[TARGET].rows == lake[SOURCE].rows
    assert Counter(lake[CHANGES].rows) == Counter([*lake[SOURCE].rows, *committed]), lake
