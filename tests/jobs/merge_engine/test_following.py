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


def test_rows_of_one_commit_follow_each_other_as_in_the_file(stream: MakeStream) -> None:
    """Rows of one commit count in file order and commits in their order; the last row of a key wins.

    This holds for the first run and for later ones.
    """
    made = stream()
    made.write_batch({"k": [1, 2] * 50, "v": list(range(100))})
    made.write_batch({"k": [2], "v": [1000]})
    made.run_job()
    assert made.read_rows() == [(1, 98), (2, 1000)]
    made.write_batch({"k": [1, 2] * 50, "v": list(range(100, 200))})
    made.write_batch({"k": [2], "v": [-1]})

    made.run_job()

    assert made.read_rows() == [(1, 198), (2, -1)]


def test_a_partitioned_source_is_followed_too(stream: MakeStream) -> None:
    """A partitioned source is read; its partition columns come from the file paths, as in Spark."""
    made = stream(**SUM)
    made.write_batch({"k": [1, 2], "day": ["a b", "c=d"], "v": [1, 2]}, partition_by=["day"])
    made.run_job()
    made.write_batch({"k": [1, 2], "day": ["a b", "x"], "v": [10, 20]}, partition_by=["day"])

    report = made.run_job()

    assert report["counts"]["records"] == 2
    assert made.read_rows(order=["k"]) == [(1, "a b", 11), (2, "x", 22)]


def test_many_commits_are_read_at_once_in_their_order(stream: MakeStream) -> None:
    """Many commits are read in one plan of constant size, in their order; the last one wins."""
    made = stream()
    made.write_batch({"k": [0], "v": [0]})
    made.run_job()
    for number in range(1, 13):
        made.write_batch({"k": [0, number], "v": [number, number]})

    report = made.run_job()

    assert report["counts"]["records"] == 24
    assert made.read_rows() == [(0, 12), *((number, number) for number in range(1, 13))]


@pytest.mark.parametrize("asked_of", ["here", "spark"])
def test_partitions_have_the_values_that_the_log_says(
    stream: MakeStream, monkeypatch: pytest.MonkeyPatch, asked_of: str
) -> None:
    """Partition columns have the values of the log: of several types, with encoded characters, and NULL."""
    if asked_of == "spark":
        monkeypatch.setattr(source, "open_commit_log", open_commit_log_by_spark)
    made = stream()
    made.run_sql(
        "CREATE TABLE {source} (k INT, v INT, day DATE, at TIMESTAMP, word STRING) USING delta"
        " PARTITIONED BY (day, at, word)"
    )
    made.run_job()
    rows = "(1, 1, DATE'2020-01-01', TIMESTAMP'2020-01-01 01:02:03.4', 'a/b=ö %20'), (2, 2, NULL, NULL, NULL)"
    made.run_sql(f"INSERT INTO {{source}} VALUES {rows}")
    made.run_sql("INSERT INTO {source} (v, k, word) VALUES (3, 3, '[x]{{y}}*?')")

    made.run_job()

    assert made.read_rows() == made.read_rows("changes")
    assert [row[0] for row in made.read_rows()] == [1, 2, 3]


def test_a_source_may_be_partitioned_anew(stream: MakeStream) -> None:
    """Rows added before and after a change of the partitioning count once, with their values."""
    last = {"fields.day.aggregate-function": "last_non_null_value", "fields.day.ignore-retract": "true"}
    made = stream(merge_engine="aggregation", options={**SUM["options"], **last})
    feed = {"delta.enableChangeDataFeed": "true"}
    made.write_batch({"k": [1], "day": ["a"], "v": [1]}, configuration=feed)
    made.run_job()
    made.write_batch({"k": [1], "day": ["a"], "v": [10]})
    table = f"delta.`{made.folder / 'changes'}`"
    rows = made.spark.table(table).localCheckpoint()
    rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true").partitionBy("day").save(
        str(made.folder / "changes")
    )
    made.write_batch({"k": [1], "day": ["b"], "v": [100]})

    made.run_job()

    assert made.read_rows() == [(1, "b", 111)]


def test_columns_by_other_names_are_followed(stream: MakeStream) -> None:
    """A source with renamed columns is read as a table, commit by commit."""
    made = stream(**SUM)
    made.write_batch({"k": [1], "v": [1]})
    made.run_job()
    made.run_sql("ALTER TABLE {source} SET TBLPROPERTIES (delta.columnMapping.mode = 'name')")
    made.run_sql("INSERT INTO {source} VALUES (1, 10), (2, 2)")
    made.run_sql("INSERT INTO {source} VALUES (1, 100)")

    made.run_job()

    assert made.read_rows() == [(1, 111), (2, 2)]


@pytest.mark.parametrize("between", [False, True], ids=["at once", "one by one"])
def test_rows_that_come_back_are_added_once(stream: MakeStream, between: bool) -> None:
    """Rows that a RESTORE brings back count once, whether the delete was folded before or with it."""
    made = stream(**SUM)
    made.write_batch({"k": [1, 2], "v": [1, 2]}, configuration={"delta.enableChangeDataFeed": "true"})
    made.run_job()
    made.write_batch({"k": [1, 2], "v": [10, 20]})
    made.run_sql("DELETE FROM {source} WHERE v = 10")
    if between:
        made.run_job()
    made.run_sql("RESTORE {source} TO VERSION AS OF 1")

    made.run_job()

    assert made.read_rows() == [(1, 11), (2, 22)]


