"""What a run reads, writes and reports: only what is new, once, with the changes in a log of their own."""

from __future__ import annotations

import shutil
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.errors import SparkRuntimeException

from airflow_merge_provider.core.errors import ConfigError, DataError
from airflow_merge_provider.jobs.merge_engine import source
from airflow_merge_provider.jobs.merge_engine.commits import log_by_spark
from airflow_merge_provider.jobs.merge_engine.reading import current
from tests.jobs.merge_engine.conftest import MakeStream
from tests.jobs.merge_engine.stream import Stream

SUM = {"merge_engine": "aggregation", "options": {"fields.v.aggregate-function": "sum"}}
KINDS = {"row_kind_column": "op"}


def summed(stream: MakeStream, **settings: Any) -> Stream:
    """Make a stream of sums that has folded two batches, one run each."""
    made = stream(**{**SUM, **KINDS, **settings})
    made.write({"k": [1, 2], "op": ["+I", "+I"], "v": [10, 1]})
    made.run()
    made.write({"k": [1, 3], "op": ["-D", "+I"], "v": [4, 7]})
    made.run()
    return made


def test_runs_fold_only_what_is_new(stream: MakeStream) -> None:
    """Each batch counts once, and a run that finds nothing new commits nothing."""
    made = summed(stream)

    report = made.run()

    assert made.rows() == [(1, 6), (2, 1), (3, 7)]
    assert report["changed"] is False
    assert report["target"]["version"] == made.version() == 1


def test_a_run_that_is_tried_again_reports_its_commit(stream: MakeStream) -> None:
    """A sum is not counted twice when the first try has committed."""
    made = stream(**SUM)
    made.write({"k": [1], "v": [5]})
    made.run("first")
    made.write({"k": [1], "v": [2]})
    done = made.run("second")

    again = made.run("second")

    assert made.rows() == [(1, 7)]
    assert again["changed"] is True
    assert again["counts"] == done["counts"]
    assert again["target"] == done["target"]


def test_the_report_counts_what_happened(stream: MakeStream) -> None:
    """Inserted, updated, removed and unchanged rows, orphan and ignored retracts are told apart."""
    made = stream(**KINDS)
    made.write({"k": [1, 2, 3], "op": ["+I"] * 3, "v": ["a", "b", "c"]})
    made.run()
    made.write({"k": [1, 2, 3, 4, 9], "op": ["+U", "+I", "-D", "+I", "-D"], "v": ["A", "b", None, "d", None]})

    report = made.run()

    assert made.rows() == [(1, "A"), (2, "b"), (4, "d")]
    assert report["counts"] == {
        "records": 5, "keys": 5, "inserted": 1, "updated": 1, "removed": 1, "unchanged": 1,
        "orphan_retracts": 1, "ignored_retracts": 0, "lone_updates": 0,
    }  # fmt: skip
    assert made.run(options={"ignore-delete": "true"})["changed"] is False


def test_a_batch_that_changes_nothing_is_not_committed(stream: MakeStream) -> None:
    """The same rows once more leave the table at its version."""
    made = stream()
    made.write({"k": [1], "v": ["a"]})
    made.run()
    made.write({"k": [1], "v": ["a"]})

    report = made.run()

    assert report["changed"] is False
    assert report["counts"]["unchanged"] == 1
    assert made.version() == 0


def test_rows_of_one_commit_follow_each_other_as_in_the_file(stream: MakeStream) -> None:
    """The last row of a key wins, in the first run and in later ones; commits follow each other."""
    made = stream()
    made.write({"k": [1, 2] * 50, "v": list(range(100))})
    made.write({"k": [2], "v": [1000]})
    made.run()
    assert made.rows() == [(1, 98), (2, 1000)]
    made.write({"k": [1, 2] * 50, "v": list(range(100, 200))})
    made.write({"k": [2], "v": [-1]})

    made.run()

    assert made.rows() == [(1, 198), (2, -1)]


