"""Test that of two writers of one version of a table on S3 exactly one succeeds."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from pyspark.errors import PySparkException

from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.core.object_store.clients import GCS_LOG_STORE, LOG_STORE
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.jobs.delta.log_store import require_safe_commits
from airflow_merge_provider.jobs.spark.errors import convert_error
from tests.jobs.object_store.runs import Lake

_COMMITS = 8


def _append(lake: Lake, values: list[int], name: str = "t") -> None:
    frame = lake.spark.createDataFrame([(value,) for value in values], "id BIGINT")
    frame.write.format("delta").mode("append").save(f"{lake.location}/{name}")


def _read_ids(lake: Lake) -> list[int]:
    return sorted(json.loads(row)["id"] for row in lake.read_rows("t"))


def test_each_log_entry_is_written_on_a_condition(lake: Lake) -> None:
    """Each log entry is written only if there is none, and the check of the store leaves no object."""
    _append(lake, [1])
    _append(lake, [2])

    assert lake.server.read_behaviour().conditions == ["*", "*"]
    assert _read_ids(lake) == [1, 2]
    assert _list_probes(lake) == []


def _list_probes(lake: Lake) -> list[str]:
    return [path for path in lake.open_files().find(lake.location) if "conditional-write" in path]


def test_no_commit_of_two_writers_is_lost(lake: Lake) -> None:
    """Spark and another program append at the same time: no acknowledged commit is lost."""
    _append(lake, [0])
    lake.server.change_behaviour(delay_max=0.4)
    acknowledged: list[int] = [0]

    def append_rows() -> None:
        for value in range(100, 100 + _COMMITS):
            lake.write_rows("t", [{"id": value}], mode="append")
            acknowledged.append(value)

    other_writer = threading.Thread(target=append_rows)
    other_writer.start()
    for value in range(1, 1 + _COMMITS):
        _append(lake, [value])
        acknowledged.append(value)
    other_writer.join()

    assert _read_ids(lake) == sorted(acknowledged)
    assert set(lake.server.read_behaviour().conditions) == {"*"}


def test_a_commit_whose_answer_is_lost_counts_once(lake: Lake) -> None:
    """If the client does not get the answer, it writes again: its own entry is no lost race."""
    _append(lake, [1])
    lake.server.change_behaviour(lost_answers=1)

    _append(lake, [2])

    assert lake.server.read_behaviour().lost_answers == 0
    assert (_read_ids(lake), lake.open_table("t").version()) == ([1, 2], 1)


def test_a_store_without_conditions_is_refused(lake: Lake) -> None:
    """Nothing is committed to a store that overwrites objects in spite of the condition."""
    lake.server.change_behaviour(ignores_condition=True)

    with pytest.raises(PySparkException) as failure:
        _append(lake, [1])

    error = convert_error(failure.value)
    assert isinstance(error, SetupError)
    assert "does not support conditional writes" in error.message
    assert _list_probes(lake) == []
    with pytest.raises(Exception, match=r"not a Delta table|No files in log|no table|TableNotFound"):
        lake.open_table("t")


def build_session(settings: Mapping[str, str | None]) -> Any:
    """Return a session of a Spark that another program has started."""

    class Session:
        class conf:  # noqa: N801 - as in Spark
            @staticmethod
            def get(name: str, default: Any) -> Any:
                return settings.get(name) or default

    return Session()


@pytest.mark.parametrize("store", [None, "io.delta.storage.S3SingleDriverLogStore"])
def test_a_spark_with_another_log_store_is_refused(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, store: str | None
) -> None:
    """A Spark whose log store overwrites entries is refused before it reads, unless it may be used."""
    request = lake.build_request("merge_load", {"target": "t"})
    settings = {"spark.delta.logStore.s3.impl": store}
    spark = build_session(settings)
    with pytest.raises(SetupError, match=rf"target: Spark writes the log of .*/wh/t.*set .*={LOG_STORE}"):
        require_safe_commits(spark, request)
    for allowed in (
        request.model_copy(update={"allow_single_writer": True}),
        request.model_copy(update={"until": "transform"}),
        request.model_copy(update={"warehouse": "/lake"}),
        request.model_copy(update={"config": {"target": {"dataset": "t", "format": "parquet"}}}),
    ):
        require_safe_commits(spark, allowed)
    settings["spark.delta.logStore.s3.impl"] = LOG_STORE
    require_safe_commits(spark, request)


@pytest.mark.parametrize(
    "settings",
    [
        {"spark.delta.logStore.s3.impl": "io.delta.storage.S3DynamoDBLogStore"},
        {"spark.databricks.clusterUsageTags.clusterId": "1"},
    ],
)
def test_other_log_stores_that_are_safe_are_accepted(settings: Mapping[str, str]) -> None:
    """Delta's log store with DynamoDB and the commit service of Databricks lose no commits."""
    request = JobRequest(
        job="merge_load",
        config={"target": "t"},
        run=RunToken(dag_id="d", run_id="r", task_id="t"),
        warehouse="s3://lake/wh",
        started_at=1,
    )

    require_safe_commits(build_session(settings), request)
    with pytest.raises(SetupError, match="can lose commits"):
        require_safe_commits(build_session({}), request)


@pytest.mark.parametrize("name", ["spark.delta.logStore.gs.impl", "spark.delta.logStore.class"])
def test_google_cloud_needs_its_own_log_store(name: str) -> None:
    """Delta's log store for Google Cloud is safe, and is its default; a Spark with another one is refused."""
    request = JobRequest(
        job="merge_load",
        config={"target": "t"},
        run=RunToken(dag_id="d", run_id="r", task_id="t"),
        warehouse="gs://lake/wh",
        started_at=1,
    )

    require_safe_commits(build_session({}), request)
    require_safe_commits(build_session({name: GCS_LOG_STORE}), request)
    with pytest.raises(SetupError, match=rf"log of gs://lake/wh/t .*set .*\.gs\.impl={GCS_LOG_STORE}"):
        require_safe_commits(build_session({name: "io.delta.storage.HDFSLogStore"}), request)
