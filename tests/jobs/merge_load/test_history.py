"""Test the histories of rows and of keys after each kind of load."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.jobs.merge_load import target
from tests.jobs.merge_load.conftest import MakeLoads
from tests.jobs.merge_load.loads import Killed, raise_killed
from tests.long import all_long_but

FIRST = [{"nk": 1, "c": "a", "u": 1}, {"nk": 2, "c": "b", "u": 1}]


def build_boundary(number: int) -> dict[str, Any]:
    return {"boundary_timestamp": f"2024-01-{number:02d}"}


def test_a_snapshot_opens_closes_and_leaves_alone(loads: MakeLoads) -> None:
    """A snapshot opens and closes versions, and keeps unchanged ones; the report counts them.

    The history has gaps only where a key was absent.
    """
    table = loads("scd2", natural_key="nk", track=["c"], overwrite=["u"])
    table.load_rows(FIRST, **build_boundary(1))

    report = table.load_rows([{"nk": 1, "c": "a2", "u": 2}, {"nk": 3, "c": "n", "u": 2}], **build_boundary(2))
    table.load_rows([{"nk": 1, "c": "a2", "u": 3}, {"nk": 2, "c": "b", "u": 3}], **build_boundary(3))

    assert report["rows"] == {"inserted": 2, "updated": 2, "deleted": 0, "unchanged": 0}
    counted = {name: count for name, count in report["counts"].items() if count}
    assert counted == {"loaded": 2, "opened": 2, "closed": 2, "tables": 1}
    assert table.read_history("nk", "c", "u") == {
        1: [(1, 2, ("a", 1)), (2, None, ("a2", 3))],
        2: [(1, 2, ("b", 1)), (3, None, ("b", 3))],
        3: [(2, 3, ("n", 2))],
    }


def test_the_same_time_again_replaces_what_it_had_done(memory_loads: MakeLoads) -> None:
    """A restated snapshot gives the history that starts with it, without empty versions."""
    table = memory_loads("scd2", natural_key="nk")
    table.load_rows(FIRST, **build_boundary(1))
    table.load_rows([{"nk": 1, "c": "x", "u": 1}], **build_boundary(2))

    table.load_rows([{"nk": 1, "c": "a", "u": 1}, {"nk": 2, "c": "b2", "u": 1}], **build_boundary(2))

    assert table.read_history("nk", "c") == {1: [(1, None, ("a",))], 2: [(1, 2, ("b",)), (2, None, ("b2",))]}


def test_a_late_snapshot_is_an_error_even_after_one_that_changed_nothing(memory_loads: MakeLoads) -> None:
    """A late snapshot is an error even if the later snapshot changed nothing, as times of loads are recorded.

    The result of the later load must not be overwritten.
    """
    table = memory_loads("scd2", natural_key="nk")
    table.load_rows(FIRST, **build_boundary(1))
    assert not table.load_rows(**build_boundary(5))["changed"]

    with pytest.raises(DataError, match="older than"):
        table.load_rows([{"nk": 1, "c": "z", "u": 1}], **build_boundary(3))

    assert table.read_version() == 0


def test_a_day_loaded_again_leaves_the_deletion_before_it_marked(memory_loads: MakeLoads) -> None:
    """Loading a day again keeps the deletion marker before it.

    The values of the marker come from a version that ended before that day.
    """
    table = memory_loads("scd2", natural_key="nk", on_late="repair", on_empty="apply", on_delete="mark")
    for number, present in ((13, True), (22, True), (18, False), (22, False)):
        other_rows = [{"nk": 2, "c": "b"}]
        table.load_rows(
            [*other_rows, {"nk": 1, "c": "a"}] if present else other_rows, **build_boundary(number)
        )

    assert table.read_history("nk", "c", "is_deleted")[1] == [(13, 18, ("a", False)), (18, None, ("a", True))]


@pytest.mark.parametrize(
    ("stays", "moved"),
    [
        pytest.param(False, [(10, 13, ("z",)), (13, None, ("y",))], marks=pytest.mark.long),
        (True, [(10, 13, ("z",)), (13, 24, ("y",)), (24, None, ("z",))]),
    ],
)
def test_a_group_seen_first_knows_what_another_one_saw_later(
    stays: bool, moved: list[Any], memory_loads: MakeLoads
) -> None:
    """A late load of a group uses what a later load of another group had stored.

    A key that was in another group by then is in the late group until that group has it again.
    """
    table = memory_loads("scd2", natural_key="nk", on_late="repair", scope=["g"])
    other_rows = [{"nk": 2, "g": "z"}]
    table.load_rows([*other_rows, {"nk": 1, "g": "z"}], **build_boundary(10))
    table.load_rows([*other_rows, {"nk": 1, "g": "z"}] if stays else other_rows, **build_boundary(24))
    table.load_rows([{"nk": 1, "g": "y"}], **build_boundary(13))

    assert table.read_history("nk", "g")[1] == moved


def test_flags_and_columns_that_are_added(memory_loads: MakeLoads) -> None:
    """Valid versions have a flag, and each version has a surrogate key that a rebuild reproduces."""
    settings = {"natural_key": "nk", "current_column": "now", "surrogate_key_column": "sk"}
    table = memory_loads("scd2", **settings, active_record_timestamp="9999-12-31")
    table.load_rows(FIRST, **build_boundary(1))
    table.load_rows([{"nk": 1, "c": "a2", "u": 1}], **build_boundary(2))

    rows = table.read_rows()
    assert sorted((row["nk"], row["valid_from"].day, row["now"]) for row in rows) == [
        (1, 1, False), (1, 2, True), (2, 1, False),
    ]  # fmt: skip
    keys = {row["sk"] for row in rows}
    assert len(keys) == 3
    table.load_rows(FIRST, full_refresh=True, **build_boundary(1))
    assert {row["sk"] for row in table.read_rows()} < keys


def test_changes_with_times_of_their_own_make_several_versions(memory_loads: MakeLoads) -> None:
    """Events of one load become versions in the order of their times; a flagged event ends the key."""
    table = memory_loads("scd2", natural_key="nk", mode="changes", effective_from="at", hard_delete="gone")
    events = [(1, 1, "a"), (1, 3, "b"), (1, 5, "b"), (1, 7, None), (2, 2, "x")]

    table.load_rows(
        [
            {"nk": key, "at": datetime(2024, 1, number, tzinfo=UTC), "c": state, "gone": state is None}
            for key, number, state in events
        ]
    )

    assert table.read_history("nk", "c") == {1: [(1, 3, ("a",)), (3, 7, ("b",))], 2: [(2, None, ("x",))]}
    with pytest.raises(DataError, match="older than"):
        table.load_rows([{"nk": 1, "at": datetime(2024, 1, 2, tzinfo=UTC), "c": "z", "gone": False}])
    late = table.load_rows([{"nk": 1, "at": datetime(2024, 1, 4, tzinfo=UTC), "c": "b", "gone": False}])
    assert not late["changed"]


def test_a_scope_limits_what_ends(memory_loads: MakeLoads) -> None:
    """Only keys of the loaded regions end; a key that moves between regions has one history."""
    table = memory_loads("scd2", natural_key="nk", scope=["r"])
    table.load_rows([{"nk": 1, "r": "eu"}, {"nk": 2, "r": "eu"}, {"nk": 3, "r": "us"}], **build_boundary(1))
    table.load_rows([{"nk": 1, "r": "eu"}, {"nk": 3, "r": "eu"}], **build_boundary(2))

    assert table.read_history("nk", "r") == {
        1: [(1, None, ("eu",))],
        2: [(1, 2, ("eu",))],
        3: [(1, 2, ("us",)), (2, None, ("eu",))],
    }


def test_too_many_endings_stop_the_run(memory_loads: MakeLoads) -> None:
    """Ending half of the keys passes a limit of a half, and fails with a lower limit."""
    table = memory_loads("scd2", natural_key="nk", max_close_ratio=0.4)
    table.load_rows(FIRST, **build_boundary(1))

    with pytest.raises(DataError, match="would close 1 of 2 valid versions"):
        table.load_rows(FIRST[:1], **build_boundary(2))

    assert table.load_rows(FIRST[:1], max_close_ratio=0.5, **build_boundary(2))["counts"]["closed"] == 1


def test_versions_of_rows_are_replaced_by_a_load_of_the_same_time(memory_loads: MakeLoads) -> None:
    """A load of the same time replaces versions: those that it opened are deleted, those closed continue.

    An older load is an error.
    """
    table = memory_loads("scd2")
    table.load_rows([{"c": "a"}, {"c": "b"}, {"c": "b"}], **build_boundary(1))
    table.load_rows([{"c": "x"}], **build_boundary(2))
    report = table.load_rows([{"c": "a"}, {"c": "y"}], **build_boundary(2))

    assert {name: report["counts"][name] for name in ("opened", "reopened", "removed", "closed")} == {
        "opened": 1, "reopened": 1, "removed": 1, "closed": 0,
    }  # fmt: skip
    assert table.read_history("c") == {"a": [(1, None, ())], "b": [(1, 2, ())], "y": [(2, None, ())]}
    with pytest.raises(DataError, match="older than"):
        table.load_rows([{"c": "q"}], **build_boundary(1))


@pytest.mark.long
def test_deletions_are_marked_by_a_version_that_says_so(loads: MakeLoads) -> None:
    """A deletion is marked by a version with the last values, which lasts until the key returns.

    The next snapshot does not repeat it.
    """
    table = loads("scd2", natural_key="nk", on_delete="mark", current_column="now")
    table.load_rows(FIRST, **build_boundary(1))
    report = table.load_rows(FIRST[:1], **build_boundary(2))
    again = table.load_rows(FIRST[:1], **build_boundary(3))
    table.load_rows(FIRST, **build_boundary(4))

    assert (report["counts"]["opened"], report["counts"]["closed"], again["changed"]) == (1, 1, False)
    assert table.read_history("nk", "c", "is_deleted", "now") == {
        1: [(1, None, ("a", False, True))],
        2: [(1, 2, ("b", False, False)), (2, 4, ("b", True, False)), (4, None, ("b", False, True))],
    }
    assert table.check_history(source="s")["counts"]["versions"] == 4


@pytest.mark.parametrize("mode", all_long_but(["snapshot", "changes"], "changes"))
def test_purged_keys_leave_nothing(mode: str, loads: MakeLoads) -> None:
    """All versions of a purged key are deleted; a key that returns starts a new history."""
    table = loads("scd2", natural_key="nk", on_delete="purge", mode=mode, hard_delete="gone")
    table.load_rows([{**row, "gone": False} for row in FIRST], **build_boundary(1))
    table.load_rows(
        [{"nk": 1, "c": "a2", "u": 1, "gone": False}, {**FIRST[1], "gone": False}], **build_boundary(2)
    )

    report = table.load_rows(
        [{"nk": 1, "c": "a2", "u": 1, "gone": True}, {**FIRST[1], "gone": False}], **build_boundary(3)
    )

    assert report["counts"]["removed"] == 2
    assert table.read_history("nk", "c") == {2: [(1, None, ("b",))]}
    table.load_rows([{**FIRST[0], "gone": False}, {**FIRST[1], "gone": False}], **build_boundary(4))
    assert table.read_history("nk", "c")[1] == [(4, None, ("a",))]


def test_the_highest_of_several_rows_counts_and_ties_are_refused(memory_loads: MakeLoads) -> None:
    """Of several rows of a key the highest sequence wins, NULL is the lowest, and ties are rejected.

    A timestamp in effective_from is that of the load.
    """
    table = memory_loads("scd2", natural_key="nk", sequence_by=["s", "p"], effective_from="2024-01-01")
    rows = [(1, None, 9, "null"), (1, 2, 1, "low"), (1, 2, 3, "high"), (2, 1, 1, "same"), (2, 1, 1, "same")]
    report = table.load_rows([dict(zip(("nk", "s", "p", "c"), row, strict=True)) for row in rows])

    assert report["counts"]["duplicates"] == 3
    assert table.read_history("nk", "c") == {1: [(1, None, ("high",))], 2: [(1, None, ("same",))]}
    with pytest.raises(DataError, match="1 value of nk and the highest s, p with several"):
        table.load_rows([{"nk": 2, "s": 5, "p": 5, "c": c} for c in "xy"], effective_from="2024-01-02")


def test_several_rows_of_one_key_are_seen_in_a_snapshot_too(memory_loads: MakeLoads) -> None:
    """In a snapshot identical rows of one key count as one, and different rows are an error.

    This holds even if one of them equals the stored row.
    """
    table = memory_loads("scd2", natural_key="nk")
    table.load_rows(FIRST, **build_boundary(1))

    same = table.load_rows([*FIRST, FIRST[0], FIRST[0]], **build_boundary(2))
    with pytest.raises(DataError, match="1 value of nk with several different rows, such as nk='1'"):
        table.load_rows([*FIRST, {**FIRST[0], "c": "z"}], **build_boundary(3))
    with pytest.raises(DataError, match="1 row with a NULL in nk, such as nk=NULL"):
        table.load_rows([*FIRST, {"nk": None, "c": "z", "u": 1}], **build_boundary(3))
    chosen = table.load_rows(
        [*FIRST, {**FIRST[0], "c": "z", "u": 0}], dedup_sort={"u": "desc"}, **build_boundary(3)
    )

    assert (same["counts"]["loaded"], same["counts"]["duplicates"]) == (4, 2)
    assert (same["changed"], chosen["changed"]) == (False, False)


@pytest.mark.long
def test_a_check_finds_what_is_wrong_in_a_history(loads: MakeLoads) -> None:
    """A check reports all faults of a history at once; a table without history columns cannot be checked."""
    table = loads("scd2", natural_key="nk", current_column="now", surrogate_key_column="sk")
    table.load_rows([*FIRST, {"nk": 3, "c": "c", "u": 1}], **build_boundary(1))
    table.load_rows([{**FIRST[0], "c": "a2"}, FIRST[1], {"nk": 3, "c": "c", "u": 1}], **build_boundary(3))
    assert table.check_history(source="s")["counts"]["keys"] == 3
    name = f"delta.`{table.target}`"
    for change in (
        "valid_to = TIMESTAMP '2024-01-04' WHERE nk = 1 AND valid_to IS NOT NULL",
        "now = false, sk = 'twice' WHERE nk = 2",
        "sk = 'twice' WHERE nk = 3",
    ):
        table.spark.sql(f"UPDATE {name} SET {change}")

    with pytest.raises(DataError) as refused:
        table.check_history(source="s", source_filter="nk <> 3")
    assert {problem.code for problem in refused.value.problems} == {
        "overlapping", "wrongly_current", "surrogates_twice", "not_loaded",
    }  # fmt: skip
    with pytest.raises(DataError, match="is not an SCD2 history"):
        table.check_history(target="s")


@pytest.mark.long
def test_a_run_that_is_killed_before_its_commit_spoils_no_history(
    loads: MakeLoads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill before the commit, a late load and then the retry give the ordered history.

    The time of the killed run is already recorded.
    """
    table = loads("scd2", natural_key="nk", on_late="repair")
    table.load_rows(FIRST, **build_boundary(1))
    third = [{"nk": 1, "c": "z", "u": 1}]
    with monkeypatch.context() as patched:
        patched.setattr(target, "write_changes", raise_killed)
        with pytest.raises(Killed):
            table.load_rows(third, **build_boundary(3))

    table.load_rows([{"nk": 1, "c": "y", "u": 1}, FIRST[1]], **build_boundary(2))
    table.load_rows(third, **build_boundary(3))

    assert table.read_history("nk", "c") == {
        1: [(1, 2, ("a",)), (2, 3, ("y",)), (3, None, ("z",))],
        2: [(1, 3, ("b",))],
    }