def test_a_partitioned_source_is_followed_too(stream: MakeStream) -> None:
    """Its columns stand in the paths of its files, which Spark reads."""
    made = stream(**SUM)
    made.write({"k": [1, 2], "day": ["a b", "c=d"], "v": [1, 2]}, partition_by=["day"])
    made.run()
    made.write({"k": [1, 2], "day": ["a b", "x"], "v": [10, 20]}, partition_by=["day"])

    report = made.run()

    assert report["counts"]["records"] == 2
    assert made.rows(order=["k"]) == [(1, "a b", 11), (2, "x", 22)]


def test_many_commits_are_read_at_once_in_their_order(stream: MakeStream) -> None:
    """The last of them counts, and the plan does not grow with them."""
    made = stream()
    made.write({"k": [0], "v": [0]})
    made.run()
    for number in range(1, 13):
        made.write({"k": [0, number], "v": [number, number]})

    report = made.run()

    assert report["counts"]["records"] == 24
    assert made.rows() == [(0, 12), *((number, number) for number in range(1, 13))]


@pytest.mark.parametrize("asked_of", ["here", "spark"])
def test_partitions_have_the_values_that_the_log_says(
    stream: MakeStream, monkeypatch: pytest.MonkeyPatch, asked_of: str
) -> None:
    """Of several types, with characters that paths encode, and NULL."""
    if asked_of == "spark":
        monkeypatch.setattr(source, "log_of", log_by_spark)
    made = stream()
    made.sql(
        "CREATE TABLE {source} (k INT, v INT, day DATE, at TIMESTAMP, word STRING) USING delta"
        " PARTITIONED BY (day, at, word)"
    )
    made.run()
    rows = "(1, 1, DATE'2020-01-01', TIMESTAMP'2020-01-01 01:02:03.4', 'a/b=ö %20'), (2, 2, NULL, NULL, NULL)"
    made.sql(f"INSERT INTO {{source}} VALUES {rows}")
    made.sql("INSERT INTO {source} (v, k, word) VALUES (3, 3, '[x]{{y}}*?')")

    made.run()

    assert made.rows() == made.rows("changes")
    assert [row[0] for row in made.rows()] == [1, 2, 3]


def test_columns_by_other_names_are_followed(stream: MakeStream) -> None:
    """A source whose columns were renamed is read as a table, commit by commit."""
    made = stream(**SUM)
    made.write({"k": [1], "v": [1]})
    made.run()
    made.sql("ALTER TABLE {source} SET TBLPROPERTIES (delta.columnMapping.mode = 'name')")
    made.sql("INSERT INTO {source} VALUES (1, 10), (2, 2)")
    made.sql("INSERT INTO {source} VALUES (1, 100)")

    made.run()

    assert made.rows() == [(1, 111), (2, 2)]


@pytest.mark.parametrize("between", [False, True], ids=["at once", "one by one"])
def test_rows_that_come_back_are_added_once(stream: MakeStream, between: bool) -> None:
    """A restored source counts as it stands, whether the delete was folded before or with it."""
    made = stream(**SUM)
    made.write({"k": [1, 2], "v": [1, 2]}, configuration={"delta.enableChangeDataFeed": "true"})
    made.run()
    made.write({"k": [1, 2], "v": [10, 20]})
    made.sql("DELETE FROM {source} WHERE v = 10")
    if between:
        made.run()
    made.sql("RESTORE {source} TO VERSION AS OF 1")

    made.run()

    assert made.rows() == [(1, 11), (2, 22)]


@pytest.mark.parametrize("asked_of", ["here", "spark"])
def test_a_log_that_was_cleaned_before_it_was_folded_is_refused(
    stream: MakeStream, monkeypatch: pytest.MonkeyPatch, asked_of: str
) -> None:
    """A checkpoint says what the table holds, not who came first."""
    if asked_of == "spark":
        monkeypatch.setattr(source, "log_of", log_by_spark)
    made = stream(**SUM)
    made.write({"k": [1], "v": [1]})
    made.run()
    made.write({"k": [1], "v": [10]})
    made.write({"k": [1], "v": [100]})
    DeltaTable(str(made.folder / "changes")).create_checkpoint()
    for commit in sorted((made.folder / "changes" / "_delta_log").glob("*.json"))[:-1]:
        commit.unlink()

    with pytest.raises(DataError, match=r"cannot be told: it has cleaned away files or commits"):
        made.run()

    assert made.version() == 0


