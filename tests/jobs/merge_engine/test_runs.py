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


def make_sums(stream: MakeStream, **settings: Any) -> Stream:
    """Create a stream of sums with two folded batches, one per run."""
    made = stream(**{**SUM, **KINDS, **settings})
    made.write_batch({"k": [1, 2], "op": ["+I", "+I"], "v": [10, 1]})
    made.run_job()
    made.write_batch({"k": [1, 3], "op": ["-D", "+I"], "v": [4, 7]})
    made.run_job()
    return made


def test_runs_fold_only_what_is_new(stream: MakeStream) -> None:
    """Each batch counts once, and a run without new records commits nothing."""
    made = make_sums(stream)

    report = made.run_job()

    assert made.read_rows() == [(1, 6), (2, 1), (3, 7)]
    assert report["changed"] is False
    assert report["target"]["version"] == made.read_version() == 1


def test_a_run_that_is_tried_again_reports_its_commit(stream: MakeStream) -> None:
    """A retry after a commit reports that commit, so that a sum is not counted twice."""
    made = stream(**SUM)
    made.write_batch({"k": [1], "v": [5]})
    made.run_job("first")
    made.write_batch({"k": [1], "v": [2]})
    done = made.run_job("second")

    again = made.run_job("second")

    assert made.read_rows() == [(1, 7)]
    assert again["changed"] is True
    assert again["counts"] == done["counts"]
    assert again["target"] == done["target"]


def test_the_report_counts_what_happened(stream: MakeStream) -> None:
    """The report counts inserted, updated, removed and unchanged rows.

    Orphan retracts and ignored retracts have separate counts.
    """
    made = stream(**KINDS)
    made.write_batch({"k": [1, 2, 3], "op": ["+I"] * 3, "v": ["a", "b", "c"]})
    made.run_job()
    made.write_batch(
        {"k": [1, 2, 3, 4, 9], "op": ["+U", "+I", "-D", "+I", "-D"], "v": ["A", "b", None, "d", None]}
    )

    report = made.run_job()

    assert made.read_rows() == [(1, "A"), (2, "b"), (4, "d")]
    assert report["rows"] == {"inserted": 1, "updated": 1, "deleted": 1, "unchanged": 1}
    counted = {name: count for name, count in report["counts"].items() if count}
    assert counted == {"records": 5, "keys": 5, "unchanged_keys": 1, "orphan_retracts": 1}
    assert made.run_job(options={"ignore-delete": "true"})["changed"] is False


def test_a_batch_that_changes_nothing_is_not_committed(stream: MakeStream) -> None:
    """A batch that repeats the same rows leaves the table at its version."""
    made = stream()
    made.write_batch({"k": [1], "v": ["a"]})
    made.run_job()
    made.write_batch({"k": [1], "v": ["a"]})

    report = made.run_job()

    assert report["changed"] is False
    assert report["counts"]["unchanged_keys"] == 1
    assert made.read_version() == 0


def test_tables_may_be_wide(stream: MakeStream) -> None:
    """A table may have hundreds of columns, many of them strings."""
    made = stream()
    wide = {f"c{place}": ["a", "b"] for place in range(400)}
    made.write_batch({"k": [1, 2], **wide})
    made.run_job()
    made.write_batch({"k": [2], **{name: ["b"] for name in wide}, "c399": ["new"]})

    report = made.run_job()

    assert report["rows"]["updated"] == 1
    assert [(row[0], row[399], row[400]) for row in made.read_rows()] == [(1, "a", "a"), (2, "b", "new")]


def test_the_log_holds_the_net_changes_of_every_run(stream: MakeStream) -> None:
    """The change log has the kinds of changes, the images before and after, and the number of the run."""
    made = make_sums(stream, changelog="log")
    made.write_batch({"k": [3, 2], "op": ["+I", "+I"], "v": [0, 1]})

    made.run_job()

    assert made.read_rows("log", ("_run", "k", "v")) == [
        ("+I", 1, 10, 1), ("+I", 2, 1, 1),
        ("+U", 1, 6, 2), ("-U", 1, 10, 2), ("+I", 3, 7, 2),
        ("-U", 2, 1, 3), ("+U", 2, 2, 3),
    ]  # fmt: skip


