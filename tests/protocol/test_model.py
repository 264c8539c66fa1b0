"""Test that runs, retries and undos keep their guarantees in every order of their steps.

The decisions are those of the package; only the commits are made in memory. Each world is explored in full.
Whatever happens, later runs leave every batch of the source in the target once, and once in its change log,
and keep the rows of other writers.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

import pytest

from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.run.previous_run import load_previous_run
from tests.protocol.lake import Lake, LakeLog
from tests.protocol.model import (
    CHANGES,
    ENGINE,
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
    ([A, UNDO], ["append", "crash", "optimize"]),
    ([A, B, UNDO], ["append"]),
    ([A, UNDO, LATER_UNDO], ["append"]),
    ([A, UNDO, UNDO], ["append"]),
    pytest.param([A, B, UNDO], ["append", "append", "crash", "optimize"], marks=pytest.mark.long),
    pytest.param([A, A_AGAIN, B, UNDO], ["append", "crash"], marks=pytest.mark.long),
]


@pytest.mark.parametrize(("processes", "events"), WORLDS)
def test_every_batch_is_folded_once(processes: Sequence[Process], events: Sequence[str]) -> None:
    world = World(append_batch(Lake()), tuple(processes), tuple(events))

    assert explore(world)["committed"]


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
    lake, outcomes = settle(world.lake)
    assert outcomes[-1] == "noop", (outcomes, world)
    assert Counter(lake[TARGET].rows) == Counter((*lake[SOURCE].rows, *world.foreign_rows)), world
    last = load_previous_run(LakeLog(lake), resolve_dataset(TARGET, "/lake"), ENGINE)
    assert last is not None
    assert Counter(lake[CHANGES].read_rows(last.side_table_versions[LOG])) == Counter(lake[SOURCE].rows), (
        world
    )