@pytest.mark.parametrize("how", ["appends", "changes"])
def test_what_was_cleaned_away_before_it_was_folded_is_refused(stream: MakeStream, how: str) -> None:
    """VACUUM was faster than the runs: the refusal says so, and a full refresh folds what is there."""
    made = stream(**SUM)
    made.write({"k": [1], "v": [1]}, configuration={"delta.enableChangeDataFeed": "true"})
    made.run()
    made.write({"k": [1], "v": [10]})
    made.write({"k": [1], "v": [100]})
    if how == "changes":
        made.sql("UPDATE {source} SET v = 11 WHERE v = 10")
    made.sql("OPTIMIZE {source}")
    table = DeltaTable(str(made.folder / "changes"))
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    for left in (made.folder / "changes").glob("_change_data/*"):
        left.unlink()

    with pytest.raises(DataError, match=r"cannot be told: it has cleaned away files.*full_refresh=True"):
        made.run()

    assert made.version() == 0
    made.run(full_refresh=True)
    assert made.rows() == [(1, 111 if how == "appends" else 112)]


def test_order_by_says_what_came_first(stream: MakeStream) -> None:
    """A column of the source decides, whatever the place in the file."""
    made = stream(order_by=["at"])
    made.write({"k": [1, 1, 1], "at": [3, 1, 2], "v": ["new", "old", "middle"]})

    made.run()

    assert made.rows() == [(1, 3, "new")]


def test_maintenance_of_the_source_is_no_change(stream: MakeStream) -> None:
    """Compacting the source gives no rows, and appends around it count once."""
    made = summed(stream)
    made.sql("OPTIMIZE {source}")
    made.write({"k": [2], "op": ["+I"], "v": [5]})

    report = made.run()

    assert made.rows() == [(1, 6), (2, 6), (3, 7)]
    assert report["counts"]["records"] == 1


def test_a_source_that_changes_rows_is_followed_by_its_feed(stream: MakeStream) -> None:
    """Updates and deletes of the source take back what they change, next to rows that were appended."""
    made = stream(**SUM)
    made.write({"k": [1, 2, 3], "v": [10, 20, 30]}, configuration={"delta.enableChangeDataFeed": "true"})
    made.run()
    made.sql("UPDATE {source} SET v = 11 WHERE k = 1")
    made.sql("DELETE FROM {source} WHERE k = 2")
    made.write({"k": [3], "v": [5]})

    report = made.run()

    assert made.rows() == [(1, 11), (2, 0), (3, 35)]
    assert report["read"] == "changes"
    assert report["counts"]["records"] == 4


def test_a_source_that_changes_rows_without_a_feed_is_refused(stream: MakeStream) -> None:
    """What changed cannot be known; the target stays as it is."""
    made = stream(**SUM)
    made.write({"k": [1], "v": [10]})
    made.run()
    made.sql("UPDATE {source} SET v = 11 WHERE k = 1")

    with pytest.raises(DataError, match="changed rows in version 1 and keeps no change data feed"):
        made.run()

    assert made.version() == 0
    made.run(full_refresh=True)
    assert made.rows() == [(1, 11)]


def test_the_log_holds_the_net_changes_of_every_run(stream: MakeStream) -> None:
    """Kinds with the images before and after, and the number of the run."""
    made = summed(stream, changelog="log")
    made.write({"k": [3, 2], "op": ["+I", "+I"], "v": [0, 1]})

    made.run()

    assert made.rows("log", ("_run", "k", "v")) == [
        ("+I", 1, 10, 1), ("+I", 2, 1, 1),
        ("+U", 1, 6, 2), ("-U", 1, 10, 2), ("+I", 3, 7, 2),
        ("-U", 2, 1, 3), ("+U", 2, 2, 3),
    ]  # fmt: skip


