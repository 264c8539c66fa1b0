"""Test the commit of a run: its content, when it is skipped, lost races, and maintenance of the table."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import ConflictError, DataError
from airflow_merge_provider.core.run.previous_run import load_previous_run
from airflow_merge_provider.jobs.delta import table, writer
from airflow_merge_provider.jobs.delta.table import SparkLog, pin_dataset, read_dataset
from airflow_merge_provider.jobs.delta.transaction import CommitResult
from airflow_merge_provider.jobs.delta.writer import (
    _ALLOWED,
    NEW,
    OLD,
    can_replace_rows,
    create_table,
    merge_rows,
    overwrite_table,
    replace_rows,
)
from airflow_merge_provider.jobs.run.retry import OwnAttemptWonError, commit_run
from airflow_merge_provider.jobs.spark.session import override_settings
from tests.conformance.lean import new_session
from tests.jobs.delta_log import list_commits

CAP = "merge_source"
KEY = f"{OLD}.id = {NEW}.id"
UPSERT = ["WHEN MATCHED THEN UPDATE SET *", "WHEN NOT MATCHED THEN INSERT *"]


@pytest.fixture
def target(tmp_path: Path) -> Dataset:
    return Dataset(id="t", path=str(tmp_path / "t"))


def _build_rows(spark: SparkSession, *pairs: tuple[int, str]) -> Any:
    return spark.createDataFrame(list(pairs), "id INT, name STRING")


def _read_rows(spark: SparkSession, target: Dataset) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in read_dataset(spark, pin_dataset(spark, target)).collect())


def _create_target(spark: SparkSession, target: Any, *pairs: Any, state: Any = None) -> Any:
    rows = _build_rows(spark, *pairs)
    write = lambda: create_table(target, rows, CAP)  # noqa: E731
    return commit_run(spark, target, CAP, None, state or {}, write)


def _merge_rows(spark: SparkSession, target: Any, expected: Any, *pairs: Any, state: Any = None) -> Any:
    rows = _build_rows(spark, *pairs)
    write = lambda: merge_rows(spark, target, rows, KEY, UPSERT)  # noqa: E731
    return commit_run(spark, target, CAP, expected, state or {}, write)


def test_the_first_commit_carries_everything_at_once(spark: SparkSession, target: Any) -> None:
    """Rows, properties, run number and token are committed at once; no commit precedes it."""
    commit = _create_target(spark, target, (1, "a"), state={"token": {"run_id": "r1"}})

    (only,) = list_commits(Path(target.path))
    assert commit == CommitResult(version=0, number=1)
    assert only["txn"] == ("airflow-merge/merge_source", 1)
    assert only["properties"] == {"delta.enableDeletionVectors": "true", "merge.capability": CAP}
    assert only["run"]["token"] == {"run_id": "r1"}


def test_each_run_counts_one_up_and_finds_the_last_ones_state(spark: SparkSession, target: Any) -> None:
    """Create, merge and overwrite are runs 1, 2 and 3; a full refresh may change the schema."""
    _create_target(spark, target, (1, "a"))
    _merge_rows(
        spark,
        target,
        load_previous_run(SparkLog(spark), target, CAP),
        (1, "b"),
        (2, "c"),
        state={"sources": {"x": 7}},
    )
    second = load_previous_run(SparkLog(spark), target, CAP)
    refreshed = spark.createDataFrame([(9, 1.5)], "id INT, weight DOUBLE")
    third = commit_run(spark, target, CAP, second, {}, lambda: overwrite_table(target, refreshed))

    assert (second.number, second.version, second.state["sources"]) == (2, 1, {"x": 7})
    assert third == CommitResult(version=2, number=3)
    assert [commit["txn"][1] for commit in list_commits(Path(target.path))] == [1, 2, 3]
    assert _read_rows(spark, target) == [(9, 1.5)]
    assert list_commits(Path(target.path))[2]["properties"]["merge.capability"] == CAP


def test_rows_are_replaced_where_they_meet(spark: SparkSession, target: Any) -> None:
    """One commit replaces all rows of the source's keys, and appends rows of new keys.

    Columns are added only where this is allowed.
    """
    _create_target(spark, target, (1, "a"), (2, "b"))
    rows = spark.createDataFrame([(2, "B", 7), (3, "c", 8)], "id INT, name STRING, s INT")
    first = load_previous_run(SparkLog(spark), target, CAP)
    with pytest.raises(DataError, match="metadata mismatch"):
        commit_run(spark, target, CAP, first, {}, lambda: replace_rows(target, rows, KEY))
    write = lambda: replace_rows(target, rows, KEY, new_columns=True)  # noqa: E731
    commit_run(spark, target, CAP, first, {"token": {"run_id": "r2"}}, write)

    last = list_commits(Path(target.path))[-1]
    assert (last["txn"], last["run"]["token"]) == (("airflow-merge/merge_source", 2), {"run_id": "r2"})
    assert last["properties"]["merge.capability"] == CAP
    assert _read_rows(spark, target) == [(1, "a", None), (2, "B", 7), (3, "c", 8)]
    assert len(list_commits(Path(target.path))) == 2


def test_two_replacements_at_once_do_not_both_land(spark: SparkSession, target: Any) -> None:
    """Of two threads that start from the same run one commits; the other one raises a lost-race error."""
    _create_target(spark, target, *[(number, "a") for number in range(50)])
    expected = load_previous_run(SparkLog(spark), target, CAP)

    def replace_some(name: str) -> str:
        rows = _build_rows(new_session(spark), *[(number, name) for number in range(0, 60, 7)])
        write = lambda: replace_rows(target, rows, KEY)  # noqa: E731
        try:
            commit_run(rows.sparkSession, target, CAP, expected, {}, write)
        except ConflictError:
            return "lost"
        return name

    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(replace_some, ["one", "two"]))

    assert sorted(ended) in (["lost", "one"], ["lost", "two"])
    names = [name for number, name in _read_rows(spark, target) if number % 7 == 0]
    assert set(names) == set(ended) - {"lost"}


def test_rows_are_not_replaced_where_readers_follow_them(spark: SparkSession, target: Any) -> None:
    """Rows are not replaced in a table with a change data feed, which needs the previous images of rows."""
    _create_target(spark, target, (1, "a"))
    assert can_replace_rows(spark, target)
    for name in ("delta.enableChangeDataFeed", "delta.enableRowTracking"):
        spark.sql(f"ALTER TABLE delta.`{target.path}` SET TBLPROPERTIES ('{name}' = 'true')")
        assert not can_replace_rows(spark, target)
        spark.sql(f"ALTER TABLE delta.`{target.path}` SET TBLPROPERTIES ('{name}' = 'false')")


def test_rows_are_not_replaced_by_a_delta_that_does_not_know_how(
    spark: SparkSession, target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Delta version without support for row replacement is rejected.

    It would ignore the option and overwrite the whole table.
    """
    _create_target(spark, target, (1, "a"))
    assert can_replace_rows(spark, target)
    monkeypatch.setattr(writer, "_ALLOWED", "spark.databricks.delta.unknown.to.this.one")
    assert not can_replace_rows(spark, target)
    monkeypatch.undo()
    with override_settings(spark, {_ALLOWED: "false"}):
        assert not can_replace_rows(spark, target)


