"""Test that a load taken out of a history leaves the history of the other loads, key by key, by an oracle."""

# ruff: noqa: S311 - random tests, not secrets

from __future__ import annotations

import json
from contextlib import ExitStack
from random import Random
from typing import Any

import pytest

from airflow_merge_provider.core.run.previous_run import list_commits
from airflow_merge_provider.core.table_history import HistoryEntry, Lineage
from airflow_merge_provider.core.undo.load_removal import find_removal
from airflow_merge_provider.jobs.merge_load.scd2.removal import RemovedLoad
from tests.conformance.oracles import merge_load as oracle
from tests.jobs.merge_load.conftest import MakeLoads
from tests.jobs.merge_load.loads import Loads, MemoryLoads
from tests.jobs.merge_load.test_random import build_history, format_day, read_history
from tests.long import all_long_but
from tests.random_seeds import list_seeds

# Each key is a case of its own; a longer run is requested by a number of seeds.
SEEDS = list_seeds(1)
KEYS = range(60)


def list_run_ids(table: Loads) -> list[str]:
    """Return the runs that have committed, in order."""
    return [entry.state["token"]["run_id"] for entry in list_commits(build_entries(table), "merge_load")][
        ::-1
    ]


def build_entries(table: Loads) -> list[HistoryEntry]:
    """Return the commits of a target in memory, newest first."""
    assert isinstance(table, MemoryLoads)
    return [
        HistoryEntry(
            commit.version, "MERGE", user_metadata=json.dumps({**commit.state, "capability": "merge_load"})
        )
        for commit in reversed(table.target_table.commits)
    ]


def remove_load(table: Loads, run_id: str) -> dict[str, int]:
    """Take a load out of a target in memory, and return the counts of changed versions."""
    assert isinstance(table, MemoryLoads)
    entries, target = build_entries(table), table.target_table
    removal = find_removal(run_id, "merge_load", entries, Lineage(tuple(entries), is_complete=True))
    assert removal is not None
    with ExitStack() as held:
        load = RemovedLoad(removal, target.read_rows(), target.sequences, held)
        changes, times = load.find_changes(target.times.read_rows())
        sequences = load.list_remaining_sequences()
        target.commit_changes(changes, {"token": {"run_id": "undo"}}, full=False, shape=None)
        if times is not None:
            target.times.save_times(times, full=True, needed=True)
        if sequences is not None:
            target.sequences.save_rows(sequences, full=True, since=None)
    return dict(changes.counts)


@pytest.mark.parametrize("settings", all_long_but([{}, {"on_late": "repair", "on_delete": "mark"}], {}))
@pytest.mark.parametrize("seed", SEEDS)
def test_a_removed_snapshot_leaves_the_history_of_the_others(
    seed: int, settings: dict[str, Any], memory_loads: MakeLoads
) -> None:
    """The versions are those of the other snapshots, and loading it again gives those of all snapshots."""
    random = Random(f"{seed}{settings}")
    table = memory_loads(
        "scd2", natural_key="nk", current_column="now", surrogate_key_column="version", **settings
    )
    days = random.sample(range(1, 28), 4)
    snapshots: dict[int, dict[int, Any]] = {}
    rows: dict[int, Any] = {}
    for number, day in enumerate(days if settings else sorted(days)):
        if number != 1:
            rows = {key: (random.choice("ab"),) for key in KEYS if random.random() < 0.6}
        snapshots[day] = rows
        load_snapshot(table, day, rows)
    ids = list_run_ids(table)
    run_id = random.choice(ids[:-1])
    day = list(snapshots)[int(run_id) - 1]
    on_delete = settings.get("on_delete", "close")

    remove_load(table, run_id)

    other_loads = [(other, rows) for other, rows in snapshots.items() if other != day]
    assert read_history(table, on_delete) == build_history(oracle.fold_snapshots(other_loads), on_delete)
    table.check_history()
    if settings:
        load_snapshot(table, day, snapshots[day])
        expected = build_history(oracle.fold_snapshots(snapshots.items()), on_delete)
        assert read_history(table, on_delete) == expected
        table.check_history()


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_a_removed_snapshot_of_groups_leaves_the_history_of_the_others(
    seed: int, memory_loads: MakeLoads
) -> None:
    """Each group has its own times, and keys move between groups."""
    random = Random(seed)
    table = memory_loads("scd2", natural_key="nk", on_late="repair", scope=["g"])
    snapshots: dict[int, dict[int, Any]] = {}
    for day in random.sample(range(1, 28), 4):
        groups = random.sample("xyz", random.randint(1, 2))
        rows = {
            key: (random.choice(groups), random.choice("ab")) for key in KEYS if random.random() < 0.5
        } or {0: (groups[0], "a")}
        snapshots[day] = rows
        content = [{"nk": key, "g": group, "c": c} for key, (group, c) in rows.items()]
        table.load_rows(content, boundary_timestamp=format_day(day))
    run_id = random.choice(list_run_ids(table)[:-1])

    remove_load(table, run_id)

    del snapshots[list(snapshots)[int(run_id) - 1]]
    expected = oracle.fold_scoped_snapshots(snapshots.items())
    assert table.read_history("nk", "g", "c") == {
        key: versions for key, versions in expected.items() if versions
    }
    table.check_history()