def test_a_batch_is_folded_once_by_its_name(stream: MakeStream) -> None:
    """A whole batch that is given again under its name is not counted again."""
    made = stream(**SUM, incremental=False)
    made.write({"k": [1], "v": [5]})
    made.run(batch_id="monday")
    made.write({"k": [2], "v": [1]}, mode="overwrite")
    made.run(batch_id="tuesday")

    report = made.run(batch_id="monday")

    assert report["changed"] is False
    assert any("'monday' has been folded before" in said for said in report["warnings"])
    assert made.rows() == [(1, 5), (2, 1)]


def test_a_whole_batch_counts_once_in_a_run(stream: MakeStream) -> None:
    """A late try of a run finds that its batch was folded, also after another run."""
    made = stream(**SUM, incremental=False)
    made.write({"k": [1], "v": [5]})
    made.run("monday")
    made.run("tuesday")

    assert made.run("monday")["changed"] is False

    assert made.rows() == [(1, 10)]


def test_a_dry_run_counts_and_commits_nothing(stream: MakeStream) -> None:
    """Everything but the commit happens, also where there is no target yet."""
    made = stream(**SUM, changelog="log")
    made.write({"k": [1], "v": [5]})

    report = made.run(until="transform")

    assert (report["changed"], report["dry_run"]) == (False, True)
    assert report["counts"]["inserted"] == 1
    assert made.version() is made.version("log") is None


def test_the_plan_says_the_form_of_every_column(stream: MakeStream) -> None:
    """Aggregates where there is one, the fold with its reason elsewhere."""
    options = {"fields.v.aggregate-function": "sum", "fields.t.aggregate-function": "listagg"}
    made = stream(merge_engine="aggregation", options=options)
    made.write({"k": [1], "v": [5], "t": ["x"]})

    columns = made.run(until="plan")["columns"]

    assert columns == {
        "k": "key",
        "v": "sum; aggregate",
        "t": "listagg; fold: listagg is built up value by value",
    }


def test_several_sources_feed_one_target(stream: MakeStream) -> None:
    """Each stream gives its own columns and keeps its own place."""
    options = {"fields.g_1.sequence-group": "a", "fields.g_2.sequence-group": "b"}
    made = stream(merge_engine="partial-update", options=options)
    made.write({"k": [1], "a": [1], "g_1": [1], "b": pa.nulls(1, pa.int64()), "g_2": pa.nulls(1, pa.int64())})
    made.write({"k": [1, 2], "b": [7, 8], "g_2": [1, 1]}, "others")
    made.run()

    made.run(source="others")

    assert made.run()["changed"] is made.run(source="others")["changed"] is False
    assert made.rows() == [(1, 1, 1, 7, 1), (2, None, None, 8, 1)]
    with pytest.raises(DataError, match="holds rows of other sources, too"):
        made.run(full_refresh=True)


BAD = [
    ({"k": [1], "v": ["x"]}, "column 'v' is STRING in the source and BIGINT in the target"),
    ({"k": [1], "v": [1], "w": [1]}, "the target has no column 'w'"),
    ({"v": [1]}, "the source has no column 'k'"),
    ({"k": pa.array([None], pa.int64()), "v": [1]}, "null in column 'k' of primary_key"),
]


@pytest.mark.parametrize(("columns", "words"), BAD, ids=[words[:30] for _, words in BAD])
def test_a_batch_that_does_not_fit_is_refused(stream: MakeStream, columns: Any, words: str) -> None:
    """The message names the column, and the target stays as it is."""
    made = stream(**SUM)
    made.write({"k": [1], "v": [5]})
    made.run()
    made.write(columns, "other")

    with pytest.raises(DataError, match=words) as refused:
        made.run(source="other")

    assert not refused.value.retryable
    assert made.version() == 0


def test_a_record_that_is_refused_stops_the_whole_batch(stream: MakeStream) -> None:
    """The problem, how many keys have it and one of them are named; nothing is written."""
    made = stream(merge_engine="first-row", **KINDS)
    made.write({"k": [1, 2, 3], "op": ["+I", "-D", "-D"], "v": [1, 2, 3]})

    with pytest.raises(DataError, match=r'first-row takes no -U.*key {"k":2}, and 1 more keys') as refused:
        made.run()

    assert "ignore-delete" in refused.value.message
    assert made.version() is None


