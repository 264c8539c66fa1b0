"""Test lists that have tables of their own, also if a run is killed."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.jobs.merge_load import target
from airflow_merge_provider.jobs.merge_load.nested import ListTables
from tests.jobs.merge_load.conftest import MakeLoads
from tests.jobs.merge_load.loads import Killed, Loads, raise_killed

KEY = {"primary_key": "id", "nested": "tables"}
FIRST = [
    {"id": 1, "v": "a", "kids": [{"k": "x", "g": [1, 2]}, {"k": "y", "g": []}]},
    {"id": 2, "v": "b", "kids": [{"k": "z", "g": [3]}]},
]


def join_tables(table: Loads) -> set[tuple[Any, ...]]:
    """Return root, child and grandchild rows, joined by their keys."""
    frames = {tail: table.spark.read.format("delta").load(f"{table.target}{tail}") for tail in ("", "__kids")}
    root, kids = frames[""], frames["__kids"]
    joined_frame = root.join(kids, root["_row_id"] == kids["_root_id"]).select("id", "k", kids["_list_index"])
    return {tuple(row) for row in joined_frame.collect()}


def test_lists_become_tables_that_are_linked_to_their_row(loads: MakeLoads) -> None:
    """Each element has the keys of its row and parent, and its position; the target has no list columns."""
    table = loads("upsert", **KEY)
    report = table.load_rows(FIRST)

    (root,) = [row for row in table.read_rows() if row["id"] == 1]
    kids = [row for row in table.rows_of("__kids") if row["_root_id"] == root["_row_id"]]
    grand = [row for row in table.rows_of("__kids__g") if row["_root_id"] == root["_row_id"]]
    assert set(root) == {"id", "v", "_row_id"}
    assert [(row["_list_index"], row["k"], row["_parent_id"] == root["_row_id"]) for row in kids] == [
        (0, "x", True), (1, "y", True),
    ]  # fmt: skip
    assert [(row["_list_index"], row["value"], row["_parent_id"]) for row in grand] == [
        (0, 1, kids[0]["_row_id"]), (1, 2, kids[0]["_row_id"]),
    ]  # fmt: skip
    assert report["details"]["nested"] == {
        "t__kids": {"inserted": 3, "deleted": 0},
        "t__kids__g": {"inserted": 3, "deleted": 0},
    }


def test_null_and_empty_lists_in_one_load_are_reported(loads: MakeLoads) -> None:
    """The tables of lists cannot tell them apart; a load that has only one of them loses nothing."""
    table = loads("upsert", **KEY)
    kind = pa.list_(pa.int64())
    loaded = pa.table(
        {"id": [1, 2, 3], "v": pa.array([None, [], [1]], kind), "w": pa.array([None, None, []], kind)}
    )

    report = table.load_rows(loaded.drop(["w"]).slice(1), until="transform")
    assert report["warnings"] == []
    warnings = table.load_rows(loaded, until="transform")["warnings"]
    assert [
        text.partition(", which are one value in the table of its elements (")[0] for text in warnings
    ] == [
        "column 'v' has 1 NULL list and 1 empty list",
        "column 'w' has 2 NULL lists and 1 empty list",
    ]


@pytest.mark.long
def test_only_elements_of_changed_lists_are_written(loads: MakeLoads) -> None:
    """Only elements of changed lists are written: other changes and loads with the same lists write none."""
    table = loads("upsert", **KEY)
    table.load_rows(FIRST)

    value_update = table.load_rows([{**FIRST[0], "v": "A"}])
    again = table.load_rows()
    without = table.load_rows([{"id": 1, "v": "A"}], schema_evolution="allow_missing")

    assert value_update["rows"]["updated"] == 1
    assert not any(sum(counts.values()) for counts in value_update["details"]["nested"].values())
    assert not again["changed"]
    assert without["details"]["nested"]["t__kids"] == {"inserted": 0, "deleted": 2}
    assert join_tables(table) == {(2, "z", 0)}


@pytest.mark.long
@pytest.mark.parametrize("step", ["before the commit", "after the commit"])
def test_a_killed_run_leaves_no_element_without_its_row(
    step: str, loads: MakeLoads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill, a join of the tables shows the state before or after the run.

    The next try completes it.
    """
    table = loads("upsert", **KEY)
    table.load_rows(FIRST)
    before = join_tables(table)
    second = [{"id": 1, "v": "a", "kids": [{"k": "n", "g": [9]}]}]
    planned = table.load_rows(second, run_id="plan", until="transform")["plan"]["examples"]
    assert all("kids" not in example["after"] for example in planned)

    with monkeypatch.context() as patched:
        if step == "before the commit":
            patched.setattr(target, "write_changes", raise_killed)
        else:
            patched.setattr(ListTables, "clear_elements", raise_killed)
        with pytest.raises(Killed):
            table.load_rows(second, run_id="second")
    after = {(1, "n", 0), (2, "z", 0)}
    assert join_tables(table) == (before if step == "before the commit" else after)
    table.load_rows(run_id="second")

    assert join_tables(table) == after
    assert sorted(row["k"] for row in table.rows_of("__kids")) == ["n", "z"]
    assert sorted(row["value"] for row in table.rows_of("__kids__g")) == [3, 9]


@pytest.mark.long
def test_versions_have_the_elements_with_which_they_began(loads: MakeLoads) -> None:
    """A history keeps the lists of ended versions; a changed list starts a version."""
    table = loads("scd2", natural_key="id", nested="tables")
    table.load_rows(FIRST, boundary_timestamp="2024-01-01")
    second = [{**FIRST[0], "kids": [{"k": "n", "g": [9]}]}, FIRST[1]]
    table.load_rows(second, boundary_timestamp="2024-01-02")

    history = {
        key: [(start, end) for start, end, _ in versions]
        for key, versions in table.read_history("id").items()
    }
    assert history == {1: [(1, 2), (2, None)], 2: [(1, None)]}
    assert join_tables(table) == {(1, "x", 0), (1, "y", 1), (1, "n", 0), (2, "z", 0)}


def test_lists_do_not_move_between_columns_and_tables(loads: MakeLoads) -> None:
    """A target keeps lists either in columns or in tables; names that the tables need are reserved."""
    table = loads("upsert", primary_key="id")
    table.load_rows(FIRST)

    with pytest.raises(DataError, match="written with nested='columns'"):
        table.load_rows(nested="tables")
    with pytest.raises(DataError, match="'_root_id', which is reserved for nested tables"):
        table.load_rows([{"id": 1, "_root_id": 1}], nested="tables", target="u")
    table.load_rows(FIRST, nested="tables", full_refresh=True)
    assert len(join_tables(table)) == 3


def test_values_inside_lists_and_structs_count_by_their_place(loads: MakeLoads) -> None:
    """A NULL that changes its position or its name inside lists and structs is a change."""
    table = loads("scd2", natural_key="id")
    kind = pa.struct([("a", pa.int64()), ("b", pa.int64())])
    rows = {"id": [1, 2], "l": [["x", None], ["y"]], "s": [{"a": 1}, {"a": 1}]}

    def build_table(**more: Any) -> pa.Table:
        values = {**rows, **more}
        columns = {"id": pa.int64(), "l": pa.list_(pa.string()), "s": kind}
        return pa.table({name: pa.array(values[name], column_type) for name, column_type in columns.items()})

    table.load_rows(build_table(), boundary_timestamp="2024-01-01")
    moved = build_table(l=[[None, "x"], ["y"]], s=[{"a": 1}, {"b": 1}])

    assert table.load_rows(moved, boundary_timestamp="2024-01-02")["counts"]["closed"] == 2
