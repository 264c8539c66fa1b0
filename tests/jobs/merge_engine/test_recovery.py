"""Test runs after tables were restored, deleted from, moved, copied or renamed in spelling."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from airflow_merge_provider.core.errors import DataError
from tests.jobs.merge_engine.conftest import MakeStream
from tests.jobs.merge_engine.stream import Stream

SUM: dict[str, Any] = {"merge_engine": "aggregation", "options": {"fields.v.aggregate-function": "sum"}}


def fold_twice(stream: MakeStream, **settings: Any) -> Stream:
    """Create a sum of key 1 in two runs: 1, then 3."""
    made = stream(**{**SUM, **settings})
    for value in (1, 2):
        made.write_batch({"k": [1], "v": [value]})
        made.run_job()
    return made


@pytest.mark.parametrize("has_input", [False, True])
def test_a_restored_target_is_caught_up(stream: MakeStream, has_input: bool) -> None:
    """After a RESTORE of the target every record counts once, as offsets and change log are restored too."""
    made = fold_twice(stream, changelog="log")
    made.run_sql("RESTORE TABLE {target} TO VERSION AS OF 0")
    if has_input:
        made.write_batch({"k": [1], "v": [4]})

    made.run_job()

    assert made.read_rows() == [(1, 7 if has_input else 3)]
    assert [row[:3] for row in made.read_rows("log", ("_run", "_kind"))] == [
        ("+I", 1, 1), ("+U", 1, 7 if has_input else 3), ("-U", 1, 1),
    ]  # fmt: skip
    assert made.run_job()["changed"] is False


def test_removed_keys_go_back_with_a_restored_target(stream: MakeStream) -> None:
    """The removals of a run that RESTORE undid do not affect keys that return."""
    options = {"sequence.field": "s"}
    made = stream(options=options, row_kind_column="op", tombstone_retention=7)
    made.write_batch({"k": [1, 2], "op": ["+I", "+I"], "s": [1, 1], "v": [1, 1]})
    made.run_job()
    made.write_batch({"k": [1], "op": ["-D"], "s": [5], "v": [1]})
    made.run_job()
    made.run_sql("RESTORE TABLE {target} TO VERSION AS OF 0")
    made.run_sql("RESTORE TABLE {source} TO VERSION AS OF 0")
    made.write_batch({"k": [1], "op": ["+U"], "s": [3], "v": [9]})

    made.run_job(full_refresh=True)

    assert made.read_rows() == [(1, 3, 9), (2, 1, 1)]


def test_rows_that_a_user_deleted_are_noticed(stream: MakeStream) -> None:
    """A run over a target with rows deleted by a user folds on and reports the change by others."""
    made = fold_twice(stream)
    made.run_sql("DELETE FROM {target} WHERE k = 1")

    without = made.run_job()
    made.write_batch({"k": [1], "v": [4]})
    further = made.run_job()

    for report in (without, further):
        assert any("another writer changed rows of the target: DELETE" in each for each in report["warnings"])
    assert made.read_rows() == [(1, 4)]
    made.write_batch({"k": [1], "v": [1]})
    assert made.run_job()["warnings"] == []


@pytest.mark.parametrize("spelling", ["dots", "link", "file", "catalog"])
def test_a_source_with_another_spelling_continues(stream: MakeStream, spelling: str) -> None:
    """Another spelling of the source is the same table: its records are not folded again."""
    made = fold_twice(stream)
    folder = made.folder
    (folder / "link").symlink_to(folder, target_is_directory=True)
    spelled = {
        "dots": f"{folder}/state/../changes",
        "link": f"{folder}/link/changes",
        "file": f"file://{folder}/changes",
        "catalog": "default.changes",
    }
    if spelling == "catalog":
        made.spark.sql(f"CREATE TABLE default.changes USING delta LOCATION '{folder}/changes'").collect()
    try:
        assert made.run_job(source=spelled[spelling])["changed"] is False
        made.write_batch({"k": [1], "v": [4]})
        made.run_job(source=spelled[spelling])
        assert made.read_rows() == [(1, 7)]
        assert made.run_job()["changed"] is False
    finally:
        made.spark.sql("DROP TABLE IF EXISTS default.changes").collect()


def test_a_moved_warehouse_continues(stream: MakeStream, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Runs continue after target, source and side tables were copied to another location."""
    made = fold_twice(stream, changelog="log")
    elsewhere = tmp_path_factory.mktemp("moved") / "warehouse"
    shutil.copytree(made.folder, elsewhere)
    made.folder = elsewhere
    made.write_batch({"k": [1], "v": [4]})

    made.run_job()

    assert made.read_rows() == [(1, 7)]
    assert len(made.read_rows("log")) == 5


def test_a_copy_that_went_another_way_is_refused(stream: MakeStream) -> None:
    """A copy with the id of the folded table but with another commit at the offset is rejected."""
    made = fold_twice(stream)
    shutil.copytree(made.folder / "changes", made.folder / "copy")
    shutil.rmtree(made.folder / "copy" / "_delta_log")
    (made.folder / "copy" / "_delta_log").mkdir()
    first = f"{0:020d}.json"
    shutil.copy(made.folder / "changes" / "_delta_log" / first, made.folder / "copy" / "_delta_log" / first)
    made.write_batch({"k": [1], "v": [40]}, "copy")
    made.write_batch({"k": [1], "v": [50]}, "copy")

    with pytest.raises(DataError, match=r"version 1 is not the version that was folded.*full_refresh=True"):
        made.run_job(source="copy")

    assert made.read_rows() == [(1, 3)]


def test_a_retry_reports_its_commit_whatever_came_after(stream: MakeStream) -> None:
    """A retry reports its own commit, even after new source rows and the commit of another run."""
    made = fold_twice(stream)
    made.write_batch({"k": [1], "v": [4]})
    own = made.run_job("own")
    made.write_batch({"k": [1], "v": [8]})
    made.run_job("other")

    for more in ({}, {"full_refresh": True}):
        again = made.run_job("own", **more)
        assert (again["changed"], again["target"]["version"]) == (True, own["target"]["version"])
        assert again["counts"] == own["counts"]
    assert made.read_rows() == [(1, 15)]
