"""Test what runs read, write and report: new records only, each once, with a change log."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import SparkRuntimeException

from airflow_merge_provider.core.errors import ConfigError, DataError
from airflow_merge_provider.jobs.merge_engine.reading import read_current_rows
from tests.jobs.merge_engine.conftest import MakeStream
from tests.jobs.merge_engine.stream import Stream

SUM = {"merge_engine": "aggregation", "options": {"fields.v.aggregate-function": "sum"}}
KINDS = {"row_kind_column": "op"}
DESCENDING = {"options": {"sequence.field": "s", "sequence.field.sort-order": "descending"}}


def make_sums(make_stream: MakeStream, **settings: Any) -> Stream:
    """Create a stream of sums with two folded batches, one per run."""
    stream = make_stream(**{**SUM, **KINDS, **settings})
    stream.write_batch({"k": [1, 2], "op": ["+I", "+I"], "v": [10, 1]})
    stream.run_job()
    stream.write_batch({"k": [1, 3], "op": ["-D", "+I"], "v": [4, 7]})
    stream.run_job()
    return stream


def test_runs_fold_only_what_is_new(make_stream: MakeStream) -> None:
    """Each batch counts once, and a run without new records commits nothing."""
    stream = make_sums(make_stream)

    report = stream.run_job()

    assert stream.read_rows() == [(1, 6), (2, 1), (3, 7)]
    assert report["changed"] is False
    assert report["target"]["version"] == stream.read_version() == 1


def test_a_run_that_is_tried_again_reports_its_commit(make_stream: MakeStream) -> None:
    """A retry after a commit reports that commit, so that a sum is not counted twice."""
    stream = make_stream(**SUM)
    stream.write_batch({"k": [1], "v": [5]})
    stream.run_job("first")
    stream.write_batch({"k": [1], "v": [2]})
    report = stream.run_job("second")

    again = stream.run_job("second")

    assert stream.read_rows() == [(1, 7)]
    assert again["changed"] is True
    assert again["counts"] == report["counts"]
    assert again["target"] == report["target"]


def test_the_report_counts_what_happened(make_stream: MakeStream) -> None:
    """The report counts inserted, updated, removed and unchanged rows.

    Orphan retracts and ignored retracts have separate counts.
    """
    stream = make_stream(**KINDS)
    stream.write_batch({"k": [1, 2, 3], "op": ["+I"] * 3, "v": ["a", "b", "c"]})
    stream.run_job()
    stream.write_batch(
        {"k": [1, 2, 3, 4, 9], "op": ["+U", "+I", "-D", "+I", "-D"], "v": ["A", "b", None, "d", None]}
    )

    report = stream.run_job()

    assert stream.read_rows() == [(1, "A"), (2, "b"), (4, "d")]
    assert report["rows"] == {"inserted": 1, "updated": 1, "deleted": 1, "unchanged": 1}
    counted = {name: count for name, count in report["counts"].items() if count}
    assert counted == {"records": 5, "keys": 5, "unchanged_keys": 1, "orphan_retracts": 1}
    assert stream.run_job(options={"ignore-delete": "true"})["changed"] is False


def test_records_that_change_nothing_are_not_read_again(make_stream: MakeStream) -> None:
    """A run whose records change no row commits its offset without a file, and is no change for others.

    The next run would lose its record, and count a removal again, if it read them again: the smallest
    sequence is the newest one.
    """
    stream = make_stream(**KINDS, **DESCENDING)
    stream.write_batch({"k": [1], "op": ["+I"], "s": [3], "v": ["a"]})
    stream.run_job()
    stream.run_sql("ALTER TABLE {target} SET TBLPROPERTIES ('delta.isolationLevel' = 'Serializable')")
    files = stream.list_files()
    stream.write_batch({"k": [1, 9], "op": ["+U", "-D"], "s": [3, 2], "v": ["a", None]})

    report = stream.run_job("second")

    assert (report["changed"], report["target"]["version"]) == (False, 2)
    assert (report["counts"]["unchanged_keys"], report["counts"]["orphan_retracts"]) == (1, 1)
    assert stream.list_files() == files
    assert stream.run_job("second")["changed"] is False
    noop = stream.run_job()
    assert (noop["run_mode"], stream.read_version()) == ("noop", 2)
    stream.write_batch({"k": [9], "op": ["+U"], "s": [4], "v": ["b"]})
    counts = stream.run_job()["counts"]
    assert (counts["records"], counts["orphan_retracts"]) == (1, 0)
    assert stream.read_rows() == [(1, 3, "a"), (9, 4, "b")]


@pytest.mark.long
def test_tables_may_be_wide(make_stream: MakeStream) -> None:
    """A table may have hundreds of columns, many of them strings."""
    stream = make_stream()
    wide = {f"c{number}": ["a", "b"] for number in range(400)}
    stream.write_batch({"k": [1, 2], **wide})
    stream.run_job()
    stream.write_batch({"k": [2], **{name: ["b"] for name in wide}, "c399": ["new"]})

    report = stream.run_job()

    assert report["rows"]["updated"] == 1
    assert [(row[0], row[399], row[400]) for row in stream.read_rows()] == [(1, "a", "a"), (2, "b", "new")]


def test_the_log_holds_the_net_changes_of_every_run(make_stream: MakeStream) -> None:
    """The change log has the kinds of changes, the images before and after, and the number of the run."""
    stream = make_sums(make_stream, changelog="log")
    stream.write_batch({"k": [3, 2], "op": ["+I", "+I"], "v": [0, 1]})

    stream.run_job()

    assert stream.read_rows("log", ("_run", "k", "v")) == [
        ("+I", 1, 10, 1), ("+I", 2, 1, 1),
        ("+U", 1, 6, 2), ("-U", 1, 10, 2), ("+I", 3, 7, 2),
        ("-U", 2, 1, 3), ("+U", 2, 2, 3),
    ]  # fmt: skip


def test_a_batch_is_folded_once_by_its_name(make_stream: MakeStream) -> None:
    """A whole batch with the name of a folded batch is not folded again."""
    stream = make_stream(**SUM, incremental=False)
    stream.write_batch({"k": [1], "v": [5]})
    stream.run_job(batch_id="monday")
    stream.write_batch({"k": [2], "v": [1]}, mode="overwrite")
    stream.run_job(batch_id="tuesday")

    report = stream.run_job(batch_id="monday")

    assert report["changed"] is False
    assert any("'monday' was already folded" in warning for warning in report["warnings"])
    assert stream.read_rows() == [(1, 5), (2, 1)]


def test_a_whole_batch_counts_once_in_a_run(make_stream: MakeStream) -> None:
    """A late try of a run finds that its batch was folded, even after another run."""
    stream = make_stream(**SUM, incremental=False)
    stream.write_batch({"k": [1], "v": [5]})
    monday = stream.run_job("monday")["target"]["version"]
    stream.run_job("tuesday")

    assert stream.run_job("monday")["target"]["version"] == monday

    assert stream.read_rows() == [(1, 10)]


def test_a_dry_run_counts_and_commits_nothing(make_stream: MakeStream) -> None:
    """A dry run does everything but the commit, even without a target."""
    stream = make_stream(**SUM, changelog="log")
    stream.write_batch({"k": [1], "v": [5]})

    report = stream.run_job(until="transform")

    assert (report["changed"], report["dry_run"]) == (False, True)
    assert report["rows"]["inserted"] == 1
    assert stream.read_version() is stream.read_version("log") is None


def test_the_plan_says_the_form_of_every_column(make_stream: MakeStream) -> None:
    """The plan has the form of every column: an aggregate if possible, else the fold with its reason."""
    options = {"fields.v.aggregate-function": "sum", "fields.t.aggregate-function": "listagg"}
    stream = make_stream(merge_engine="aggregation", options=options)
    stream.write_batch({"k": [1], "v": [5], "t": ["x"]})

    columns = stream.run_job(until="plan")["details"]["columns"]

    assert columns == {
        "k": "key",
        "v": "sum; aggregate",
        "t": "listagg; fold: listagg combines values one by one",
    }


def test_several_sources_feed_one_target(make_stream: MakeStream) -> None:
    """Several sources feed one target: each one supplies its own columns and has its own offset."""
    options = {"fields.g_1.sequence-group": "a", "fields.g_2.sequence-group": "b"}
    stream = make_stream(merge_engine="partial-update", options=options)
    stream.write_batch(
        {"k": [1], "a": [1], "g_1": [1], "b": pa.nulls(1, pa.int64()), "g_2": pa.nulls(1, pa.int64())}
    )
    stream.write_batch({"k": [1, 2], "b": [7, 8], "g_2": [1, 1]}, "others")
    stream.run_job()

    stream.run_job(source="others")

    assert stream.run_job()["changed"] is stream.run_job(source="others")["changed"] is False
    assert stream.read_rows() == [(1, 1, 1, 7, 1), (2, None, None, 8, 1)]
    with pytest.raises(DataError, match="also contains rows of other sources"):
        stream.run_job(full_refresh=True)


BAD = [
    ({"k": [1], "v": ["x"]}, "column 'v' is STRING in the source and BIGINT in the target"),
    ({"k": [1], "v": [1], "w": [1]}, "the target has no column 'w'"),
    ({"v": [1]}, "the source has no column 'k'"),
    ({"k": pa.array([None], pa.int64()), "v": [1]}, "NULL in column 'k' of primary_key"),
]


@pytest.mark.parametrize(("columns", "message"), BAD, ids=[message[:30] for _, message in BAD])
def test_a_batch_that_does_not_fit_is_refused(make_stream: MakeStream, columns: Any, message: str) -> None:
    """A batch that does not fit raises an error that names the column; the target stays unchanged."""
    stream = make_stream(**SUM)
    stream.write_batch({"k": [1], "v": [5]})
    stream.run_job()
    stream.write_batch(columns, "other")

    with pytest.raises(DataError, match=message) as refused:
        stream.run_job(source="other")

    assert not refused.value.retryable
    assert stream.read_version() == 0


def test_a_record_that_is_refused_stops_the_whole_batch(make_stream: MakeStream) -> None:
    """A rejected record stops the whole batch and nothing is written.

    The error has the problem, the number of keys with it and one of these keys.
    """
    stream = make_stream(merge_engine="first-row", **KINDS)
    stream.write_batch({"k": [1, 2, 3], "op": ["+I", "-D", "-D"], "v": [1, 2, 3]})

    with pytest.raises(DataError, match=r'first-row does not support -U.*key {"k":2}, and 1 more') as refused:
        stream.run_job()

    assert "ignore-delete" in refused.value.message
    assert stream.read_version() is None


def test_another_configuration_cannot_go_on(make_stream: MakeStream) -> None:
    """A change of an option that rows depend on is rejected; a full refresh accepts it."""
    stream = make_stream(**SUM)
    stream.write_batch({"k": [1, 1], "v": [5, 6]})
    stream.run_job()

    with pytest.raises(ConfigError, match="merge_engine: was 'aggregation' when the target was written"):
        stream.run_job(merge_engine="deduplicate", options={})
    stream.run_job(merge_engine="deduplicate", options={}, full_refresh=True)

    assert stream.read_rows() == [(1, 6)]
    assert stream.read_version() == 1


def test_names_with_any_characters_are_columns(make_stream: MakeStream) -> None:
    """Columns may have hyphens, quotes, dots and backticks in their names."""
    stream = make_stream(primary_key=["its-key"], merge_engine="partial-update")
    odd = {"its-key": [1], "it's": ["a"], "a.b": [None], "c`d": [1]}
    stream.write_batch({**odd, "a.b": pa.array([None], pa.int64())})
    stream.run_job()
    stream.write_batch({**odd, "it's": pa.array([None], pa.string()), "a.b": [2]})

    stream.run_job()

    assert stream.read_rows(order=["its-key"]) == [(1, "a", 2, 1)]


def test_a_new_target_is_partitioned(make_stream: MakeStream) -> None:
    """A new target is partitioned, and rows are in the files of their partition."""
    stream = make_stream(primary_key=["k", "day"], partition_by=["day"])
    stream.write_batch({"k": [1, 1], "day": ["mon", "tue"], "v": [1, 2]})

    stream.run_job()

    assert {path.name for path in (stream.folder / "state").glob("day=*")} == {"day=mon", "day=tue"}


STRICT = [
    ("tie", {"k": [1, 1], "s": [2, 2]}, {}, r"records with the same s .*key {\"k\":1}"),
    ("null-sequence", {"k": [1, 2], "s": [None, 1]}, {}, "NULL in column 's' of sequence.field"),
    ("orphan-retract", {"k": [1], "s": [1], "op": ["-D"]}, KINDS, "-U or -D for a key that has no row"),
]


@pytest.mark.parametrize(
    ("condition", "columns", "settings", "message"), STRICT, ids=[case[0] for case in STRICT]
)
def test_what_is_not_wanted_stops_the_run(
    make_stream: MakeStream, condition: str, columns: Any, settings: Any, message: str
) -> None:
    """Each switch rejects its case, which is accepted without it."""
    stream = make_stream(options={"sequence.field": "s"}, **settings)
    stream.write_batch(columns)

    with pytest.raises(DataError, match=message):
        stream.run_job(fail_on=[condition])

    assert stream.run_job(until="transform")["counts"]["records"] == len(columns["k"])


def test_what_is_not_folded_yet_can_be_read(make_stream: MakeStream) -> None:
    """The preview has the rows that the next run would leave, without a write.

    A bad record raises an error.
    """
    stream = make_sums(make_stream)
    folded = stream.read_rows()
    stream.write_batch({"k": [1, 4], "op": ["+I", "+I"], "v": [100, 9]})
    stream.write_batch({"k": [4, 1], "op": ["-D", "+I"], "v": [2, 1]})

    rows = sorted(map(tuple, read_current_rows(stream.spark, "state", str(stream.folder)).collect()))

    assert rows == [(1, 107), (2, 1), (3, 7), (4, 7)]
    assert stream.read_rows() == folded
    stream.run_job()
    assert stream.read_rows() == rows
    assert sorted(map(tuple, read_current_rows(stream.spark, "state", str(stream.folder)).collect())) == rows
    stream.write_batch({"k": pa.array([None], pa.int64()), "op": ["+I"], "v": [1]})
    with pytest.raises(SparkRuntimeException, match="NULL in column 'k' of primary_key"):
        read_current_rows(stream.spark, "state", str(stream.folder)).collect()
