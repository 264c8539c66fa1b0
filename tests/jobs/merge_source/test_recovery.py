"""Test that runs after a restore, delete, move or copy of tables have the result of a clean run."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from tests.jobs.delta_log import list_commits
from tests.jobs.merge_source.conftest import MakePipe
from tests.jobs.merge_source.pipe import Pipe, build_table
from tests.long import all_long_but

RULE = {"equality": [["eq", "a.x", "b.x"]]}


def merge_twice(make_pipe: MakePipe, **settings: Any) -> Pipe:
    """Return a pipe with two runs: the second one joins two entities, changes one and adds one."""
    pipe = make_pipe("AB", **{**RULE, **settings})
    pipe.write_rows("A", build_table({"_id": ["a1", "a2"], "x": [1, 2], "_updated": [1, 2]}))
    pipe.write_rows("B", build_table({"_id": ["b1"], "x": [1], "_updated": [1]}))
    pipe.run_job("first")
    pipe.write_rows("A", build_table({"_id": ["a2", "a3"], "x": [9, 3], "_updated": [3, 4]}))
    pipe.write_rows("B", build_table({"_id": ["b3"], "x": [3], "_updated": [2]}))
    pipe.run_job("second")
    return pipe


def read_content(pipe: Pipe) -> list[dict[str, Any]]:
    """Return the live rows without the columns that depend on the order of runs."""
    numbers = ("_updated", "_previous", "_ts", "_hash")
    rows = [{name: value for name, value in row.items() if name not in numbers} for row in pipe.read_rows()]
    return sorted((row for row in rows if not row.get("_deleted")), key=lambda row: row["_id"])


def run_sql(pipe: Pipe, statement: str) -> None:
    pipe.spark.sql(statement.format(target=f"delta.`{pipe.target}`")).collect()


@pytest.mark.parametrize("has_input", all_long_but([False, True], True))
def test_a_restored_target_is_caught_up(make_pipe: MakePipe, has_input: bool) -> None:
    """The rows of an undone run are written again, with and without new input; no number is used twice."""
    pipe = merge_twice(make_pipe)
    expected, highest = read_content(pipe), max(row["_updated"] for row in pipe.read_rows())
    run_sql(pipe, "RESTORE TABLE {target} TO VERSION AS OF 0")
    if has_input:
        pipe.write_rows("A", build_table({"_id": ["a4"], "x": [4], "_updated": [5]}))

    report = pipe.run_job("third")

    assert report["changed"]
    content = read_content(pipe)
    assert [row for row in content if row["_id"] != "0|a4"] == expected
    assert len(content) == len(expected) + has_input
    new = [row["_updated"] for row in pipe.read_rows() if row["_id"] in {"0|a3|1|b3", "0|a4"}]
    assert min(new) > highest
    assert not pipe.run_job("fourth")["changed"]


@pytest.mark.long
def test_a_target_restored_by_time_is_caught_up(make_pipe: MakePipe) -> None:
    """A target restored to a timestamp, which the history has instead of a version, is detected too."""
    pipe = merge_twice(make_pipe)
    expected = read_content(pipe)
    stamp = pipe.spark.sql(f"DESCRIBE HISTORY delta.`{pipe.target}`").collect()[-1]["timestamp"]
    run_sql(pipe, f"RESTORE TABLE {{target}} TO TIMESTAMP AS OF '{stamp.isoformat(sep=' ')}'")

    assert pipe.run_job("third")["changed"]
    assert read_content(pipe) == expected


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM {target} WHERE _id = '0|a2'",
        *all_long_but(
            [
                "UPDATE {target} SET entity = parse_json('{{}}') WHERE _id = '0|a2'",
                "UPDATE {target} SET `$ids` = array('x')",
                """INSERT INTO {target} BY NAME
                SELECT * EXCEPT (_id), 'x' AS _id FROM {target} WHERE _id = '0|a2'""",
                "INSERT INTO {target} BY NAME SELECT 'x' AS _id, 99 AS _updated",
            ]
        ),
    ],
    ids=["delete", "update entity", "update ids", "insert a copy", "insert"],
)
def test_rows_that_a_user_changed_are_made_again(make_pipe: MakePipe, statement: str) -> None:
    """The next run reports who changed rows of the target, and restores the correct rows."""
    pipe = merge_twice(make_pipe)
    expected = read_content(pipe)
    run_sql(pipe, statement)

    report = pipe.run_job("third")

    assert report["changed"]
    assert read_content(pipe) == expected
    assert any("another writer changed rows of the target" in warning for warning in report["warnings"])
    assert not pipe.run_job("fourth")["changed"]


def test_maintenance_is_no_change(make_pipe: MakePipe) -> None:
    """OPTIMIZE and a table property do not count as changes, because they keep every row."""
    pipe = merge_twice(make_pipe)
    run_sql(pipe, "OPTIMIZE {target}")
    run_sql(pipe, "ALTER TABLE {target} SET TBLPROPERTIES (note = 'x')")

    report = pipe.run_job("third")

    assert (report["changed"], report["warnings"]) == (False, [])


@pytest.mark.long
def test_a_moved_warehouse_continues(make_pipe: MakePipe, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Moved sources and targets are recognised by table ids and commits, not by their locations."""
    pipe = merge_twice(make_pipe)
    elsewhere = tmp_path_factory.mktemp("moved") / "warehouse"
    shutil.copytree(pipe.folder, elsewhere)
    pipe.folder = elsewhere

    assert not pipe.run_job("third")["changed"]
    pipe.write_rows("A", build_table({"_id": ["a4"], "x": [4], "_updated": [5]}))
    report = pipe.run_job("fourth")

    assert report["counts"]["rows_written"] == 1
    assert report["warnings"] == []


