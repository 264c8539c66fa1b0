"""Test incremental reads of a source by its commits, whoever made them and however many there are."""

from __future__ import annotations

import shutil

import pytest
from deltalake import DeltaTable

from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.jobs.delta.commit_log import open_commit_log_by_spark
from airflow_merge_provider.jobs.merge_engine import source
from tests.jobs.merge_engine.conftest import MakeStream
from tests.jobs.merge_engine.test_runs import SUM, make_sums
from tests.long import all_long_but


def test_rows_of_one_commit_follow_each_other_as_in_the_file(make_stream: MakeStream) -> None:
    """Rows of one commit count in file order and commits in their order; the last row of a key wins.

    This holds for the first run and for later ones.
    """
    stream = make_stream()
    stream.write_batch({"k": [1, 2] * 50, "v": list(range(100))})
    stream.write_batch({"k": [2], "v": [1000]})
    stream.run_job()
    assert stream.read_rows() == [(1, 98), (2, 1000)]
    stream.write_batch({"k": [1, 2] * 50, "v": list(range(100, 200))})
    stream.write_batch({"k": [2], "v": [-1]})

    stream.run_job()

    assert stream.read_rows() == [(1, 198), (2, -1)]


def test_a_partitioned_source_is_followed_too(make_stream: MakeStream) -> None:
    """A partitioned source is read; its partition columns come from the file paths, as in Spark."""
    stream = make_stream(**SUM)
    stream.write_batch({"k": [1, 2], "day": ["a b", "c=d"], "v": [1, 2]}, partition_by=["day"])
    stream.run_job()
    stream.write_batch({"k": [1, 2], "day": ["a b", "x"], "v": [10, 20]}, partition_by=["day"])

    report = stream.run_job()

    assert report["counts"]["records"] == 2
    assert stream.read_rows(order=["k"]) == [(1, "a b", 11), (2, "x", 22)]


@pytest.mark.parametrize("is_mapped", all_long_but([False, True], False))
def test_files_of_one_name_are_told_apart(make_stream: MakeStream, *, is_mapped: bool) -> None:
    """Files with one name in several partitions count once each, the folded ones not again."""
    stream = make_stream(**SUM)
    stream.write_batch({"k": [1], "day": ["a+ b"], "v": [1]}, partition_by=["day"])
    if is_mapped:
        stream.run_sql("ALTER TABLE {source} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    stream.add_files({"day=2024-01-01": {"k": [1], "v": [2]}})
    stream.run_job()
    stream.add_files({"day=2024-01-02": {"k": [1], "v": [10]}, "day=2024-01-03": {"k": [1], "v": [100]}})

    report = stream.run_job()

    assert report["counts"]["records"] == 2
    assert stream.read_rows() == [(1, "2024-01-03", 113)]


def test_many_commits_are_read_at_once_in_their_order(make_stream: MakeStream) -> None:
    """Many commits are read in one plan of constant size, in their order; the last one wins."""
    stream = make_stream()
    stream.write_batch({"k": [0], "v": [0]})
    stream.run_job()
    for number in range(1, 13):
        stream.write_batch({"k": [0, number], "v": [number, number]})

    report = stream.run_job()

    assert report["counts"]["records"] == 24
    assert stream.read_rows() == [(0, 12), *((number, number) for number in range(1, 13))]


@pytest.mark.parametrize("log_reader", ["here", "spark"])
def test_partitions_have_the_values_that_the_log_says(
    make_stream: MakeStream, monkeypatch: pytest.MonkeyPatch, log_reader: str
) -> None:
    """Partition columns have the values of the log: of several types, with encoded characters, and NULL."""
    if log_reader == "spark":
        monkeypatch.setattr(source, "open_commit_log", open_commit_log_by_spark)
    stream = make_stream()
    stream.run_sql(
        "CREATE TABLE {source} (k INT, v INT, day DATE, at TIMESTAMP, word STRING) USING delta"
        " PARTITIONED BY (day, at, word)"
    )
    stream.run_job()
    rows = "(1, 1, DATE'2020-01-01', TIMESTAMP'2020-01-01 01:02:03.4', 'a/b=ö %20'), (2, 2, NULL, NULL, NULL)"
    stream.run_sql(f"INSERT INTO {{source}} VALUES {rows}")
    stream.run_sql("INSERT INTO {source} (v, k, word) VALUES (3, 3, '[x]{{y}}*?')")

    stream.run_job()

    assert stream.read_rows() == stream.read_rows("changes")
    assert [row[0] for row in stream.read_rows()] == [1, 2, 3]


@pytest.mark.long
def test_a_source_may_be_partitioned_anew(make_stream: MakeStream) -> None:
    """Rows added before and after a change of the partitioning count once, with their values."""
    last = {"fields.day.aggregate-function": "last_non_null_value", "fields.day.ignore-retract": "true"}
    stream = make_stream(merge_engine="aggregation", options={**SUM["options"], **last})
    feed = {"delta.enableChangeDataFeed": "true"}
    stream.write_batch({"k": [1], "day": ["a"], "v": [1]}, configuration=feed)
    stream.run_job()
    stream.write_batch({"k": [1], "day": ["a"], "v": [10]})
    table = f"delta.`{stream.folder / 'changes'}`"
    rows = stream.spark.table(table).localCheckpoint()
    rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true").partitionBy("day").save(
        str(stream.folder / "changes")
    )
    stream.write_batch({"k": [1], "day": ["b"], "v": [100]})

    stream.run_job()

    assert stream.read_rows() == [(1, "b", 111)]