def test_another_configuration_cannot_go_on(stream: MakeStream) -> None:
    """What the rows depend on stays; a full refresh starts anew."""
    made = stream(**SUM)
    made.write({"k": [1, 1], "v": [5, 6]})
    made.run()

    with pytest.raises(ConfigError, match="merge_engine: was 'aggregation' when the target was written"):
        made.run(merge_engine="deduplicate", options={})
    made.run(merge_engine="deduplicate", options={}, full_refresh=True)

    assert made.rows() == [(1, 6)]
    assert made.version() == 1


def test_names_with_any_characters_are_columns(stream: MakeStream) -> None:
    """Hyphens, quotes, dots and backticks in names go through."""
    made = stream(primary_key=["its-key"], merge_engine="partial-update")
    odd = {"its-key": [1], "it's": ["a"], "a.b": [None], "c`d": [1]}
    made.write({**odd, "a.b": pa.array([None], pa.int64())})
    made.run()
    made.write({**odd, "it's": pa.array([None], pa.string()), "a.b": [2]})

    made.run()

    assert made.rows(order=["`its-key`"]) == [(1, "a", 2, 1)]


def test_a_new_target_is_partitioned(stream: MakeStream) -> None:
    """Rows stay in their partition's files."""
    made = stream(primary_key=["k", "day"], partition_by=["day"])
    made.write({"k": [1, 1], "day": ["mon", "tue"], "v": [1, 2]})

    made.run()

    assert {path.name for path in (made.folder / "state").glob("day=*")} == {"day=mon", "day=tue"}


STRICT = [
    ("tie", {"k": [1, 1], "s": [2, 2]}, {}, r"records with the same s .*key {\"k\":1}"),
    ("null-sequence", {"k": [1, 2], "s": [None, 1]}, {}, "null in column 's' of sequence.field"),
    ("orphan-retract", {"k": [1], "s": [1], "op": ["-D"]}, KINDS, "-U or -D for a key that has no row"),
]


@pytest.mark.parametrize(("word", "columns", "settings", "words"), STRICT, ids=[each[0] for each in STRICT])
def test_what_is_not_wanted_stops_the_run(
    stream: MakeStream, word: str, columns: Any, settings: Any, words: str
) -> None:
    """Each switch refuses its case, which is taken without it."""
    made = stream(options={"sequence.field": "s"}, **settings)
    made.write(columns)

    with pytest.raises(DataError, match=words):
        made.run(fail_on=[word])

    assert made.run(until="transform")["counts"]["records"] == len(columns["k"])


def test_what_is_not_folded_yet_can_be_read(stream: MakeStream) -> None:
    """The rows as the next run would leave them, while nothing is written; a bad record fails the reader."""
    made = summed(stream)
    folded = made.rows()
    made.write({"k": [1, 4], "op": ["+I", "+I"], "v": [100, 9]})
    made.write({"k": [4, 1], "op": ["-D", "+I"], "v": [2, 1]})

    rows = sorted(map(tuple, current(made.spark, "state", str(made.folder)).collect()))

    assert rows == [(1, 107), (2, 1), (3, 7), (4, 7)]
    assert made.rows() == folded
    made.run()
    assert made.rows() == rows
    assert sorted(map(tuple, current(made.spark, "state", str(made.folder)).collect())) == rows
    made.write({"k": pa.array([None], pa.int64()), "op": ["+I"], "v": [1]})
    with pytest.raises(SparkRuntimeException, match="null in column 'k' of primary_key"):
        current(made.spark, "state", str(made.folder)).collect()


def test_a_source_that_was_made_anew_is_not_taken_for_the_one_before(stream: MakeStream) -> None:
    """What of it was folded cannot be told: the run says so, and a full refresh folds it."""
    made = stream(**SUM)
    made.write({"k": [1], "v": [5]})
    made.run()
    shutil.rmtree(made.folder / "changes")
    made.write({"k": [1], "v": [2]})

    with pytest.raises(
        DataError, match=r"cannot be told: it was made anew since it was folded.*full_refresh=True"
    ):
        made.run()

    assert made.rows() == [(1, 5)]
    made.run(full_refresh=True)
    assert made.rows() == [(1, 2)]
