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


def run_sql(made: Loads, statement: str) -> None:
    made.spark.sql(statement.format(target=f"delta.`{made.target}`")).collect()


def test_a_restored_target_is_loaded_again(loads: MakeLoads) -> None:
    """An unchanged source is loaded again after a RESTORE of the target, which removed its rows."""
    made = loads("upsert", **KEY)
    made.load_rows(FIRST)
    made.load_rows(SECOND)
    expected = made.read_rows()
    run_sql(made, "RESTORE TABLE {target} TO VERSION AS OF 0")

    assert made.load_rows()["changed"]

    assert made.read_rows() == expected
    assert not made.load_rows()["changed"]


def test_rows_that_a_user_deleted_are_loaded_again(loads: MakeLoads) -> None:
    """Rows that a user deleted are loaded again, and the report names who changed the target."""
    made = loads("upsert", **KEY)
    made.load_rows(FIRST)
    run_sql(made, "DELETE FROM {target} WHERE id = 2")

    report = made.load_rows()

    assert report["rows"]["inserted"] == 1
    assert any("another writer changed rows of the target: DELETE" in each for each in report["warnings"])
    assert len(made.read_rows()) == 2


def test_maintenance_is_no_change(loads: MakeLoads) -> None:
    """The source is not read again after an OPTIMIZE."""
    made = loads("upsert", **KEY)
    made.load_rows(FIRST)
    run_sql(made, "OPTIMIZE {target}")

    report = made.load_rows()

    assert (report["changed"], report["warnings"]) == (False, [])


@pytest.mark.parametrize("spelling", ["{0}/t/../s", "file://{0}/s", "{0}/link/s"])
def test_a_source_with_another_spelling_is_the_same(loads: MakeLoads, spelling: str) -> None:
    """A source in another spelling is the same source: nothing is loaded again."""
    made = loads("upsert", **KEY)
    made.load_rows(FIRST)
    (made.folder / "link").symlink_to(made.folder, target_is_directory=True)

    version = made.read_version()
    made.load_rows(source=spelling.format(made.folder))

    assert made.read_version() == version
    assert len(made.read_rows()) == 2


@pytest.mark.parametrize("more", [{}, {"full_refresh": True}])
@pytest.mark.parametrize("settings", [{}, KEY], ids=["append", "replace"])
def test_a_retry_reports_its_commit_whatever_came_after(
    loads: MakeLoads, settings: dict[str, Any], more: dict[str, Any]
) -> None:
    """A retry reports its own commit and does not load rows twice.

    This holds after a new write of the source and the commit of another run.
    """
    made = loads("delete-insert", **settings)
    own = made.load_rows(FIRST, run_id="own")
    made.load_rows([{"id": 7, "v": "z"}], run_id="other")
    rows, version = made.read_rows(), made.read_version()

    again = made.load_rows(SECOND, run_id="own", **more)

    assert (again["changed"], again["target"]["version"]) == (True, own["target"]["version"])
    assert again["counts"] == own["counts"]
    assert (made.read_rows(), made.read_version()) == (rows, version)


def test_two_attempts_of_one_run_write_lists_once(loads: MakeLoads, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a second attempt commits first, the first one fails at the table of its lists and can be retried.

    The lists are written once.
    """
    made = loads("upsert", nested="tables", **KEY)
    made.load_rows([{"id": 9, "kids": [{"k": "o"}]}])
    append = nested._append_elements

    def append_second(*given: Any) -> int:
        table, elements, evolution = given
        table.restore()
        monkeypatch.setattr(nested, "_append_elements", append)
        made.load_rows(LISTS, run_id="own")
        return append(table, elements, evolution)

    monkeypatch.setattr(nested, "_append_elements", append_second)
    with pytest.raises(ConflictError):
        made.load_rows(LISTS, run_id="own")
    assert made.load_rows(LISTS, run_id="own")["changed"]

    assert sorted(row["k"] for row in made.rows_of("__kids")) == ["o", "x", "z"]


@pytest.mark.parametrize(
    ("undone", "kids"),
    [({"id": 1, "kids": [{"k": "new"}]}, ["new", "z"]), ({"id": 1, "v": "without lists"}, ["z"])],
    ids=["other list", "no list"],
)
def test_lists_go_back_with_a_restored_target(
    loads: MakeLoads, undone: dict[str, Any], kids: list[str]
) -> None:
    """After a RESTORE of the target, elements that the undone run deleted exist again, added ones do not."""
    made = loads("upsert", nested="tables", **KEY)
    made.load_rows(LISTS)
    made.load_rows([undone], schema_evolution="allow_missing")
    assert sorted(row["k"] for row in made.rows_of("__kids")) == kids
    run_sql(made, "RESTORE TABLE {target} TO VERSION AS OF 0")

    made.load_rows(LISTS)

    assert sorted(row["k"] for row in made.rows_of("__kids")) == ["x", "z"]


def test_remembered_times_go_back_with_a_restored_history(loads: MakeLoads) -> None:
    """A late load after a RESTORE of the history is placed as if the undone loads had not run."""
    made = loads("scd2", natural_key="id", on_late="repair")

    def load_value(v: str, at: int) -> None:
        made.load_rows([{"id": 1, "v": v}], boundary_timestamp=f"2024-01-{at:02d}")

    load_value("a", 1)
    load_value("b", 5)
    load_value("b", 7)
    run_sql(made, "RESTORE TABLE {target} TO VERSION AS OF 0")
    load_value("c", 3)
    load_value("d", 9)

    assert made.read_history("id", "v") == {1: [(1, 3, ("a",)), (3, 9, ("c",)), (9, None, ("d",))]}


def test_a_moved_warehouse_continues(loads: MakeLoads, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Loads continue after source and target were copied to another location."""
    made = loads("upsert", **KEY)
    made.load_rows(FIRST)
    elsewhere = tmp_path_factory.mktemp("moved") / "warehouse"
    shutil.copytree(made.folder, elsewhere)
    made.folder = elsewhere

    assert not made.load_rows()["changed"]