def test_columns_by_other_names_are_followed(make_stream: MakeStream) -> None:
    """A source with renamed columns is read as a table, commit by commit."""
    stream = make_stream(**SUM)
    stream.write_batch({"k": [1], "v": [1]})
    stream.run_job()
    stream.run_sql("ALTER TABLE {source} SET TBLPROPERTIES (delta.columnMapping.mode = 'name')")
    stream.run_sql("INSERT INTO {source} VALUES (1, 10), (2, 2)")
    stream.run_sql("INSERT INTO {source} VALUES (1, 100)")

    stream.run_job()

    assert stream.read_rows() == [(1, 111), (2, 2)]


@pytest.mark.parametrize("between", all_long_but([False, True], True), ids=["at once", "one by one"])
def test_rows_that_come_back_are_added_once(make_stream: MakeStream, between: bool) -> None:
    """Rows that a RESTORE brings back count once, whether the delete was folded before or with it."""
    stream = make_stream(**SUM)
    stream.write_batch({"k": [1, 2], "v": [1, 2]}, configuration={"delta.enableChangeDataFeed": "true"})
    stream.run_job()
    stream.write_batch({"k": [1, 2], "v": [10, 20]})
    stream.run_sql("DELETE FROM {source} WHERE v = 10")
    if between:
        stream.run_job()
    stream.run_sql("RESTORE {source} TO VERSION AS OF 1")

    stream.run_job()

    assert stream.read_rows() == [(1, 11), (2, 22)]


@pytest.mark.parametrize("log_reader", ["here", "spark"])
def test_a_log_that_was_cleaned_before_it_was_folded_is_refused(
    make_stream: MakeStream, monkeypatch: pytest.MonkeyPatch, log_reader: str
) -> None:
    """A log that was cleaned before it was folded is rejected: checkpoints do not keep the row order."""
    if log_reader == "spark":
        monkeypatch.setattr(source, "open_commit_log", open_commit_log_by_spark)
    stream = make_stream(**SUM)
    stream.write_batch({"k": [1], "v": [1]})
    stream.run_job()
    stream.write_batch({"k": [1], "v": [10]})
    stream.write_batch({"k": [1], "v": [100]})
    DeltaTable(str(stream.folder / "changes")).create_checkpoint()
    for commit in sorted((stream.folder / "changes" / "_delta_log").glob("*.json"))[:-1]:
        commit.unlink()

    with pytest.raises(DataError, match=r"cannot be determined: it no longer has all files and commits"):
        stream.run_job()

    assert stream.read_version() == 0


