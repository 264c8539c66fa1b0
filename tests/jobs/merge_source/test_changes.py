"""Test what later runs write: the differences in one commit, or nothing."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from airflow_merge_provider.core.errors import ConfigError, DataError
from airflow_merge_provider.jobs.merge_source import resolution
from airflow_merge_provider.jobs.merge_source.model import PreviousState
from airflow_merge_provider.jobs.merge_source.scan import previous_state
from tests.jobs.delta_log import list_commits
from tests.jobs.merge_source.conftest import MakePipe
from tests.jobs.merge_source.pipe import JSON, Pipe, build_table
from tests.long import all_long_but

RULE: dict[str, Any] = {"equality": [["eq", "a.x", "b.x"]]}


def format_rows(rows: list[dict[str, Any]]) -> list[str]:
    """Return rows in short form: ``+id`` is live, ``-id`` deleted, ``~id`` replaced."""
    signs = ("~" if row.get("$replaced") else "-" if row.get("_deleted") else "+" for row in rows)
    return [sign + row["_id"] for sign, row in zip(signs, rows, strict=True)]


def build_versions(numbers: list[int], ids: list[str], x: list[int]) -> pa.Table:
    return build_table({"_updated": numbers, "_id": ids, "x": x})


def make_merged_pipe(make_pipe: MakePipe, **settings: Any) -> Pipe:
    """Create a pipe over two tables with versions that has run once."""
    pipe = make_pipe("AB", **{**RULE, **settings})
    pipe.write_rows("A", build_versions([1, 2], ["a1", "a2"], [1, 2]))
    pipe.write_rows("B", build_versions([1], ["b1"], [1]))
    pipe.run_job("first")
    pipe.read_new_rows()
    return pipe


def test_only_what_differs_is_written(make_pipe: MakePipe) -> None:
    """A new member replaces its cluster; the other output keeps its row, its number and its file."""
    pipe = make_merged_pipe(make_pipe)
    pipe.write_rows("A", build_versions([3], ["a0"], [1]))

    report = pipe.run_job("second")

    assert format_rows(pipe.read_new_rows()) == ["~0|a1|1|b1", "+0|a0|0|a1|1|b1"]
    assert [row["_updated"] for row in pipe.read_rows()] == [1, 2, 3]
    assert report["rows"] == {"inserted": 1, "updated": 0, "deleted": 1, "unchanged": 1}
    assert report["counts"] == {
        "entities": 4, "deleted_entities": 0, "live_rows": 2, "merged_rows": 1, "outputs": 2,
        "entities_changed": 1, "rows_evaluated": 3, "rows_written": 1, "ids_replaced": 1, "ids_removed": 0,
    }  # fmt: skip
    assert report["details"]["keys"] == [{"rule": "a.x = b.x", "entities": 3, "of": ["A/a0", "A/a1", "B/b1"]}]
    assert [(rule["pairs"], rule["sole_evidence"]) for rule in report["details"]["rules"]] == [(2, 1)]
    assert pipe.read_version() == report["target"]["version"] == 1
    assert [entry["run"]["number"] for entry in list_commits(pipe.target)] == [1, 2]
    assert pipe.run_job("third")["changed"] is False
    assert pipe.read_version() == 1


def test_a_cluster_is_read_once_however_many_of_its_members_are_reached(
    make_memory_pipe: MakePipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An affected cluster is read once, however many of its members a changed key reaches.

    One copy per reached member would be quadratic in the size of the cluster.
    """
    size = 40
    pipe = make_merged_pipe(make_memory_pipe)
    ids = [f"a{100 + number}" for number in range(size)]
    pipe.write_rows("A", build_versions([3 + number for number in range(size)], ids, [7] * size))
    pipe.write_rows("B", build_versions([2], ["b7"], [7]))
    pipe.run_job("large")
    pipe.read_new_rows()
    copies: list[int] = []
    build_state = previous_state._build_state

    def take_counted(read: pa.Table, *arguments: Any) -> PreviousState:
        copies.append(read.column(previous_state.STARTS).to_pylist().count(True))
        return build_state(read, *arguments)

    monkeypatch.setattr(resolution, "_FULL_READ_MAX_ROWS", 0)
    monkeypatch.setattr(previous_state, "_build_state", take_counted)
    pipe.write_rows("A", build_versions([size + 3, size + 4], ids[:2], [7, 8]))

    pipe.run_job("later")

    assert copies == [1]
    remaining_members = "|".join(f"0|{id_}" for id_ in ids if id_ != ids[1])
    all_members = "|".join(f"0|{id_}" for id_ in ids)
    assert format_rows(pipe.read_new_rows()) == [
        f"~{all_members}|1|b7",
        f"+{remaining_members}|1|b7",
        f"+0|{ids[1]}",
    ]