def test_a_batch_is_folded_once_by_its_name(stream: MakeStream) -> None:
    """A whole batch with the name of a folded batch is not folded again."""
    made = stream(**SUM, incremental=False)
    made.write_batch({"k": [1], "v": [5]})
    made.run_job(batch_id="monday")
    made.write_batch({"k": [2], "v": [1]}, mode="overwrite")
    made.run_job(batch_id="tuesday")

    report = made.run_job(batch_id="monday")

    assert report["changed"] is False
    assert any("'monday' was already folded" in said for said in report["warnings"])
    assert made.read_rows() == [(1, 5), (2, 1)]


def test_a_whole_batch_counts_once_in_a_run(stream: MakeStream) -> None:
    """A late try of a run finds that its batch was folded, even after another run."""
    made = stream(**SUM, incremental=False)
    made.write_batch({"k": [1], "v": [5]})
    monday = made.run_job("monday")["target"]["version"]
    made.run_job("tuesday")

    assert made.run_job("monday")["target"]["version"] == monday

    assert made.read_rows() == [(1, 10)]


def test_a_dry_run_counts_and_commits_nothing(stream: MakeStream) -> None:
    """A dry run does everything but the commit, even without a target."""
    made = stream(**SUM, changelog="log")
    made.write_batch({"k": [1], "v": [5]})

    report = made.run_job(until="transform")

    assert (report["changed"], report["dry_run"]) == (False, True)
    assert report["rows"]["inserted"] == 1
    assert made.read_version() is made.read_version("log") is None


def test_the_plan_says_the_form_of_every_column(stream: MakeStream) -> None:
    """The plan has the form of every column: an aggregate if possible, else the fold with its reason."""
    options = {"fields.v.aggregate-function": "sum", "fields.t.aggregate-function": "listagg"}
    made = stream(merge_engine="aggregation", options=options)
    made.write_batch({"k": [1], "v": [5], "t": ["x"]})

    columns = made.run_job(until="plan")["details"]["columns"]

    assert columns == {
        "k": "key",
        "v": "sum; aggregate",
        "t": "listagg; fold: listagg combines values one by one",
    }


def test_several_sources_feed_one_target(stream: MakeStream) -> None:
    """Several sources feed one target: each one supplies its own columns and has its own offset."""
    options = {"fields.g_1.sequence-group": "a", "fields.g_2.sequence-group": "b"}
    made = stream(merge_engine="partial-update", options=options)
    made.write_batch(
        {"k": [1], "a": [1], "g_1": [1], "b": pa.nulls(1, pa.int64()), "g_2": pa.nulls(1, pa.int64())}
    )
    made.write_batch({"k": [1, 2], "b": [7, 8], "g_2": [1, 1]}, "others")
    made.run_job()

    made.run_job(source="others")

    assert made.run_job()["changed"] is made.run_job(source="others")["changed"] is False
    assert made.read_rows() == [(1, 1, 1, 7, 1), (2, None, None, 8, 1)]
    with pytest.raises(DataError, match="also contains rows of other sources"):
        made.run_job(full_refresh=True)


BAD = [
    ({"k": [1], "v": ["x"]}, "column 'v' is STRING in the source and BIGINT in the target"),
    ({"k": [1], "v": [1], "w": [1]}, "the target has no column 'w'"),
    ({"v": [1]}, "the source has no column 'k'"),
    ({"k": pa.array([None], pa.int64()), "v": [1]}, "NULL in column 'k' of primary_key"),
]


@pytest.mark.parametrize(("columns", "words"), BAD, ids=[words[:30] for _, words in BAD])
def test_a_batch_that_does_not_fit_is_refused(stream: MakeStream, columns: Any, words: str) -> None:
    """A batch that does not fit raises an error that names the column; the target stays unchanged."""
    made = stream(**SUM)
    made.write_batch({"k": [1], "v": [5]})
    made.run_job()
    made.write_batch(columns, "other")

    with pytest.raises(DataError, match=words) as refused:
        made.run_job(source="other")

    assert not refused.value.retryable
    assert made.read_version() == 0


