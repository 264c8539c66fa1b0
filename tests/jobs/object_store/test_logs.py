"""Test that a run over tables on S3 reads their logs without Spark, if Spark is on this machine."""

from __future__ import annotations

import pytest

from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.jobs.delta.commit_log import open_commit_log
from airflow_merge_provider.jobs.delta.log import find_store
from airflow_merge_provider.jobs.delta.table import SparkLog, pin_dataset
from tests.jobs.object_store.runs import Lake

_ROWS = [{"id": 1}, {"id": 2}]


@pytest.fixture
def statements(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows with each statement that this process sends to Spark."""
    reattach = pytest.importorskip("pyspark.sql.connect.client.reattach")
    iterator = reattach.ExecutePlanResponseReattachableIterator
    original = iterator.__init__
    sent: list[int] = []

    def count_statement(*arguments: object, **named: object) -> None:
        sent.append(len(sent))
        original(*arguments, **named)

    # Whether Spark is on this machine is asked once.
    SparkLog(lake.spark).find_properties(resolve_dataset("nothing", lake.location))
    monkeypatch.setattr(iterator, "__init__", count_statement)
    return sent


def _read_everything(lake: Lake) -> list[object]:
    """Return all that a run asks the log of a table and of one that does not exist."""
    log = SparkLog(lake.spark)
    table, nothing = (resolve_dataset(name, lake.location) for name in ("t", "nothing"))
    pinned = pin_dataset(lake.spark, table)
    commits = open_commit_log(lake.spark, pinned).list_commits(0, 1)
    added = [(commit.version, [file.path.partition("://")[2] for file in commit.files]) for commit in commits]
    return [
        (pinned.version, pinned.table_id, pinned.commit_id),
        [(entry.version, entry.operation) for entry in log.read_history(table, None)],
        sorted(log.read_properties(table).get(name, "") for name in ("delta.appendOnly",)),
        [field["name"] for field in log.read_fields(pinned)],
        log.has_rows(table),
        added,
        log.find_properties(nothing),
        log.find_newest_version(nothing),
        list(log.read_history(nothing, None)),
    ]


@pytest.mark.long
def test_logs_on_s3_are_read_without_spark(lake: Lake, statements: list[int]) -> None:
    """delta-rs has the same answers as Spark, which is not asked."""
    lake.write_rows("t", _ROWS)
    lake.write_rows("t", [{"id": 3}], mode="append")

    answers = _read_everything(lake)
    statements_before = len(statements)
    store = find_store(lake.spark, lake.location)
    assert store is not None
    store.is_readable = False

    assert statements_before == 0
    assert _read_everything(lake) == answers
    assert len(statements) > statements_before


def test_spark_reads_logs_that_delta_rs_may_not(lake: Lake) -> None:
    """Without a way to the store, delta-rs is not asked again, and the answer is that of Spark."""
    lake.write_rows("t", _ROWS)
    table = resolve_dataset("t", lake.location)
    store = find_store(lake.spark, lake.location)
    assert store is not None
    store.options["AWS_ENDPOINT_URL"] = "http://127.0.0.1:1"

    pinned = pin_dataset(lake.spark, table)

    assert pinned.version == 0
    assert find_store(lake.spark, lake.location) is None