@pytest.mark.long
def test_a_source_replaced_by_a_copy_with_another_history_is_compared(make_pipe: MakePipe) -> None:
    """A source replaced by a copy is compared completely: it has the same table id but other commits."""
    pipe = make_pipe("AB", **RULE)
    pipe.write_rows("A", build_table({"_id": ["a1"], "x": [1], "_updated": [1]}))
    pipe.write_rows("B", build_table({"_id": ["b1"], "x": [1], "_updated": [1]}))
    shutil.copytree(pipe.folder / "A", pipe.folder / "copy")
    pipe.write_rows("A", build_table({"_id": ["a2"], "x": [2], "_updated": [2]}))
    pipe.run_job("first")
    pipe.write_rows("copy", build_table({"_id": ["a3"], "x": [3], "_updated": [2]}))
    shutil.rmtree(pipe.folder / "A")
    shutil.move(pipe.folder / "copy", pipe.folder / "A")

    report = pipe.run_job("second")

    assert report["changed"]
    assert [row["_id"] for row in read_content(pipe)] == ["0|a1|1|b1", "0|a3"]


@pytest.mark.long
def test_a_retry_reports_its_commit_whatever_came_after(make_pipe: MakePipe) -> None:
    """A retry reports its own commit and writes nothing.

    This holds after new source rows, the commit of another run, and with full refresh.
    """
    pipe = merge_twice(make_pipe)
    pipe.write_rows("A", build_table({"_id": ["a4"], "x": [4], "_updated": [5]}))
    report = pipe.run_job("third")
    pipe.write_rows("A", build_table({"_id": ["a5"], "x": [5], "_updated": [6]}))
    pipe.run_job("fourth")
    version = pipe.read_version()

    for more in ({}, {"full_refresh": True}):
        again = pipe.run_job("third", **more)
        assert (again["changed"], again["target"]["version"]) == (True, report["target"]["version"])
    assert pipe.read_version() == version


def test_metrics_of_a_run_are_written_once(make_pipe: MakePipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metrics of a run are one row, even if an attempt died after it wrote them."""
    pipe = make_pipe("AB", metrics="metrics", **RULE)
    pipe.write_rows("A", build_table({"_id": ["a1"], "x": [1]}))
    pipe.write_rows("B", build_table({"_id": ["b1"], "x": [1]}))
    with monkeypatch.context() as dying:
        dying.setattr("airflow_merge_provider.jobs.run.target.commit_run", _raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            pipe.run_job("first")
    pipe.run_job("first")

    assert pipe.spark.read.format("delta").load(str(pipe.folder / "metrics")).count() == 1
    assert [commit["txn"][1] for commit in list_commits(pipe.target)] == [1]


def _raise_interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt
