"""Test how runs detect changes: by the change data feed, and for recreated tables."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.jobs.merge_source.scan import source_scan
from tests.jobs.merge_source.conftest import MakePipe
from tests.jobs.merge_source.pipe import FeedPipe, Pipe, build_table
from tests.jobs.merge_source.test_changes import format_rows

RULE: dict[str, Any] = {"equality": [["eq", "a.x", "b.x"]]}
FED = {"change_detection": "change_feed", **RULE}
GAP = "the change data feed of dataset 'A' does not contain all changes"
A = {"_id": ["a1", "a2", "a3"], "x": [1, 2, 3]}


@pytest.fixture
def make_pipe(lean: SparkSession, tmp_path: Path) -> MakePipe:
    """Create pipes with datasets on Delta and targets in memory, because these tests are about reads."""

    def create_pipe(datasets: str = "AB", **settings: Any) -> Pipe:
        return FeedPipe(lean, tmp_path, datasets=[f"{name} {name.lower()}" for name in datasets], **settings)

    return create_pipe


def make_merged_pipe(make_pipe: MakePipe, **settings: Any) -> Pipe:
    """Create a pipe over two tables without versions that has run once."""
    pipe = make_pipe("AB", **{**FED, **settings})
    pipe.write_rows("A", build_table(A))
    pipe.write_rows("B", build_table({"_id": ["b1"], "x": [1]}))
    pipe.run_job("first")
    pipe.read_new_rows()
    return pipe


@pytest.fixture
def ids_per_read(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """Return the ids that each read of a dataset returned."""
    id_sets: list[set[str]] = []
    read = source_scan.read_entities

    def read_and_note(thin: pa.Table, sides: Any) -> Any:
        id_sets.append(set(thin.column("id").to_pylist()))
        return read(thin, sides)

    monkeypatch.setattr(source_scan, "read_entities", read_and_note)
    return id_sets


def test_a_feed_tells_what_was_touched(make_pipe: MakePipe, ids_per_read: list[set[str]]) -> None:
    """Only rows that several commits updated, deleted, inserted or renamed are read from the feed."""
    pipe = make_merged_pipe(make_pipe)
    ids_per_read.clear()
    # As another program, much faster than Spark.
    table = DeltaTable(str(pipe.folder / "A"))
    table.update({"x": "9"}, predicate="_id = 'a1'")
    table.update({"x": "7"}, predicate="_id = 'a1'")
    table.delete("_id = 'a2'")
    write_deltalake(table, pa.table({"_id": ["a4", "a5"], "x": [1, 5]}), mode="append")
    table.delete("_id = 'a5'")
    table.update({"_id": "'a6'"}, predicate="_id = 'a3'")

    report = pipe.run_job("second")

    assert format_rows(pipe.read_new_rows()) == [
        "~0|a1|1|b1",
        "-0|a2",
        "-0|a3",
        "+0|a1",
        "+0|a4|1|b1",
        "+0|a6",
    ]
    assert ids_per_read == [{"a1", "a4", "a6"}]
    assert report["warnings"] == []
    assert pipe.run_job("third")["changed"] is False


def test_versions_of_one_entity_are_weighed_against_those_before(make_pipe: MakePipe) -> None:
    """The last version of an entity counts, also if it is an old one because the newest was deleted."""
    pipe = make_pipe("AB", **FED)
    pipe.write_rows("A", build_table({"_id": ["a1", "a1", "a2"], "x": [1, 2, 3], "_updated": [1, 2, 3]}))
    pipe.write_rows("B", build_table({"_id": ["b1"], "x": [1], "_updated": [1]}))
    pipe.run_job("first")
    assert format_rows(pipe.read_new_rows()) == ["+0|a1", "+0|a2", "+1|b1"]
    pipe.write_rows("A", build_table({"_id": ["a2"], "x": [1], "_updated": [2]}))
    pipe.spark.sql(f"DELETE FROM delta.`{pipe.folder / 'A'}` WHERE _updated = 2 AND _id = 'a1'").collect()

    pipe.run_job("second")

    assert format_rows(pipe.read_new_rows()) == ["~0|a1", "~1|b1", "+0|a1|1|b1"]


def test_datasets_without_a_feed_are_named(make_pipe: MakePipe) -> None:
    """All datasets without a feed are named in one error before anything is read."""
    pipe = make_merged_pipe(make_pipe)
    pipe.keeps_feeds = False
    pipe.write_rows("C", build_table({"_id": ["c1"]}))
    pipe.write_rows("D", build_table({"_id": ["d1"]}))

    with pytest.raises(DataError) as refused:
        pipe.run_job("second", datasets=["A a", "B b", "C c", "D d"])

    assert [problem.path for problem in refused.value.problems] == ["dataset 'C'", "dataset 'D'"]
    assert "delta.enableChangeDataFeed" in str(refused.value)


def test_a_feed_with_a_gap_is_not_believed(make_pipe: MakePipe, ids_per_read: list[set[str]]) -> None:
    """A feed with a gap is not used: the dataset is read completely, to find commits made without a feed."""
    pipe = make_merged_pipe(make_pipe)
    ids_per_read.clear()
    at = f"delta.`{pipe.folder / 'A'}`"
    for statement in (
        f"ALTER TABLE {at} SET TBLPROPERTIES (delta.enableChangeDataFeed = false)",
        f"DELETE FROM {at} WHERE _id = 'a2'",
        f"ALTER TABLE {at} SET TBLPROPERTIES (delta.enableChangeDataFeed = true)",
    ):
        pipe.spark.sql(statement).collect()

    report = pipe.run_job("second")

    assert format_rows(pipe.read_new_rows()) == ["-0|a2"]
    assert report["warnings"] == [f"{GAP} since version 0: all its rows are compared"]
    assert ids_per_read == [{"a1", "a3"}]


def test_an_entity_that_comes_a_second_time_is_refused(make_pipe: MakePipe) -> None:
    """An id inserted a second time is rejected.

    The feed has one new row only; the earlier row is found in the whole table.
    """
    pipe = make_merged_pipe(make_pipe)
    pipe.write_rows("A", build_table({"_id": ["a1"], "x": [5]}))

    with pytest.raises(DataError, match="entity 'a1' is in 2 rows"):
        pipe.run_job("second")

    assert pipe.read_version() == 0


@pytest.mark.parametrize("settings", [FED, RULE], ids=["feed", "hash"])
def test_a_table_made_anew_in_the_place_of_another_is_noticed(
    make_pipe: MakePipe, settings: dict[str, Any]
) -> None:
    """A table recreated with the same version number and other rows is detected."""
    pipe = make_merged_pipe(make_pipe, **{"change_detection": "auto", **settings})
    before = DeltaTable(str(pipe.folder / "A")).version()
    shutil.rmtree(pipe.folder / "A")
    pipe.write_rows("A", build_table({"_id": ["a1", "a8"], "x": [2, 1]}))
    assert DeltaTable(str(pipe.folder / "A")).version() == before

    pipe.run_job("second")

    assert format_rows(pipe.read_new_rows()) == ["~0|a1|1|b1", "-0|a2", "-0|a3", "+0|a1", "+0|a8|1|b1"]
    assert pipe.run_job("third")["changed"] is False


def test_a_table_with_versions_that_was_made_anew_is_read_from_its_start(make_pipe: MakePipe) -> None:
    """A recreated table with versions is read from its start, even if its versions exceed the offset."""
    pipe = make_merged_pipe(make_pipe, change_detection="auto")
    versions = {"_id": ["a1", "a2"], "x": [1, 2], "_updated": [1, 2]}
    shutil.rmtree(pipe.folder / "A")
    pipe.write_rows("A", build_table(versions))
    pipe.run_job("second")
    pipe.read_new_rows()
    shutil.rmtree(pipe.folder / "A")
    pipe.write_rows("A", build_table({"_id": ["a1", "a3"], "x": [4, 5], "_updated": [1, 5]}))

    pipe.run_job("third")

    assert format_rows(pipe.read_new_rows()) == ["~0|a1|1|b1", "-0|a2", "+0|a1", "+0|a3", "+1|b1"]


def test_what_a_feed_says_of_rows_is_counted() -> None:
    """Feed rows are counted per entity, which has at most one row before and after the changes."""
    previous_hashes = pa.array([1, 2]).to_numpy()

    def is_plain(hashes: list[int], net: list[int]) -> bool:
        class NoSequence:
            sequence = None

        source: Any = NoSequence()
        return source_scan.FeedChanges(
            source, pa.array(hashes).to_numpy(), pa.array(net).to_numpy()
        ).is_plain(previous_hashes)

    assert is_plain([1, 2, 3, 4], [0, -1, 1, 0])
    assert not is_plain([1], [1])
    assert not is_plain([3], [2])
    assert not is_plain([3], [-1])


def vacuum_source(pipe: Pipe) -> None:
    """Delete every file of A that its newest version does not need, including those of the feed."""
    pipe.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    try:
        pipe.spark.sql(f"VACUUM delta.`{pipe.folder / 'A'}` RETAIN 0 HOURS").collect()
    finally:
        pipe.spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")


def without_old_commits(pipe: Pipe) -> None:
    """Delete the log of A before its newest version, which a checkpoint contains."""
    log = pipe.folder / "A" / "_delta_log"
    DeltaTable(str(pipe.folder / "A")).create_checkpoint()
    for commit in sorted(log.glob("*.json"))[:-1]:
        commit.unlink()


@pytest.mark.long
@pytest.mark.parametrize("remove_history", [vacuum_source, without_old_commits])
def test_a_feed_that_was_cleaned_away_is_not_believed(
    make_pipe: MakePipe, ids_per_read: list[set[str]], remove_history: Callable[[Pipe], None]
) -> None:
    """If feed files or log were deleted after their retention time, the whole dataset is read."""
    pipe = make_merged_pipe(make_pipe)
    ids_per_read.clear()
    at = f"delta.`{pipe.folder / 'A'}`"
    for statement in (f"UPDATE {at} SET x = 9 WHERE _id = 'a1'", f"DELETE FROM {at} WHERE _id = 'a2'"):
        pipe.spark.sql(statement).collect()
    remove_history(pipe)

    report = pipe.run_job("second")

    assert format_rows(pipe.read_new_rows()) == ["~0|a1|1|b1", "-0|a2", "+0|a1", "+1|b1"]
    assert report["warnings"] == [f"{GAP} since version 0: all its rows are compared"]
    assert ids_per_read == [{"a1", "a3"}]
    assert pipe.run_job("third")["changed"] is False