@pytest.mark.parametrize("asked_of", ["here", "spark"])
def test_a_log_that_was_cleaned_before_it_was_folded_is_refused(
    stream: MakeStream, monkeypatch: pytest.MonkeyPatch, asked_of: str
) -> None:
    """A log that was cleaned before it was folded is rejected: checkpoints do not keep the row order."""
    if asked_of == "spark":
        monkeypatch.setattr(source, "open_commit_log", open_commit_log_by_spark)
    made = stream(**SUM)
    made.write_batch({"k": [1], "v": [1]})
    made.run_job()
    made.write_batch({"k": [1], "v": [10]})
    made.write_batch({"k": [1], "v": [100]})
    DeltaTable(str(made.folder / "changes")).create_checkpoint()
    for commit in sorted((made.folder / "changes" / "_delta_log").glob("*.json"))[:-1]:
        commit.unlink()

    with pytest.raises(DataError, match=r"cannot be determined: it no longer has all files and commits"):
        made.run_job()

    assert made.read_version() == 0


@pytest.mark.parametrize("how", ["appends", "changes"])
def test_what_was_cleaned_away_before_it_was_folded_is_refused(stream: MakeStream, how: str) -> None:
    """Files that VACUUM deleted before they were folded raise an error; a full refresh folds the rest."""
    made = stream(**SUM)
    made.write_batch({"k": [1], "v": [1]}, configuration={"delta.enableChangeDataFeed": "true"})
    made.run_job()
    made.write_batch({"k": [1], "v": [10]})
    made.write_batch({"k": [1], "v": [100]})
    if how == "changes":
        made.run_sql("UPDATE {source} SET v = 11 WHERE v = 10")
    made.run_sql("OPTIMIZE {source}")
    table = DeltaTable(str(made.folder / "changes"))
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    for left in (made.folder / "changes").glob("_change_data/*"):
        left.unlink()

    with pytest.raises(
        DataError, match=r"cannot be determined: it no longer has all files.*full_refresh=True"
    ):
        made.run_job()

    assert made.read_version() == 0
    made.run_job(full_refresh=True)
    assert made.read_rows() == [(1, 111 if how == "appends" else 112)]


def test_order_by_says_what_came_first(stream: MakeStream) -> None:
    """With ``order_by`` a column of the source decides the order, whatever the position in the file."""
    made = stream(order_by=["at"])
    made.write_batch({"k": [1, 1, 1], "at": [3, 1, 2], "v": ["new", "old", "middle"]})

    made.run_job()

    assert made.read_rows() == [(1, 3, "new")]


def test_maintenance_of_the_source_is_no_change(stream: MakeStream) -> None:
    """Compaction of the source adds no rows, and appends before and after it count once."""
    made = make_sums(stream)
    made.run_sql("OPTIMIZE {source}")
    made.write_batch({"k": [2], "op": ["+I"], "v": [5]})

    report = made.run_job()

    assert made.read_rows() == [(1, 6), (2, 6), (3, 7)]
    assert report["counts"]["records"] == 1


def test_a_source_that_changes_rows_is_followed_by_its_feed(stream: MakeStream) -> None:
    """Updates and deletes of the source are retracted through its change data feed, next to appended rows."""
    made = stream(**SUM)
    made.write_batch(
        {"k": [1, 2, 3], "v": [10, 20, 30]}, configuration={"delta.enableChangeDataFeed": "true"}
    )
    made.run_job()
    made.run_sql("UPDATE {source} SET v = 11 WHERE k = 1")
    made.run_sql("DELETE FROM {source} WHERE k = 2")
    made.write_batch({"k": [3], "v": [5]})

    report = made.run_job()

    assert made.read_rows() == [(1, 11), (2, 0), (3, 35)]
    assert report["details"]["read"] == "changes"
    assert report["counts"]["records"] == 4


def test_a_source_that_changes_rows_without_a_feed_is_refused(stream: MakeStream) -> None:
    """A source with updates but without a change data feed is rejected; the target stays unchanged."""
    made = stream(**SUM)
    made.write_batch({"k": [1], "v": [10]})
    made.run_job()
    made.run_sql("UPDATE {source} SET v = 11 WHERE k = 1")

    with pytest.raises(DataError, match="changed rows in version 1 and has no change data feed"):
        made.run_job()

    assert made.read_version() == 0
    made.run_job(full_refresh=True)
    assert made.read_rows() == [(1, 11)]


def test_a_source_that_was_made_anew_is_not_taken_for_the_one_before(stream: MakeStream) -> None:
    """A recreated source raises an error, because its folded rows are unknown; a full refresh folds it."""
    made = stream(**SUM)
    made.write_batch({"k": [1], "v": [5]})
    made.run_job()
    shutil.rmtree(made.folder / "changes")
    made.write_batch({"k": [1], "v": [2]})

    with pytest.raises(
        DataError,
        match=r"cannot be read: the table at this location was recreated after it was.*full_refresh=True",
    ):
        made.run_job()

    assert made.read_rows() == [(1, 5)]
    made.run_job(full_refresh=True)
    assert made.read_rows() == [(1, 2)]