def test_a_record_that_is_refused_stops_the_whole_batch(stream: MakeStream) -> None:
    """A rejected record stops the whole batch and nothing is written.

    The error has the problem, the number of keys with it and one of these keys.
    """
    made = stream(merge_engine="first-row", **KINDS)
    made.write_batch({"k": [1, 2, 3], "op": ["+I", "-D", "-D"], "v": [1, 2, 3]})

    with pytest.raises(DataError, match=r'first-row does not support -U.*key {"k":2}, and 1 more') as refused:
        made.run_job()

    assert "ignore-delete" in refused.value.message
    assert made.read_version() is None


def test_another_configuration_cannot_go_on(stream: MakeStream) -> None:
    """A change of an option that rows depend on is rejected; a full refresh accepts it."""
    made = stream(**SUM)
    made.write_batch({"k": [1, 1], "v": [5, 6]})
    made.run_job()

    with pytest.raises(ConfigError, match="merge_engine: was 'aggregation' when the target was written"):
        made.run_job(merge_engine="deduplicate", options={})
    made.run_job(merge_engine="deduplicate", options={}, full_refresh=True)

    assert made.read_rows() == [(1, 6)]
    assert made.read_version() == 1


def test_names_with_any_characters_are_columns(stream: MakeStream) -> None:
    """Columns may have hyphens, quotes, dots and backticks in their names."""
    made = stream(primary_key=["its-key"], merge_engine="partial-update")
    odd = {"its-key": [1], "it's": ["a"], "a.b": [None], "c`d": [1]}
    made.write_batch({**odd, "a.b": pa.array([None], pa.int64())})
    made.run_job()
    made.write_batch({**odd, "it's": pa.array([None], pa.string()), "a.b": [2]})

    made.run_job()

    assert made.read_rows(order=["`its-key`"]) == [(1, "a", 2, 1)]


def test_a_new_target_is_partitioned(stream: MakeStream) -> None:
    """A new target is partitioned, and rows are in the files of their partition."""
    made = stream(primary_key=["k", "day"], partition_by=["day"])
    made.write_batch({"k": [1, 1], "day": ["mon", "tue"], "v": [1, 2]})

    made.run_job()

    assert {path.name for path in (made.folder / "state").glob("day=*")} == {"day=mon", "day=tue"}


STRICT = [
    ("tie", {"k": [1, 1], "s": [2, 2]}, {}, r"records with the same s .*key {\"k\":1}"),
    ("null-sequence", {"k": [1, 2], "s": [None, 1]}, {}, "NULL in column 's' of sequence.field"),
    ("orphan-retract", {"k": [1], "s": [1], "op": ["-D"]}, KINDS, "-U or -D for a key that has no row"),
]


@pytest.mark.parametrize(("word", "columns", "settings", "words"), STRICT, ids=[each[0] for each in STRICT])
def test_what_is_not_wanted_stops_the_run(
    stream: MakeStream, word: str, columns: Any, settings: Any, words: str
) -> None:
    """Each switch rejects its case, which is accepted without it."""
    made = stream(options={"sequence.field": "s"}, **settings)
    made.write_batch(columns)

    with pytest.raises(DataError, match=words):
        made.run_job(fail_on=[word])

    assert made.run_job(until="transform")["counts"]["records"] == len(columns["k"])


def test_what_is_not_folded_yet_can_be_read(stream: MakeStream) -> None:
    """The preview has the rows that the next run would leave, without a write.

    A bad record raises an error.
    """
    made = make_sums(stream)
    folded = made.read_rows()
    made.write_batch({"k": [1, 4], "op": ["+I", "+I"], "v": [100, 9]})
    made.write_batch({"k": [4, 1], "op": ["-D", "+I"], "v": [2, 1]})

    rows = sorted(map(tuple, read_current_rows(made.spark, "state", str(made.folder)).collect()))

    assert rows == [(1, 107), (2, 1), (3, 7), (4, 7)]
    assert made.read_rows() == folded
    made.run_job()
    assert made.read_rows() == rows
    assert sorted(map(tuple, read_current_rows(made.spark, "state", str(made.folder)).collect())) == rows
    made.write_batch({"k": pa.array([None], pa.int64()), "op": ["+I"], "v": [1]})
    with pytest.raises(SparkRuntimeException, match="NULL in column 'k' of primary_key"):
        read_current_rows(made.spark, "state", str(made.folder)).collect()
