"""Test random loads against the slow oracle: many independent keys in a few loads."""

# ruff: noqa: S311 - random tests, not secrets

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.conformance.oracles import merge_load as oracle
from tests.jobs.merge_load.conftest import MakeLoads
from tests.jobs.merge_load.loads import Loads, sort_rows
from tests.random_seeds import list_seeds

# Each key is a case of its own; a longer run is requested by a number of seeds.
SEEDS = list_seeds(1)
KEYS = range(60)


def format_day(number: int) -> str:
    return f"2024-01-{number:02d}"


@pytest.mark.long
@pytest.mark.parametrize("on_delete", ["close", "mark"])
@pytest.mark.parametrize("seed", SEEDS)
def test_snapshots_in_any_order_give_the_history_of_the_ordered_run(
    seed: int, on_delete: str, memory_loads: MakeLoads
) -> None:
    """Late, repeated and restated snapshots give the history of the last ones loaded in order."""
    random = Random(f"{seed}{on_delete}")
    table = memory_loads("scd2", natural_key="nk", on_late="repair", on_empty="apply", on_delete=on_delete)
    days = random.sample(range(1, 28), 3)
    days += [random.choice(days)]
    snapshots: list[tuple[int, dict[int, Any]]] = []
    for number in days:
        rows = {key: (random.choice("aab"),) for key in KEYS if random.random() < 0.6}
        snapshots.append((number, rows))
        table.load_rows(
            [{"nk": key, "c": state[0]} for key, state in rows.items()], boundary_timestamp=format_day(number)
        )

    assert read_history(table, on_delete) == build_history(oracle.fold_snapshots(snapshots), on_delete)
    table.check_history()


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_snapshots_of_groups_in_any_order_give_the_history_of_the_ordered_run(
    seed: int, memory_loads: MakeLoads
) -> None:
    """Each group has its own times, and keys move between groups; the history is that of the ordered run."""
    random = Random(seed)
    table = memory_loads("scd2", natural_key="nk", on_late="repair", scope=["g"])
    days = random.sample(range(1, 28), 5)
    snapshots: list[tuple[int, dict[int, Any]]] = []
    for number in days:
        groups = random.sample("xyz", random.randint(1, 2))
        rows = {
            key: (random.choice(groups), random.choice("ab")) for key in KEYS if random.random() < 0.5
        } or {0: (groups[0], "a")}
        snapshots.append((number, rows))
        content = [{"nk": key, "g": group, "c": c} for key, (group, c) in rows.items()]
        table.load_rows(content, boundary_timestamp=format_day(number))

    assert table.read_history("nk", "g", "c") == {
        key: versions for key, versions in oracle.fold_scoped_snapshots(snapshots).items() if versions
    }


@pytest.mark.parametrize("on_delete", ["close", "mark"])
@pytest.mark.parametrize("seed", SEEDS)
def test_changes_in_any_order_give_the_history_of_the_ordered_run(
    seed: int, on_delete: str, memory_loads: MakeLoads
) -> None:
    """Events and deletions of each key in any order, also repeated, give the history of the ordered run."""
    random = Random(f"{seed}{on_delete}")
    table = memory_loads(
        "scd2", natural_key="nk", mode="changes", on_late="repair", effective_from="at", hard_delete="gone",
        on_delete=on_delete,
    )  # fmt: skip
    loaded_events = []
    for _ in range(3):
        events = {
            (key, number): (random.choice("aab"),) if random.random() < 0.7 else None
            for key in KEYS
            for number in random.sample(range(1, 12), random.randint(0, 3))
        }
        loaded_events.append([(key, number, state) for (key, number), state in events.items()])
        table.load_rows(
            [
                {"nk": key, "at": oracle_time(number), "c": state and state[0], "gone": state is None}
                for (key, number), state in events.items()
            ]
        )

    assert read_history(table, on_delete) == build_history(oracle.fold_changes(loaded_events), on_delete)
    table.check_history()


def read_history(table: Loads, on_delete: str) -> dict[Any, list[Any]]:
    """Return the stored history; where deletions are marked, they are versions too."""
    return table.read_history("nk", "c", *(["is_deleted"] if on_delete == "mark" else []))


def build_history(versions: dict[Any, list[Any]], on_delete: str) -> dict[Any, list[Any]]:
    """Return the expected history."""
    expected = {key: key_versions for key, key_versions in versions.items() if key_versions}
    if on_delete == "mark":
        return {key: oracle.fill_gaps(key_versions) for key, key_versions in expected.items()}
    return expected


def oracle_time(number: int) -> Any:
    from airflow_merge_provider.core.merge_load.timestamps import parse_timestamp

    return parse_timestamp(format_day(number))


@pytest.mark.parametrize("variant", ["upsert", "insert-only", "cdc"])
def test_loads_by_key_are_those_of_the_oracle(variant: str, memory_loads: MakeLoads) -> None:
    """Updates, inserts, and deletions by flag and by absence after a first load equal those of the oracle."""
    random = Random(variant)
    table = memory_loads("upsert", primary_key="id", variant=variant, hard_delete="gone")
    stored: list[dict[str, Any]] = []
    for _ in range(2):
        rows = [
            {"id": key, "v": random.choice(["a", "b", None]), "gone": random.random() < 0.2}
            for key in KEYS
            if random.random() < 0.6
        ]
        table.load_rows(rows)
        stored = oracle.upsert_rows(stored, rows, key="id", variant=variant, flag="gone")

    assert table.read_rows() == sort_rows({k: v for k, v in row.items() if v is not None} for row in stored)


@pytest.mark.parametrize(("key", "group"), [("id", None), (None, "g"), ("id", "g")])
def test_replaced_rows_are_those_of_the_oracle(key: str | None, group: str | None, loads: MakeLoads) -> None:
    """Replacing keys and groups, one row per key and mixed with flags, gives the rows of the oracle."""
    random = Random(f"{key}{group}")
    table = loads(
        "delete-insert", primary_key=key, merge_key=group, hard_delete="gone", dedup_sort={"s": "desc"}
    )
    stored: list[dict[str, Any]] = []
    for _ in range(2):
        rows = [
            {
                "id": random.randint(1, 40),
                "g": random.randint(1, 12),
                "s": random.choice([None, 1, 2]),
                "v": random.choice("ab"),
                "gone": random.random() < 0.2,
            }
            for _ in range(25)
        ]
        table.load_rows(rows)
        stored = oracle.delete_insert(stored, rows, key=key, group=group, flag="gone", sort="s")

    assert table.read_rows() == sort_rows({k: v for k, v in row.items() if v is not None} for row in stored)
