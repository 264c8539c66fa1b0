"""Test runs after tables were restored, deleted from, moved, copied or renamed in spelling."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from airflow_merge_provider.core.errors import DataError
from tests.jobs.merge_engine.conftest import MakeStream
from tests.jobs.merge_engine.stream import Stream
from tests.long import all_long_but

SUM: dict[str, Any] = {"merge_engine": "aggregation", "options": {"fields.v.aggregate-function": "sum"}}


def fold_twice(make_stream: MakeStream, **settings: Any) -> Stream:
    """Create a sum of key 1 in two runs: 1, then 3."""
    stream = make_stream(**{**SUM, **settings})
    for value in (1, 2):
        stream.write_batch({"k": [1], "v": [value]})
        stream.run_job()
    return stream


@pytest.mark.long
@pytest.mark.parametrize("has_input", [False, True])
def test_a_restored_target_is_caught_up(make_stream: MakeStream, has_input: bool) -> None:
    """After a RESTORE of the target every record counts once, as offsets and change log are restored too."""
    stream = fold_twice(make_stream, changelog="log")
    stream.run_sql("RESTORE TABLE {target} TO VERSION AS OF 0")
    if has_input:
        stream.write_batch({"k": [1], "v": [4]})

    stream.run_job()

    assert stream.read_rows() == [(1, 7 if has_input else 3)]
    assert [row[:3] for row in stream.read_rows("log", ("_run", "_kind"))] == [
        ("+I", 1, 1), ("+U", 1, 7 if has_input else 3), ("-U", 1, 1),
    ]  # fmt: skip
    assert stream.run_job()["changed"] is False


@pytest.mark.long
def test_removed_keys_go_back_with_a_restored_target(make_stream: MakeStream) -> None:
    """The removals of a run that RESTORE undid do not affect keys that return."""
    options = {"sequence.field": "s"}
    stream = make_stream(options=options, row_kind_column="op", tombstone_retention=7)
    stream.write_batch({"k": [1, 2], "op": ["+I", "+I"], "s": [1, 1], "v": [1, 1]})
    stream.run_job()
    stream.write_batch({"k": [1], "op": ["-D"], "s": [5], "v": [1]})
    stream.run_job()
    stream.run_sql("RESTORE TABLE {target} TO VERSION AS OF 0")
    stream.run_sql("RESTORE TABLE {source} TO VERSION AS OF 0")
    stream.write_batch({"k": [1], "op": ["+U"], "s": [3], "v": [9]})

    stream.run_job(full_refresh=True)

    assert stream.read_rows() == [(1, 3, 9), (2, 1, 1)]


def test_rows_that_a_user_deleted_are_noticed(make_stream: MakeStream) -> None:
    """A run over a target with rows deleted by a user folds on and reports the change by others."""
    stream = fold_twice(make_stream)
    stream.run_sql("DELETE FROM {target} WHERE k = 1")

    without = stream.run_job()
    stream.write_batch({"k": [1], "v": [4]})
    further = stream.run_job()

    for report in (without, further):
        assert any(
            "another writer changed rows of the target: DELETE" in warning for warning in report["warnings"]
        )
    assert stream.read_rows() == [(1, 4)]
    stream.write_batch({"k": [1], "v": [1]})
    assert stream.run_job()["warnings"] == []
    stream.run_job(full_refresh=True)
    assert stream.read_rows() == [(1, 8)]


@pytest.mark.parametrize("spelling", all_long_but(["dots", "link", "file", "catalog"], "link"))
def test_a_source_with_another_spelling_continues(make_stream: MakeStream, spelling: str) -> None:
    """Another spelling of the source is the same table: its records are not folded again."""
    stream = fold_twice(make_stream)
    folder = stream.folder
    (folder / "link").symlink_to(folder, target_is_directory=True)
    spelled = {
        "dots": f"{folder}/state/../changes",
        "link": f"{folder}/link/changes",
        "file": f"file://{folder}/changes",
        "catalog": "default.changes",
    }
    if spelling == "catalog":
        stream.spark.sql(f"CREATE TABLE default.changes USING delta LOCATION '{folder}/changes'").collect()
    try:
        assert stream.run_job(source=spelled[spelling])["changed"] is False
        stream.write_batch({"k": [1], "v": [4]})
        stream.run_job(source=spelled[spelling])
        assert stream.read_rows() == [(1, 7)]
        assert stream.run_job()["changed"] is False
    finally:
        stream.spark.sql("DROP TABLE IF EXISTS default.changes").collect()


@pytest.mark.long
def test_a_moved_warehouse_continues(
    make_stream: MakeStream, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Runs continue after target, source and side tables were copied to another location."""
    stream = fold_twice(make_stream, changelog="log")
    elsewhere = tmp_path_factory.mktemp("moved") / "warehouse"
    shutil.copytree(stream.folder, elsewhere)
    stream.folder = elsewhere
    stream.write_batch({"k": [1], "v": [4]})

    stream.run_job()

    assert stream.read_rows() == [(1, 7)]
    assert len(stream.read_rows("log")) == 5


def test_a_copy_that_went_another_way_is_refused(make_stream: MakeStream) -> None:
    """A copy with the id of the folded table but with another commit at the offset is rejected."""
    stream = fold_twice(make_stream)
    shutil.copytree(stream.folder / "changes", stream.folder / "copy")
    shutil.rmtree(stream.folder / "copy" / "_delta_log")
    (stream.folder / "copy" / "_delta_log").mkdir()
    first = f"{0:020d}.json"
    shutil.copy(
        stream.folder / "changes" / "_delta_log" / first, stream.folder / "copy" / "_delta_log" / first
    )
    stream.write_batch({"k": [1], "v": [40]}, "copy")
    stream.write_batch({"k": [1], "v": [50]}, "copy")

    with pytest.raises(DataError, match=r"version 1 is not the version that was folded.*full_refresh=True"):
        stream.run_job(source="copy")

    assert stream.read_rows() == [(1, 3)]


def test_a_retry_reports_its_commit_whatever_came_after(make_stream: MakeStream) -> None:
    """A retry reports its own commit, even after new source rows and the commit of another run."""
    stream = fold_twice(make_stream)
    stream.write_batch({"k": [1], "v": [4]})
    report = stream.run_job("own")
    stream.write_batch({"k": [1], "v": [8]})
    stream.run_job("other")
    stream.run_sql("OPTIMIZE {target}")

    for more in ({}, {"full_refresh": True}):
        again = stream.run_job("own", **more)
        assert (again["changed"], again["target"]["version"]) == (True, report["target"]["version"])
        assert again["counts"] == report["counts"]
    assert stream.read_rows() == [(1, 15)]