def test_few_changes_become_one_file(make_pipe: MakePipe, lean: SparkSession) -> None:
    """Few changes are written as one file, whatever the number of shuffle partitions.

    A target of many small files is slow to read.
    """
    pipe = make_merged_pipe(make_pipe)
    before = set(DeltaTable(str(pipe.target)).file_uris())
    shared = [10 + number for number in range(9)]
    pipe.write_rows("A", build_versions(shared, [f"a{number}" for number in shared], shared))
    pipe.write_rows("B", build_versions(shared, [f"b{number}" for number in shared], shared))
    lean.conf.set("spark.sql.shuffle.partitions", "4")
    try:
        report = pipe.run_job("more")
    finally:
        lean.conf.set("spark.sql.shuffle.partitions", "1")

    assert report["counts"]["rows_written"] == len(shared)
    written = set(DeltaTable(str(pipe.target)).file_uris()) - before
    assert [pq.read_metadata(file).num_rows for file in written] == [len(shared)]


def test_a_refused_change_is_refused_as_a_full_run_is(make_memory_pipe: MakePipe) -> None:
    """An incremental run fails with the same error as a full run.

    Of two duplicate ids the first one is named, although the change affects only the other one.
    """
    pipe = make_memory_pipe("AB", **RULE, identity="first")
    pipe.write_rows("B", build_versions([1, 2], ["i1", "i2"], [1, 2]))
    pipe.run_job("first")
    pipe.write_rows("A", build_versions([1, 2], ["i1", "i2"], [3, 4]))
    pipe.write_rows("B", build_versions([3], ["i2"], [5]))

    for arguments in ({}, {"full_refresh": True}):
        with pytest.raises(DataError, match="duplicate output id 'i1': from A/i1 and B/i1"):
            pipe.run_job("second", **arguments)

    assert pipe.read_version() == 0


def test_what_says_the_same_is_read_once(make_pipe: MakePipe) -> None:
    """A new version with unchanged content is not written, but the next run does not read it again."""
    pipe = make_merged_pipe(make_pipe)
    pipe.write_rows("A", build_versions([3], ["a1"], [1]))
    DeltaTable(str(pipe.folder / "B")).vacuum(0, dry_run=False, enforce_retention_duration=False)

    report = pipe.run_job("second")

    assert report["changed"] is False
    assert pipe.read_new_rows() == []
    assert pipe.read_version() == 1
    assert pipe.run_job("third")["run_mode"] == "noop"


@pytest.mark.long
def test_members_are_remembered_without_telling_readers(make_pipe: MakePipe) -> None:
    """A change that the output does not show is stored, so that the next run joins by the new key."""
    pipe = make_pipe("AB", equality=[["eq", "a._key", "b.x"]], **JSON)
    pipe.write_json("A", [{"_id": "a1", "_key": 1}])
    pipe.write_json("B", [{"_id": "b1", "x": 2}])
    pipe.run_job("first")
    pipe.read_new_rows()
    pipe.write_json("A", [{"_id": "a1", "_key": 3}])

    assert pipe.run_job("second")["changed"] is False
    assert pipe.read_version() == 1
    pipe.write_json("B", [{"_id": "b2", "x": 3}])
    pipe.run_job("third")

    assert format_rows(pipe.read_new_rows()) == ["~0|a1", "+0|a1|1|b2"]


def test_a_table_without_versions_is_compared_as_a_whole(make_memory_pipe: MakePipe) -> None:
    """Changed and deleted rows of a table without versions are detected by their hashes."""
    pipe = make_memory_pipe("AB", **RULE)
    pipe.write_rows("A", build_table({"_id": ["a1", "a2", "a3"], "x": [1, 2, 3]}))
    pipe.write_rows("B", build_table({"_id": ["b1"], "x": [1]}))
    pipe.run_job("first")
    pipe.read_new_rows()

    pipe.write_rows("A", build_table({"_id": ["a1", "a2"], "x": [5, 2]}), "overwrite")
    pipe.run_job("second")

    assert format_rows(pipe.read_new_rows()) == ["~0|a1|1|b1", "-0|a3", "+0|a1", "+1|b1"]


