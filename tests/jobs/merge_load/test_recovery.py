"""Test loads after tables were restored, deleted from, moved or renamed in spelling, and retries of loads."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from airflow_merge_provider.core.errors import ConflictError
from airflow_merge_provider.jobs.merge_load import nested
from tests.jobs.merge_load.conftest import MakeLoads
from tests.jobs.merge_load.loads import Loads

KEY = {"primary_key": "id"}
FIRST = [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]
SECOND = [{"id": 1, "v": "x"}, {"id": 3, "v": "c"}]
LISTS = [{"id": 1, "kids": [{"k": "x"}]}, {"id": 2, "kids": [{"k": "z"}]}]


def run_sql(table: Loads, statement: str) -> None:
    table.spark.sql(statement.format(target=f"delta.`{table.target}`")).collect()


def test_a_restored_target_is_loaded_again(loads: MakeLoads) -> None:
    """An unchanged source is loaded again after a RESTORE of the target, which removed its rows."""
    table = loads("upsert", **KEY)
    table.load_rows(FIRST)
    table.load_rows(SECOND)
    expected = table.read_rows()
    run_sql(table, "RESTORE TABLE {target} TO VERSION AS OF 0")

    assert table.load_rows()["changed"]

    assert table.read_rows() == expected
    assert not table.load_rows()["changed"]


def test_rows_that_a_user_deleted_are_loaded_again(loads: MakeLoads) -> None:
    """Rows that a user deleted are loaded again, and the report names who changed the target."""
    table = loads("upsert", **KEY)
    table.load_rows(FIRST)
    run_sql(table, "DELETE FROM {target} WHERE id = 2")

    report = table.load_rows()

    assert report["rows"]["inserted"] == 1
    assert any(
        "another writer changed rows of the target: DELETE" in warning for warning in report["warnings"]
    )
    assert len(table.read_rows()) == 2


def test_maintenance_is_no_change(loads: MakeLoads) -> None:
    """The source is not read again after an OPTIMIZE."""
    table = loads("upsert", **KEY)
    table.load_rows(FIRST)
    run_sql(table, "OPTIMIZE {target}")

    report = table.load_rows()

    assert (report["changed"], report["warnings"]) == (False, [])


@pytest.mark.parametrize("spelling", ["{0}/t/../s", "file://{0}/s", "{0}/link/s"])
def test_a_source_with_another_spelling_is_the_same(loads: MakeLoads, spelling: str) -> None:
    """A source in another spelling is the same source: no row is loaded again."""
    table = loads("upsert", **KEY)
    table.load_rows(FIRST)
    (table.folder / "link").symlink_to(table.folder, target_is_directory=True)

    report = table.load_rows(source=spelling.format(table.folder))

    assert not report["changed"]
    assert len(table.read_rows()) == 2


@pytest.mark.parametrize("more", [{}, {"full_refresh": True}])
@pytest.mark.parametrize("settings", [{}, KEY], ids=["append", "replace"])
def test_a_retry_reports_its_commit_whatever_came_after(
    loads: MakeLoads, settings: dict[str, Any], more: dict[str, Any]
) -> None:
    """A retry reports its own commit and does not load rows twice.

    This holds after a new write of the source and the commit of another run.
    """
    table = loads("delete-insert", **settings)
    report = table.load_rows(FIRST, run_id="own")
    table.load_rows([{"id": 7, "v": "z"}], run_id="other")
    rows, version = table.read_rows(), table.read_version()

    again = table.load_rows(SECOND, run_id="own", **more)

    assert (again["changed"], again["target"]["version"]) == (True, report["target"]["version"])
    assert again["counts"] == report["counts"]
    assert (table.read_rows(), table.read_version()) == (rows, version)


@pytest.mark.long
def test_two_attempts_of_one_run_write_lists_once(loads: MakeLoads, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a second attempt commits first, the first one fails at the table of its lists and can be retried.

    The lists are written once.
    """
    table = loads("upsert", nested="tables", **KEY)
    table.load_rows([{"id": 9, "kids": [{"k": "o"}]}])
    append = nested._append_elements

    def append_second(*arguments: Any) -> int:
        side_table, elements, evolution = arguments
        side_table.restore()
        monkeypatch.setattr(nested, "_append_elements", append)
        table.load_rows(LISTS, run_id="own")
        return append(side_table, elements, evolution)

    monkeypatch.setattr(nested, "_append_elements", append_second)
    with pytest.raises(ConflictError):
        table.load_rows(LISTS, run_id="own")
    assert table.load_rows(LISTS, run_id="own")["changed"]

    assert sorted(row["k"] for row in table.rows_of("__kids")) == ["o", "x", "z"]


@pytest.mark.parametrize(
    ("undone", "kids"),
    [
        pytest.param(
            {"id": 1, "kids": [{"k": "new"}]}, ["new", "z"], id="other list", marks=pytest.mark.long
        ),
        pytest.param({"id": 1, "v": "without lists"}, ["z"], id="no list", marks=pytest.mark.long),
    ],
)
def test_lists_go_back_with_a_restored_target(
    loads: MakeLoads, undone: dict[str, Any], kids: list[str]
) -> None:
    """After a RESTORE of the target, elements that the undone run deleted exist again, added ones do not."""
    table = loads("upsert", nested="tables", **KEY)
    table.load_rows(LISTS)
    table.load_rows([undone], schema_evolution="allow_missing")
    assert sorted(row["k"] for row in table.rows_of("__kids")) == kids
    run_sql(table, "RESTORE TABLE {target} TO VERSION AS OF 0")

    table.load_rows(LISTS)

    assert sorted(row["k"] for row in table.rows_of("__kids")) == ["x", "z"]


@pytest.mark.long
def test_remembered_times_go_back_with_a_restored_history(loads: MakeLoads) -> None:
    """A late load after a RESTORE of the history is placed as if the undone loads had not run."""
    table = loads("scd2", natural_key="id", on_late="repair")

    def load_value(v: str, at: int) -> None:
        table.load_rows([{"id": 1, "v": v}], boundary_timestamp=f"2024-01-{at:02d}")

    load_value("a", 1)
    load_value("b", 5)
    load_value("b", 7)
    run_sql(table, "RESTORE TABLE {target} TO VERSION AS OF 0")
    load_value("c", 3)
    load_value("d", 9)

    assert table.read_history("id", "v") == {1: [(1, 3, ("a",)), (3, 9, ("c",)), (9, None, ("d",))]}


def test_a_moved_warehouse_continues(loads: MakeLoads, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Loads continue after source and target were copied to another location; without a target they begin."""
    table = loads("upsert", **KEY)
    table.load_rows(FIRST)
    elsewhere = tmp_path_factory.mktemp("moved") / "warehouse"
    shutil.copytree(table.folder, elsewhere)
    table.folder = elsewhere

    assert not table.load_rows()["changed"]
    shutil.rmtree(table.target)
    assert table.load_rows()["run_mode"] == "initial"