@pytest.mark.parametrize("seed", SEEDS)
def test_removed_changes_leave_the_history_of_the_others(seed: int, memory_loads: MakeLoads) -> None:
    """A state that a later load confirmed begins there; otherwise the state before it continues."""
    random, on_delete = Random(seed), "close" if seed % 2 else "mark"
    table = memory_loads(
        "scd2", natural_key="nk", mode="changes", on_late="repair", hard_delete="gone", on_delete=on_delete
    )
    loads: dict[int, dict[int, Any]] = {}
    for day in random.sample(range(1, 28), 4):
        loads[day] = {
            key: (random.choice("ab"),) if random.random() < 0.7 else None
            for key in KEYS
            if random.random() < 0.5
        }
        load_changes(table, day, loads[day])
    run_id = random.choice(list_run_ids(table)[:-1])
    day = list(loads)[int(run_id) - 1]

    remove_load(table, run_id)

    other_loads = {other: rows for other, rows in loads.items() if other != day}
    assert read_history(table, on_delete) == build_history(fold_changes(other_loads), on_delete)
    table.check_history()
    load_changes(table, day, loads[day])
    assert read_history(table, on_delete) == build_history(fold_changes(loads), on_delete)


def test_a_joined_version_has_the_newest_overwritten_value(memory_loads: MakeLoads) -> None:
    """Overwritten columns of the valid version stay; untracked ones have the value of its beginning."""
    table = memory_loads("scd2", natural_key="nk", track="c", overwrite="n")
    for day, value in enumerate("aba", 1):
        content = [{"nk": 1, "c": value, "n": day, "other": day}]
        table.load_rows(content, boundary_timestamp=format_day(day))

    assert remove_load(table, "2") == {"reopened": 1, "removed": 2}

    assert table.read_history("nk", "c", "n", "other") == {1: [(1, None, ("a", 3, 1))]}


def load_snapshot(table: Loads, day: int, rows: dict[int, Any]) -> None:
    """Load a snapshot of states by key."""
    content = [{"nk": key, "c": state[0]} for key, state in rows.items()]
    table.load_rows(content, boundary_timestamp=format_day(day))


def load_changes(table: Loads, day: int, rows: dict[int, Any]) -> None:
    """Load states by key; None deletes the key."""
    content = [{"nk": key, "c": state and state[0], "gone": state is None} for key, state in rows.items()]
    table.load_rows(content, boundary_timestamp=format_day(day))


def fold_changes(loads: dict[int, dict[int, Any]]) -> dict[Any, list[Any]]:
    """Return the history of loads of changes."""
    return oracle.fold_changes(
        [[(key, day, state) for key, state in rows.items()] for day, rows in loads.items()]
    )
