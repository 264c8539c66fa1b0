"""Test that an incremental run by sequence finds late rows: with an equal, a lower or no value."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from airflow_merge_provider.jobs.merge_source.scan import incremental_scan
from tests.jobs.merge_source.pipe import FeedPipe, Pipe
from tests.jobs.merge_source.test_changes import format_rows

RULE: dict[str, Any] = {"equality": [["eq", "a.x", "b.x"]]}
NUMBERS, TIMES = pa.int64(), pa.timestamp("us", "UTC")


def build_versions(kind: pa.DataType, *rows: tuple[str, int | None, int]) -> pa.Table:
    """Build rows of (ID, sequence, x); a timestamp has its sequence as microseconds."""

    def to_place(sequence: int | None) -> Any:
        if sequence is None or kind == NUMBERS:
            return sequence
        return dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=sequence)

    return pa.table({
        "_id": [id_ for id_, _, _ in rows],
        "_updated": pa.array([to_place(sequence) for _, sequence, _ in rows], kind),
        "x": [x for _, _, x in rows],
    })  # fmt: skip


class LatePipe(FeedPipe):
    """Datasets on Delta with one type of sequence; each run is compared with a full run."""

    kind = NUMBERS

    def write_late(self, *rows: tuple[str, int | None, int]) -> None:
        """Append rows to A."""
        self.write_rows("A", build_versions(self.kind, *rows))

    def change(self, statement: str) -> None:
        """Run a statement on A, which it calls ``{a}``."""
        self.spark.sql(statement.format(a=f"delta.`{self.folder / 'A'}`")).collect()

    def run_compared(self) -> list[str]:
        """Run, check that a full run would find no difference, and return what the run wrote."""
        self.report = self.run_job()
        full = self.run_job(full_refresh=True, until="transform")
        assert (full["run_mode"], full["changed"], full["counts"]["rows_written"]) == ("full", False, 0)
        return format_rows(self.read_new_rows())


@pytest.fixture
def pipe(lean: SparkSession, tmp_path: Path) -> LatePipe:
    return LatePipe(lean, tmp_path, datasets=["A a", "B b"], **RULE)


def start(pipe: LatePipe, kind: pa.DataType) -> None:
    """Merge two datasets whose highest sequence is 5."""
    pipe.kind = kind
    pipe.write_late(("a1", 5, 1), ("a2", 5, 2))
    pipe.write_rows("B", build_versions(kind, ("b1", 1, 1), ("b9", 1, 9)))
    pipe.run_compared()


def test_late_rows_are_found(pipe: LatePipe) -> None:
    """A row counts whatever its sequence, and an old version of an entity does not replace a newer one."""
    start(pipe, TIMES)

    pipe.write_late(("a3", 5, 9), ("a1", 3, 9), ("a2", None, 9), ("a6", 7, 6))
    pipe.write_late(("a4", 2, 9), ("a5", None, 5), ("a6", 6, 9))
    assert pipe.run_compared() == ["~1|b9", "+0|a3|0|a4|1|b9", "+0|a5", "+0|a6"]
    pipe.change("UPDATE {a} SET x = 1 WHERE _id = 'a5'")
    assert pipe.run_compared() == ["~0|a1|1|b1", "~0|a5", "+0|a1|0|a5|1|b1"]
    assert pipe.report["run_mode"] == "incremental"
    assert pipe.report["warnings"] == []


@pytest.mark.long
def test_late_rows_are_found_in_files_that_commits_moved(pipe: LatePipe) -> None:
    """Files that a commit compacts, marks or restores hide no late row, and lead to no other result."""
    start(pipe, NUMBERS)

    pipe.write_late(("a3", 4, 9))
    before = DeltaTable(str(pipe.folder / "A")).version()
    pipe.change("OPTIMIZE {a}")
    assert pipe.run_compared() == ["~1|b9", "+0|a3|1|b9"]
    pipe.change("UPDATE {a} SET x = 2, _updated = 1 WHERE _id = 'a3'")
    pipe.write_late(("a7", 6, 7))
    pipe.change("OPTIMIZE {a}")
    assert pipe.run_compared() == ["~0|a3|1|b9", "+0|a3", "+0|a7", "+1|b9"]
    pipe.change("DELETE FROM {a} WHERE _id = 'a7'")
    pipe.change(f"RESTORE {{a}} TO VERSION AS OF {before}")
    assert pipe.run_compared() == ["~0|a3", "-0|a7", "~1|b9", "+0|a3|1|b9"]
    assert "the highest sequence value of dataset 'A' is lower" in pipe.report["run_mode_reason"]


@pytest.mark.long
def test_many_late_rows_are_compared_with_all(pipe: LatePipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """If most rows are late, all rows are compared, which also finds those that vanished."""
    start(pipe, NUMBERS)
    monkeypatch.setattr(incremental_scan, "LATE_MAX_ROWS", 0)
    pipe.write_late(("a3", 4, 9))
    pipe.change("DELETE FROM {a} WHERE _id = 'a2'")

    assert pipe.run_compared() == ["-0|a2", "~1|b9", "+0|a3|1|b9"]


def test_a_log_without_the_commits_is_not_believed(pipe: LatePipe) -> None:
    """If the log lacks a commit since the last run, all rows are compared, and a warning says so."""
    start(pipe, NUMBERS)
    pipe.write_late(("a3", 4, 9))
    pipe.write_late(("a4", 6, 4))
    without_old_commits(pipe)

    assert pipe.run_compared() == ["~1|b9", "+0|a3|1|b9", "+0|a4"]
    reason = "the log of dataset 'A' lacks commits after version 0: all its rows are compared"
    assert pipe.report["warnings"] == [reason]


def without_old_commits(pipe: Pipe) -> None:
    """Delete the log of A before its newest version, which a checkpoint contains."""
    DeltaTable(str(pipe.folder / "A")).create_checkpoint()
    for commit in sorted((pipe.folder / "A" / "_delta_log").glob("*.json"))[:-1]:
        commit.unlink()
