"""Test late rows: the highest sequence wins, in whatever load it comes, also if it is a deletion."""

from __future__ import annotations

import itertools
import random
from datetime import UTC, datetime
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.jobs.merge_load.conftest import MakeLoads
from tests.jobs.merge_load.loads import Loads

pytestmark = pytest.mark.spark

KEY = {"primary_key": "id"}
HISTORY = {"natural_key": "id", "mode": "changes", "effective_from": "at", "sequence_by": "s"}


def make_row(
    id_: int, s: int | None, v: str, *, is_deleted: bool = False, at: int | None = None
) -> dict[str, Any]:
    row = {"id": id_, "s": s, "v": v, "gone": is_deleted}
    return row if at is None else {**row, "at": datetime(2024, 1, at, tzinfo=UTC)}


def list_rows(table: Loads) -> list[tuple[Any, ...]]:
    return sorted((row["id"], row["v"]) for row in table.read_rows("id", "v"))


def list_valid(table: Loads) -> list[str]:
    return [row["v"] for row in table.read_rows() if "valid_to" not in row]


def load_on(table: Loads, day: int, rows: list[dict[str, Any]]) -> None:
    """Load the given number of days after 1970."""
    table._runs = day * 86_400
    table.load_rows(rows)


@pytest.mark.long
def test_a_key_that_was_deleted_does_not_come_back(loads: MakeLoads) -> None:
    """Late rows do not bring back a deleted key, newer rows do.

    A load that only adds tombstones commits once.
    """
    table = loads("upsert", **KEY, sequence_by="s", hard_delete="gone")
    table.load_rows([make_row(1, 5, "a"), make_row(2, 5, "b"), make_row(3, 7, "", is_deleted=True)])
    table.load_rows([make_row(1, 6, "", is_deleted=True)])

    report = table.load_rows([make_row(1, 5, "late"), make_row(3, 6, "late")])
    assert (report["changed"], list_rows(table)) == (False, [(2, "b")])

    table.load_rows([make_row(4, 9, "", is_deleted=True)])
    assert list_rows(table) == [(2, "b")]
    table.load_rows([make_row(4, 8, "late"), make_row(1, 7, "new")])
    assert list_rows(table) == [(1, "new"), (2, "b")]


def test_a_deletion_of_a_cdc_load_is_remembered(memory_loads: MakeLoads) -> None:
    """A deletion of a CDC load is recorded.

    A late row still shows that its key exists and deletes nothing.
    """
    table = memory_loads("upsert", **KEY, variant="cdc", sequence_by="s", hard_delete="gone")
    table.load_rows([make_row(1, 5, "a"), make_row(2, 5, "b")])
    table.load_rows([make_row(1, 6, "", is_deleted=True), make_row(2, 5, "b")])

    table.load_rows([make_row(1, 5, "late"), make_row(2, 5, "b")])

    assert list_rows(table) == [(2, "b")]


@pytest.mark.long
def test_a_run_that_dies_remembers_nothing(loads: MakeLoads, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tombstones of a run that died before its commit are rolled back, so that valid rows count."""
    table = loads("upsert", **KEY, sequence_by="s", hard_delete="gone")
    table.load_rows([make_row(1, 5, "a"), make_row(2, 1, "", is_deleted=True)])
    target = "airflow_merge_provider.jobs.merge_load.target.write_changes"

    def raise_interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(target, raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            table.load_rows([make_row(1, 9, "", is_deleted=True)])
    assert DeltaTable(f"{table.target}__sequences").version() == 1

    table.load_rows([make_row(1, 8, "counts"), make_row(2, 0, "late")])

    assert list_rows(table) == [(1, "counts")]


@pytest.mark.long
def test_memories_are_given_up_after_a_time(loads: MakeLoads) -> None:
    """Tombstones expire after a time, so that they do not accumulate."""
    table = loads("upsert", **KEY, sequence_by="s", hard_delete="gone")
    load_on(table, 1, [make_row(1, 5, "a")])
    load_on(table, 2, [make_row(1, 6, "", is_deleted=True)])
    load_on(table, 93, [make_row(2, 6, "", is_deleted=True)])

    load_on(table, 94, [make_row(1, 5, "late"), make_row(2, 5, "late")])

    assert list_rows(table) == [(1, "late")]


def test_a_row_between_a_late_deletion_and_the_first_version_closes_nothing(loads: MakeLoads) -> None:
    """A remembered deletion has no version that a later row could close."""
    table = loads("scd2", **HISTORY, hard_delete="gone", on_late="repair")
    table.load_rows([make_row(1, 5, "last", at=9)])
    table.load_rows([make_row(1, 3, "", is_deleted=True, at=3)])

    table.load_rows([make_row(1, 4, "middle", at=6)])

    valid = [(row["id"], row["v"], row["valid_from"].day) for row in table.read_rows()]
    assert sorted(valid) == [(1, "last", 9), (1, "middle", 6)]


@pytest.mark.long
@pytest.mark.parametrize("on_late", ["repair", "error"])
def test_of_one_time_the_highest_sequence_counts_whenever_it_comes(
    on_late: Any, memory_loads: MakeLoads
) -> None:
    """Of one time the highest sequence wins, in whatever load it comes.

    The first load is recorded too, as well as a state without a version and a deletion.
    """
    table = memory_loads("scd2", **HISTORY, on_late=on_late, hard_delete="gone")
    table.load_rows([make_row(1, 5, "a", at=1), make_row(2, 5, "b", at=1)])
    before = table.read_rows()

    table.load_rows([make_row(1, 4, "lower", at=1)])
    assert table.read_rows() == before
    table.load_rows([make_row(2, 6, "", is_deleted=True, at=2)])
    table.load_rows([make_row(2, 5, "lower", at=2)])
    assert list_valid(table) == ["a"]
    table.load_rows([make_row(1, 9, "a", at=1)])
    table.load_rows([make_row(1, 8, "lower", at=1)])
    assert list_valid(table) == ["a"]
    table.load_rows([make_row(1, 10, "higher", at=1)])
    assert list_valid(table) == ["higher"]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_any_order_of_loads_gives_one_history(seed: int, memory_loads: MakeLoads) -> None:
    """Rows in any distribution over loads give the history of all of them in one load."""
    draw = random.Random(seed)  # noqa: S311 - a workload, no secret
    combinations = list(itertools.product((1, 2), (1, 2, 3), range(3)))
    rows = [
        make_row(id_, s, draw.choice("ab"), is_deleted=draw.random() < 0.3, at=at)
        for id_, at, s in draw.sample(combinations, 12)
    ]
    single_load = memory_loads("scd2", **HISTORY, on_late="repair", hard_delete="gone", target="whole")
    single_load.load_rows(rows)
    split_loads = memory_loads("scd2", **HISTORY, on_late="repair", hard_delete="gone", target="parts")
    draw.shuffle(rows)
    cuts = sorted(draw.sample(range(1, 12), 4))

    for start, end in itertools.pairwise([0, *cuts, 12]):
        split_loads.load_rows(rows[start:end])

    columns = ("id", "v", "valid_from", "valid_to")
    histories = [sorted(map(str, (table.read_rows(*columns)))) for table in (single_load, split_loads)]
    assert histories[0] == histories[1]