def test_a_catalog_table_is_created_merged_replaced_and_overwritten(spark: SparkSession) -> None:
    """A catalog table gets the same commits by its name."""
    target = Dataset(id="default.run_target", table="default.run_target")
    _create_target(spark, target, (1, "a"))
    _merge_rows(spark, target, load_previous_run(SparkLog(spark), target, CAP), (2, "b"))
    second, late = load_previous_run(SparkLog(spark), target, CAP), _build_rows(spark, (2, "c"), (3, "d"))
    commit_run(spark, target, CAP, second, {}, lambda: replace_rows(target, late, KEY))
    assert _read_rows(spark, target) == [(1, "a"), (2, "c"), (3, "d")]
    rows = _build_rows(spark, (5, "e"))
    expected = load_previous_run(SparkLog(spark), target, CAP)
    commit_run(spark, target, CAP, expected, {}, lambda: overwrite_table(target, rows))

    last = load_previous_run(SparkLog(spark), target, CAP)
    assert (last.number, last.version) == (4, 3)
    assert _read_rows(spark, target) == [(5, "e")]
    spark.sql("DROP TABLE default.run_target")


def test_a_retry_finds_its_own_token(spark: SparkSession, target: Any) -> None:
    """A retry finds the commit with its own token, and the state in it."""
    token = {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": -1}
    _create_target(spark, target, (1, "ä 日 'quoted' \\"), state={"token": token, "counts": {"rows": 1}})

    last = load_previous_run(SparkLog(spark), target, CAP)

    assert last.state["token"] == token
    assert last.state["counts"] == {"rows": 1}


@pytest.mark.parametrize("operation", ["merge", "replace", "overwrite"])
def test_a_write_that_delta_skips_silently_is_a_lost_race(
    spark: SparkSession, target: Any, operation: Any
) -> None:
    """A write that Delta skips because of an old run number raises a lost-race error and writes nothing."""
    _create_target(spark, target, (1, "a"))
    stale = load_previous_run(SparkLog(spark), target, CAP)
    _merge_rows(spark, target, stale, (1, "first"))
    late = _build_rows(spark, (1, "late"))
    write = {
        "merge": lambda: merge_rows(spark, target, late, KEY, UPSERT),
        "replace": lambda: replace_rows(target, late, KEY),
        "overwrite": lambda: overwrite_table(target, late),
    }[operation]

    with pytest.raises(ConflictError, match=r"committed version 1 of .*/t \(MERGE by run 2 of"):
        commit_run(spark, target, CAP, stale, {}, write)

    assert _read_rows(spark, target) == [(1, "first")]
    assert len(list_commits(Path(target.path))) == 2


def test_the_second_of_two_first_runs_loses(spark: SparkSession, target: Any) -> None:
    """Of two first runs that both found no table, one creates it and the other one fails."""
    _create_target(spark, target, (1, "first"))

    with pytest.raises(ConflictError, match=r"by run 1 of merge_source.* had found no table"):
        _create_target(spark, target, (1, "second"))

    assert _read_rows(spark, target) == [(1, "first")]


def test_an_attempt_learns_that_another_attempt_of_its_run_has_committed(
    spark: SparkSession, target: Any
) -> None:
    """An attempt writes nothing if another attempt of its run has committed, and reports that commit."""
    state = {"token": {"run_id": "r"}}
    _create_target(spark, target, (1, "a"))
    stale = load_previous_run(SparkLog(spark), target, CAP)
    _merge_rows(spark, target, stale, (1, "b"), state=state)

    with pytest.raises(OwnAttemptWonError):
        _merge_rows(spark, target, stale, (1, "c"), state=state)
    assert _read_rows(spark, target) == [(1, "b")]


def test_maintenance_between_two_runs_changes_nothing(spark: SparkSession, target: Any) -> None:
    """OPTIMIZE, VACUUM and a table property keep the run number and the state."""
    _create_target(spark, target, *[(n, "a") for n in range(10)], state={"fingerprint": "f"})
    name = f"delta.`{target.path}`"
    spark.sql(f"INSERT INTO {name} VALUES (10, 'by hand')")
    spark.sql(f"OPTIMIZE {name}")
    # By default VACUUM lists one small folder with ten thousand tasks.
    with override_settings(spark, {"spark.sql.sources.parallelPartitionDiscovery.parallelism": "2"}):
        spark.sql(f"VACUUM {name}")
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('note' = 'x')")

    last = load_previous_run(SparkLog(spark), target, CAP)
    commit = _merge_rows(spark, target, last, (1, "b"))

    assert (last.number, last.run_version, last.state["fingerprint"]) == (1, 0, "f")
    assert last.version > last.run_version
    assert commit.number == 2
    assert (1, "b") in _read_rows(spark, target)


def test_a_run_is_found_behind_many_commits_of_others(spark: SparkSession, target: Any) -> None:
    """The last run is found in the history even behind many commits of others."""
    _create_target(spark, target, (1, "a"), state={"fingerprint": "f"})
    for _ in range(21):
        spark.sql(f"ALTER TABLE delta.`{target.path}` SET TBLPROPERTIES ('note' = 'x')")

    assert load_previous_run(SparkLog(spark), target, CAP).state["fingerprint"] == "f"


@pytest.mark.long
@pytest.mark.parametrize("readable", [True, False], ids=["deltalake reads it", "deltalake does not"])
def test_a_run_whose_commit_has_aged_out_does_not_stop_the_next(
    spark: SparkSession, target: Any, monkeypatch: pytest.MonkeyPatch, readable: Any
) -> None:
    """The next run succeeds after the commit of the last run has left the history.

    The run number lasts as long as the table; if it cannot be read, a number above all others is used.
    """
    for n in range(3):
        expected = load_previous_run(SparkLog(spark), target, CAP)
        _merge_rows(spark, target, expected, (n, "a")) if expected else _create_target(
            spark, target, (n, "a")
        )
    name = f"delta.`{target.path}`"
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    spark.sql(f"INSERT INTO {name} VALUES (7, 'by hand')")
    if not readable:
        monkeypatch.setattr(table, "read_transaction", lambda *_: None)
    for version in range(4):
        (Path(target.path) / "_delta_log" / f"{version:020d}.json").unlink()
    spark.sql("CLEAR CACHE")

    last = load_previous_run(SparkLog(spark), target, CAP)
    commit = _merge_rows(spark, target, last, (8, "b"))

    assert (last.number, last.run_version, last.state) == (3 if readable else 5, None, {})
    assert commit.number == last.number + 1
    assert commit.version == last.version + 1


def test_a_table_made_by_hand_for_this_capability_is_run_number_one(spark: SparkSession, target: Any) -> None:
    """The first run on a table made by hand has number 1 if the user has set the capability's property."""
    spark.sql(
        f"CREATE TABLE delta.`{target.path}` (id INT, name STRING) USING delta "
        f"TBLPROPERTIES ('merge.capability' = '{CAP}')"
    )
    last = load_previous_run(SparkLog(spark), target, CAP)

    commit = _merge_rows(spark, target, last, (1, "a"))

    assert (last.number, last.version) == (0, 0)
    assert commit == CommitResult(version=1, number=1)


def test_the_session_is_left_as_it_was(spark: SparkSession, target: Any) -> None:
    """The session keeps no settings of the run, whether the write succeeded or failed."""

    def raise_error() -> None:
        raise RuntimeError("no")

    before = spark.conf.get("spark.databricks.delta.write.txnAppId", None)
    _create_target(spark, target, (1, "a"))
    with pytest.raises(RuntimeError, match="no"):
        commit_run(spark, target, CAP, load_previous_run(SparkLog(spark), target, CAP), {}, raise_error)

    assert spark.conf.get("spark.databricks.delta.write.txnAppId", None) == before
    assert len(list_commits(Path(target.path))) == 1


def test_an_error_after_the_commit_does_not_lose_it(spark: SparkSession, target: Any) -> None:
    """A commit is reported even if the statement ended in an error afterwards."""
    rows = _build_rows(spark, (1, "a"))

    def write_rows() -> None:
        create_table(target, rows, CAP)
        raise RuntimeError("a checkpoint failed")

    assert commit_run(spark, target, CAP, None, {}, write_rows) == CommitResult(0, 1)


@pytest.mark.parametrize("file_names", [[], ["part-0.parquet"]])
def test_what_a_killed_first_write_left_is_no_table_and_no_obstacle(
    spark: SparkSession, target: Any, file_names: Any
) -> None:
    """A log folder without a commit counts as a missing table.

    The next first run creates the table in one commit.
    """
    (Path(target.path) / "_delta_log").mkdir(parents=True)
    for name in file_names:
        (Path(target.path) / name).write_bytes(b"PAR1")

    assert load_previous_run(SparkLog(spark), target, CAP) is None
    assert not pin_dataset(spark, target).exists
    assert _create_target(spark, target, (1, "a")) == CommitResult(version=0, number=1)
    assert _read_rows(spark, target) == [(1, "a")]
    (only,) = list_commits(Path(target.path))
    assert only["properties"]["merge.capability"] == CAP
    assert only["txn"] == ("airflow-merge/merge_source", 1)


@pytest.mark.parametrize("first", [True, False], ids=["first runs", "later runs"])
def test_of_two_writers_at_once_one_wins_whole(spark: SparkSession, target: Any, first: Any) -> None:
    """Of two sessions that start from the same last run, one commits its rows and the other one fails."""
    if not first:
        _create_target(spark, target, *[(n, "old") for n in range(50)])
    sessions = [new_session(spark), new_session(spark)]
    previous_runs = [load_previous_run(SparkLog(session), target, CAP) for session in sessions]

    def write_rows(number: int) -> object:
        rows = [(n, f"writer {number}") for n in range(50)]
        try:
            if first:
                return _create_target(sessions[number], target, *rows)
            return _merge_rows(sessions[number], target, previous_runs[number], *rows)
        except ConflictError as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(write_rows, range(2)))

    (winner,) = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, CommitResult)]
    assert isinstance(outcomes[1 - winner], ConflictError)
    assert len(list_commits(Path(target.path))) == (1 if first else 2)
    assert _read_rows(spark, target) == [(n, f"writer {winner}") for n in range(50)]