def test_a_vanished_entity_is_noticed_where_something_changes(make_memory_pipe: MakePipe) -> None:
    """With versions a deleted row is detected only when its output is written again."""
    pipe = make_merged_pipe(make_memory_pipe)
    pipe.write_rows("A", build_versions([2], ["a2"], [2]), "overwrite")
    assert pipe.run_job("second")["changed"] is False
    pipe.write_rows("B", build_versions([2], ["b2"], [1]))

    report = pipe.run_job("third")

    assert format_rows(pipe.read_new_rows()) == ["~0|a1|1|b1", "+1|b1", "+1|b2"]
    assert report["run_mode_reason"] == "an entity no longer exists in its dataset"


def test_contents_show_what_versions_do_not(make_pipe: MakePipe) -> None:
    """With hashes a deleted row is detected at once.

    With versions alone every dataset needs a version column.
    """
    pipe = make_merged_pipe(make_pipe, change_detection="hash")
    pipe.write_rows("A", build_versions([2], ["a2"], [2]), "overwrite")

    pipe.run_job("second")

    assert format_rows(pipe.read_new_rows()) == ["~0|a1|1|b1", "+1|b1"]
    rows = pa.table({"_id": ["b1"], "x": [1]})
    write_deltalake(str(pipe.folder / "B"), rows, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(DataError, match="dataset 'B': has no usable sequence column"):
        pipe.run_job("third", change_detection="sequence")


def test_a_dataset_that_was_made_anew_is_compared(make_memory_pipe: MakePipe) -> None:
    """If versions end before the stored offset, all rows are compared, with a warning."""
    pipe = make_merged_pipe(make_memory_pipe)
    pipe.write_rows("A", build_versions([1], ["a7"], [1]), "overwrite")

    report = pipe.run_job("second")

    assert format_rows(pipe.read_new_rows()) == ["~0|a1|1|b1", "-0|a2", "+0|a7|1|b1"]
    assert "the highest sequence value of dataset 'A' is lower" in report["run_mode_reason"]


def test_a_dataset_that_only_lost_its_last_rows_is_not_made_anew(make_memory_pipe: MakePipe) -> None:
    """A dataset that only lost its last rows is not treated as recreated.

    A full refresh detects deleted rows, even if they were the last that were read.
    """
    pipe = make_merged_pipe(make_memory_pipe)
    pipe.write_rows("A", build_versions([1], ["a1"], [1]), "overwrite")

    assert pipe.run_job("second")["changed"] is False
    pipe.run_job("third", full_refresh=True)

    assert format_rows(pipe.read_new_rows()) == ["-0|a2"]


def test_rows_without_a_version_are_always_read(make_memory_pipe: MakePipe) -> None:
    """A row with NULL in the sequence column is compared in every run, because its version is unknown."""
    pipe = make_merged_pipe(make_memory_pipe)
    pipe.write_rows("B", pa.table({"_updated": pa.array([None], pa.int64()), "_id": ["b2"], "x": [2]}))

    pipe.run_job("second")

    assert format_rows(pipe.read_new_rows()) == ["~0|a2", "+0|a2|1|b2"]
    assert pipe.run_job("third")["changed"] is False


def test_timestamps_are_versions(make_memory_pipe: MakePipe) -> None:
    """With timestamps as versions, only rows later than the last timestamp are read."""
    pipe = make_memory_pipe("A", sequence_column="changed")
    when = [dt.datetime(2026, 1, day, tzinfo=dt.UTC) for day in (1, 2, 3)]
    kind = pa.timestamp("us", "UTC")
    pipe.write_rows("A", pa.table({"_id": ["a1", "a2"], "x": [1, 2], "changed": pa.array(when[:2], kind)}))
    pipe.run_job("first")
    pipe.read_new_rows()
    pipe.write_rows("A", pa.table({"_id": ["a1"], "x": [3], "changed": pa.array(when[2:], kind)}))

    report = pipe.run_job("second")

    assert format_rows(pipe.read_new_rows()) == ["+0|a1"]
    assert report["counts"]["rows_evaluated"] == 1


def test_a_full_refresh_compares_and_a_reset_writes_anew(make_memory_pipe: MakePipe) -> None:
    """A full refresh writes nothing if nothing differs.

    A reset writes everything and restarts the numbers.
    """
    pipe = make_merged_pipe(make_memory_pipe)
    pipe.write_rows("A", build_versions([3], ["a1"], [2]))
    pipe.run_job("second")
    assert format_rows(pipe.read_new_rows()) == ["~0|a1|1|b1", "+0|a1", "+1|b1"]

    assert pipe.run_job("third", full_refresh=True)["changed"] is False
    report = pipe.run_job("fourth", reset=True)

    assert report["changed"] is True
    assert [(row["_id"], row["_updated"]) for row in pipe.read_rows()] == [
        ("0|a1", 0),
        ("0|a2", 1),
        ("1|b1", 2),
    ]


def test_changed_rules_write_what_differs(make_memory_pipe: MakePipe) -> None:
    """After a change of rules everything is compared, unless ``on_config_change`` rejects the run."""
    pipe = make_merged_pipe(make_memory_pipe)
    rules = {"equality": [["eq", "a._id", "b._id"]]}

    with pytest.raises(DataError, match=r"has changed since the previous run.*full_refresh=True"):
        pipe.run_job("second", **rules, on_config_change="fail")
    assert pipe.read_version() == 0
    report = pipe.run_job("second", **rules)

    assert format_rows(pipe.read_new_rows()) == ["~0|a1|1|b1", "+0|a1", "+1|b1"]
    assert "the configuration has changed" in report["run_mode_reason"]
    assert pipe.run_job("third", **rules)["changed"] is False


def test_version_1_does_not_move_datasets(make_memory_pipe: MakePipe) -> None:
    """In version 1 a changed dataset order is rejected until a reset, as the ids have dataset offsets."""
    pipe = make_merged_pipe(make_memory_pipe, version=1)

    with pytest.raises(ConfigError, match="dataset 'B' moved from offset 1 to 0"):
        pipe.run_job("second", datasets=["B b", "A a"])

    assert pipe.run_job("third", datasets=["B b", "A a"], reset=True)["changed"] is True


def test_a_dry_run_tells_what_would_be_written(make_memory_pipe: MakePipe) -> None:
    """A dry run reports the counts of the run that follows it, and does not write the target."""
    pipe = make_merged_pipe(make_memory_pipe)
    pipe.write_rows("B", build_versions([2], ["b2"], [2]))

    dry = pipe.run_job("dry", until="transform")
    wet = pipe.run_job("wet")

    assert dry["counts"] == wet["counts"]
    assert (dry["changed"], dry["dry_run"], wet["changed"]) == (False, True, True)
    assert pipe.read_version() == 1


@pytest.mark.parametrize("identity", all_long_but(["composite", "first"], "composite"))
def test_maintenance_of_the_target_changes_nothing(make_pipe: MakePipe, identity: str) -> None:
    """A compaction between two runs keeps the state: the next run finds it and continues the numbers."""
    pipe = make_merged_pipe(make_pipe, identity=identity)
    DeltaTable(str(pipe.target)).vacuum(0, dry_run=False, enforce_retention_duration=False)
    pipe.spark.sql(f"OPTIMIZE delta.`{pipe.target}`").collect()
    pipe.write_rows("B", build_versions([2], ["b2"], [2]))

    pipe.run_job("second")

    assert [row["_updated"] for row in pipe.read_new_rows()] == ([2, 3] if identity == "composite" else [2])


@pytest.mark.long
def test_datasets_may_be_wide(make_memory_pipe: MakePipe) -> None:
    """A dataset may have hundreds of properties, and a change of one of them is detected."""
    pipe = make_memory_pipe("AB", **RULE, values="columns")
    wide = {f"c{number}": ["a"] for number in range(400)}
    pipe.write_rows("A", build_table({"_id": ["a1"], "_updated": [1], "x": [1], **wide}))
    pipe.write_rows("B", build_table({"_id": ["b1"], "_updated": [1], "x": [1]}))
    pipe.run_job()
    pipe.write_rows("A", build_table({"_id": ["a1"], "_updated": [2], "x": [1], **wide, "c399": ["new"]}))

    report = pipe.run_job()

    assert report["counts"]["rows_written"] == 1


def test_pairs_and_entities_of_neighbours_are_counted_once(make_pipe: MakePipe) -> None:
    """Three lists with one key each give two pairs, in the first run and after a change of one list."""
    pipe = make_pipe("ABC", equality=[["eq", "a.x", "b.x"], ["eq", "b.x", "c.x"]])
    for name in "ABC":
        pipe.write_rows(name, build_table({"_updated": [1], "_id": [f"{name.lower()}1"], "x": [7], "y": [0]}))
    first = pipe.run_job()
    pipe.write_rows("A", build_table({"_updated": [2], "_id": ["a1"], "x": [7], "y": [1]}))

    second = pipe.run_job()

    for report in (first, second):
        rules = {rule["rule"]: rule["pairs"] for rule in report["details"]["rules"]}
        assert rules == {"a.x = b.x": 1, "b.x = c.x": 1}
    assert second["run_mode"] == "incremental"
    assert second["counts"]["rows_evaluated"] == 3
    assert second["rows"] == {"inserted": 0, "updated": 1, "deleted": 0, "unchanged": 0}
