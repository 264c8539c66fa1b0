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


def make_row(id_: int, s: int | None, v: str, *, gone: bool = False, at: int | None = None) -> dict[str, Any]:
    row = {"id": id_, "s": s, "v": v, "gone": gone}
    return row if at is None else {**row, "at": datetime(2024, 1, at, tzinfo=UTC)}


def list_rows(made: Loads) -> list[tuple[Any, ...]]:
    return sorted((row["id"], row["v"]) for row in made.read_rows("id", "v"))


def list_valid(made: Loads) -> list[str]:
    return [row["v"] for row in made.read_rows() if "valid_to" not in row]


def load_on(made: Loads, day: int, rows: list[dict[str, Any]]) -> None:
    """Load the given number of days after 1970."""
    made._runs = day * 86_400
    made.load_rows(rows)


def test_a_key_that_was_deleted_does_not_come_back(loads: MakeLoads) -> None:
    """Late rows do not bring back a deleted key, newer rows do.

    A load that only adds tombstones commits once.
    """
    made = loads("upsert", **KEY, sequence_by="s", hard_delete="gone")
    made.load_rows([make_row(1, 5, "a"), make_row(2, 5, "b"), make_row(3, 7, "", gone=True)])
    made.load_rows([make_row(1, 6, "", gone=True)])

    report = made.load_rows([make_row(1, 5, "late"), make_row(3, 6, "late")])
    assert (report["changed"], list_rows(made)) == (False, [(2, "b")])

    made.load_rows([make_row(4, 9, "", gone=True)])
    assert list_rows(made) == [(2, "b")]
    made.load_rows([make_row(4, 8, "late"), make_row(1, 7, "new")])
    assert list_rows(made) == [(1, "new"), (2, "b")]


def test_a_deletion_of_a_cdc_load_is_remembered(memory_loads: MakeLoads) -> None:
    """A deletion of a CDC load is recorded.

    A late row still shows that its key exists and deletes nothing.
    """
    made = memory_loads("upsert", **KEY, variant="cdc", sequence_by="s", hard_delete="gone")
    made.load_rows([make_row(1, 5, "a"), make_row(2, 5, "b")])
    made.load_rows([make_row(1, 6, "", gone=True), make_row(2, 5, "b")])

    made.load_rows([make_row(1, 5, "late"), make_row(2, 5, "b")])

    assert list_rows(made) == [(2, "b")]


def test_a_run_that_dies_remembers_nothing(loads: MakeLoads, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tombstones of a run that died before its commit are rolled back, so that valid rows count."""
    made = loads("upsert", **KEY, sequence_by="s", hard_delete="gone")
    made.load_rows([make_row(1, 5, "a"), make_row(2, 1, "", gone=True)])
    target = "airflow_merge_provider.jobs.merge_load.target.write_changes"

    def raise_interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(target, raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            made.load_rows([make_row(1, 9, "", gone=True)])
    assert DeltaTable(f"{made.target}__sequences").version() == 1

    made.load_rows([make_row(1, 8, "counts"), make_row(2, 0, "late")])

    assert list_rows(made) == [(1, "counts")]


def test_memories_are_given_up_after_a_time(loads: MakeLoads) -> None:
    """Tombstones expire after a time, so that they do not accumulate."""
    made = loads("upsert", **KEY, sequence_by="s", hard_delete="gone")
    load_on(made, 1, [make_row(1, 5, "a")])
    load_on(made, 2, [make_row(1, 6, "", gone=True)])
    load_on(made, 93, [make_row(2, 6, "", gone=True)])

    load_on(made, 94, [make_row(1, 5, "late"), make_row(2, 5, "late")])

    assert list_rows(made) == [(1, "late")]


@pytest.mark.parametrize("on_late", ["repair", "error"])
def test_of_one_time_the_highest_sequence_counts_whenever_it_comes(
    on_late: Any, memory_loads: MakeLoads
) -> None:
    """Of one time the highest sequence wins, in whatever load it comes.

    The first load is recorded too, as well as a state without a version and a deletion.
    """
    made = memory_loads("scd2", **HISTORY, on_late=on_late, hard_delete="gone")
    made.load_rows([make_row(1, 5, "a", at=1), make_row(2, 5, "b", at=1)])
    before = made.read_rows()

    made.load_rows([make_row(1, 4, "lower", at=1)])
    assert made.read_rows() == before
    made.load_rows([make_row(2, 6, "", gone=True, at=2)])
    made.load_rows([make_row(2, 5, "lower", at=2)])
    assert list_valid(made) == ["a"]
    made.load_rows([make_row(1, 9, "a", at=1)])
    made.load_rows([make_row(1, 8, "lower", at=1)])
    assert list_valid(made) == ["a"]
    made.load_rows([make_row(1, 10, "higher", at=1)])
    assert list_valid(made) == ["higher"]


@pytest.mark.parametrize("seed", range(2))
def test_any_order_of_loads_gives_one_history(seed: int, memory_loads: MakeLoads) -> None:
    """Rows in any distribution over loads give the history of all of them in one load."""
    draw = random.Random(seed)  # noqa: S311 - a workload, no secret
    places = list(itertools.product((1, 2), (1, 2, 3), range(3)))
    rows = [
        make_row(id_, s, draw.choice("ab"), gone=draw.random() < 0.3, at=at)
        for id_, at, s in draw.sample(places, 12)
    ]
    whole = memory_loads("scd2", **HISTORY, on_late="repair", hard_delete="gone", target="whole")
    whole.load_rows(rows)
    parts = memory_loads("scd2", **HISTORY, on_late="repair", hard_delete="gone", target="parts")
    draw.shuffle(rows)
    cuts = sorted(draw.sample(range(1, 12), 4))

    for start, end in itertools.pairwise([0, *cuts, 12]):
        parts.load_rows(rows[start:end])

    columns = ("id", "v", "valid_from", "valid_to")
    told = [sorted(map(str, (made.read_rows(*columns)))) for made in (whole, parts)]
    assert told[0] == told[1]