@pytest.mark.parametrize("how", [pytest.param("appends", marks=pytest.mark.long), "changes"])
def test_what_was_cleaned_away_before_it_was_folded_is_refused(make_stream: MakeStream, how: str) -> None:
    """Files that VACUUM deleted before they were folded raise an error; a full refresh folds the rest."""
    stream = make_stream(**SUM)
    stream.write_batch({"k": [1], "v": [1]}, configuration={"delta.enableChangeDataFeed": "true"})
    stream.run_job()
    stream.write_batch({"k": [1], "v": [10]})
    stream.write_batch({"k": [1], "v": [100]})
    if how == "changes":
        stream.run_sql("UPDATE {source} SET v = 11 WHERE v = 10")
    stream.run_sql("OPTIMIZE {source}")
    table = DeltaTable(str(stream.folder / "changes"))
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    for file in (stream.folder / "changes").glob("_change_data/*"):
        file.unlink()

    with pytest.raises(
        DataError, match=r"cannot be determined: it no longer has all files.*full_refresh=True"
    ):
        stream.run_job()

    assert stream.read_version() == 0
    stream.run_job(full_refresh=True)
    assert stream.read_rows() == [(1, 111 if how == "appends" else 112)]


def test_order_by_says_what_came_first(make_stream: MakeStream) -> None:
    """With ``order_by`` a column of the source decides the order, whatever the position in the file."""
    stream = make_stream(order_by=["at"])
    stream.write_batch({"k": [1, 1, 1], "at": [3, 1, 2], "v": ["new", "old", "middle"]})

    stream.run_job()

    assert stream.read_rows() == [(1, 3, "new")]


def test_maintenance_of_the_source_is_no_change(make_stream: MakeStream) -> None:
    """Compaction of the source adds no rows, and appends before and after it count once."""
    stream = make_sums(make_stream)
    stream.run_sql("OPTIMIZE {source}")
    stream.write_batch({"k": [2], "op": ["+I"], "v": [5]})

    report = stream.run_job()

    assert stream.read_rows() == [(1, 6), (2, 6), (3, 7)]
    assert report["counts"]["records"] == 1


def test_a_source_that_changes_rows_is_followed_by_its_feed(make_stream: MakeStream) -> None:
    """Updates and deletes of the source are retracted through its change data feed, next to appended rows."""
    stream = make_stream(**SUM)
    stream.write_batch(
        {"k": [1, 2, 3], "v": [10, 20, 30]}, configuration={"delta.enableChangeDataFeed": "true"}
    )
    stream.run_job()
    stream.run_sql("UPDATE {source} SET v = 11 WHERE k = 1")
    stream.run_sql("DELETE FROM {source} WHERE k = 2")
    stream.write_batch({"k": [3], "v": [5]})

    report = stream.run_job()

    assert stream.read_rows() == [(1, 11), (2, 0), (3, 35)]
    assert report["details"]["read"] == "changes"
    assert report["counts"]["records"] == 4


def test_a_source_that_changes_rows_without_a_feed_is_refused(make_stream: MakeStream) -> None:
    """A source with updates but without a change data feed is rejected; the target stays unchanged."""
    stream = make_stream(**SUM)
    stream.write_batch({"k": [1], "v": [10]})
    stream.run_job()
    stream.run_sql("UPDATE {source} SET v = 11 WHERE k = 1")

    with pytest.raises(DataError, match="changed rows in version 1 and has no change data feed"):
        stream.run_job()

    assert stream.read_version() == 0
    stream.run_job(full_refresh=True)
    assert stream.read_rows() == [(1, 11)]


def test_a_source_that_was_made_anew_is_not_taken_for_the_one_before(make_stream: MakeStream) -> None:
    """A recreated source raises an error, because its folded rows are unknown; a full refresh folds it."""
    stream = make_stream(**SUM)
    stream.write_batch({"k": [1], "v": [5]})
    stream.run_job()
    shutil.rmtree(stream.folder / "changes")
    stream.write_batch({"k": [1], "v": [2]})

    with pytest.raises(
        DataError,
        match=r"cannot be read: the table at this location was recreated after it was.*full_refresh=True",
    ):
        stream.run_job()

    assert stream.read_rows() == [(1, 5)]
    stream.run_job(full_refresh=True)
    assert stream.read_rows() == [(1, 2)]
