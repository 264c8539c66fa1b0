"""What the histories of rows and of keys look like after each kind of load."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_merge_provider.core.errors import DataError
from tests.jobs.merge_load.conftest import MakeLoads

FIRST = [{"nk": 1, "c": "a", "u": 1}, {"nk": 2, "c": "b", "u": 1}]


def on(number: int) -> dict[str, Any]:
    return {"boundary_timestamp": f"2024-01-{number:02d}"}


def test_a_snapshot_opens_closes_and_leaves_alone(loads: MakeLoads) -> None:
    """The report counts what happened, and history has no gap but that of a key that was away."""
    made = loads("scd2", natural_key="nk", track=["c"], overwrite=["u"])
    made.load(FIRST, **on(1))

    report = made.load([{"nk": 1, "c": "a2", "u": 2}, {"nk": 3, "c": "n", "u": 2}], **on(2))
    made.load([{"nk": 1, "c": "a2", "u": 3}, {"nk": 2, "c": "b", "u": 3}], **on(3))

    assert report["counts"] | {"loaded": 2} == {
        "loaded": 2, "duplicates": 0, "opened": 2, "closed": 2, "reopened": 0, "changed": 0, "removed": 0,
    }  # fmt: skip
    assert made.history("nk", "c", "u") == {
        1: [(1, 2, ("a", 1)), (2, None, ("a2", 3))],
        2: [(1, 2, ("b", 1)), (3, None, ("b", 3))],
        3: [(2, 3, ("n", 2))],
    }


def test_the_same_time_again_replaces_what_it_had_done(loads: MakeLoads) -> None:
    """A restated snapshot equals a history built with it from the start; no version is empty."""
    made = loads("scd2", natural_key="nk")
    made.load(FIRST, **on(1))
    made.load([{"nk": 1, "c": "x", "u": 1}], **on(2))

    made.load([{"nk": 1, "c": "a", "u": 1}, {"nk": 2, "c": "b2", "u": 1}], **on(2))

    assert made.history("nk", "c") == {1: [(1, None, ("a",))], 2: [(1, 2, ("b",)), (2, None, ("b2",))]}


def test_a_late_snapshot_is_an_error_even_after_one_that_changed_nothing(loads: MakeLoads) -> None:
    """A time that left no trace is remembered; what came after it must not be overwritten."""
    made = loads("scd2", natural_key="nk")
    made.load(FIRST, **on(1))
    assert not made.load(**on(5))["changed"]

    with pytest.raises(DataError, match="older than"):
        made.load([{"nk": 1, "c": "z", "u": 1}], **on(3))

    assert made.version() == 0


def test_flags_and_columns_that_are_added(loads: MakeLoads) -> None:
    """Valid versions are marked, every version has a key of its own that a rebuild gives again."""
    settings = {"natural_key": "nk", "current_column": "now", "surrogate_key_column": "sk"}
    made = loads("scd2", **settings, active_record_timestamp="9999-12-31")
    made.load(FIRST, **on(1))
    made.load([{"nk": 1, "c": "a2", "u": 1}], **on(2))

    rows = made.rows()
    assert sorted((row["nk"], row["valid_from"].day, row["now"]) for row in rows) == [
        (1, 1, False), (1, 2, True), (2, 1, False),
    ]  # fmt: skip
    keys = {row["sk"] for row in rows}
    assert len(keys) == 3
    made.load(FIRST, full_refresh=True, **on(1))
    assert {row["sk"] for row in made.rows()} < keys


def test_changes_with_times_of_their_own_make_several_versions(loads: MakeLoads) -> None:
    """Events of one load are chained by their time; a flagged one ends the key."""
    made = loads("scd2", natural_key="nk", mode="changes", effective_from="at", hard_delete="gone")
    events = [(1, 1, "a"), (1, 3, "b"), (1, 5, "b"), (1, 7, None), (2, 2, "x")]

    made.load(
        [
            {"nk": key, "at": datetime(2024, 1, number, tzinfo=UTC), "c": state, "gone": state is None}
            for key, number, state in events
        ]
    )

    assert made.history("nk", "c") == {1: [(1, 3, ("a",)), (3, 7, ("b",))], 2: [(2, None, ("x",))]}
    with pytest.raises(DataError, match="older than"):
        made.load([{"nk": 1, "at": datetime(2024, 1, 2, tzinfo=UTC), "c": "z", "gone": False}])
    late = made.load([{"nk": 1, "at": datetime(2024, 1, 4, tzinfo=UTC), "c": "b", "gone": False}])
    assert not late["changed"]


def test_a_scope_limits_what_ends(loads: MakeLoads) -> None:
    """Only keys of the loaded regions end; a key that moves between regions has one history."""
    made = loads("scd2", natural_key="nk", scope=["r"])
    made.load([{"nk": 1, "r": "eu"}, {"nk": 2, "r": "eu"}, {"nk": 3, "r": "us"}], **on(1))
    made.load([{"nk": 1, "r": "eu"}, {"nk": 3, "r": "eu"}], **on(2))

    assert made.history("nk", "r") == {
        1: [(1, None, ("eu",))],
        2: [(1, 2, ("eu",))],
        3: [(1, 2, ("us",)), (2, None, ("eu",))],
    }


def test_too_many_endings_stop_the_run(loads: MakeLoads) -> None:
    """Half of the keys may end where a half is allowed, and not where less is."""
    made = loads("scd2", natural_key="nk", max_close_ratio=0.4)
    made.load(FIRST, **on(1))

    with pytest.raises(DataError, match="would end 1 of 2 valid versions"):
        made.load(FIRST[:1], **on(2))

    assert made.load(FIRST[:1], max_close_ratio=0.5, **on(2))["counts"]["closed"] == 1


def test_versions_of_rows_are_replaced_by_a_load_of_the_same_time(loads: MakeLoads) -> None:
    """What the boundary had opened is removed, what it had closed goes on; an older load is an error."""
    made = loads("scd2")
    made.load([{"c": "a"}, {"c": "b"}, {"c": "b"}], **on(1))
    made.load([{"c": "x"}], **on(2))
    report = made.load([{"c": "a"}, {"c": "y"}], **on(2))

    assert {name: report["counts"][name] for name in ("opened", "reopened", "removed", "closed")} == {
        "opened": 1, "reopened": 1, "removed": 1, "closed": 0,
    }  # fmt: skip
    assert made.history("c") == {"a": [(1, None, ())], "b": [(1, 2, ())], "y": [(2, None, ())]}
    with pytest.raises(DataError, match="older than"):
        made.load([{"c": "q"}], **on(1))
