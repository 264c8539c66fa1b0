"""Tests of an object store before Spark starts: its errors, and the keys that only the connection has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_merge_provider import delta_rs
from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.core.object_store.azure_settings import AzureSettings
from airflow_merge_provider.core.object_store.gcs_settings import GcsSettings
from airflow_merge_provider.core.object_store.s3_settings import S3Settings
from airflow_merge_provider.core.run.decision import RequiresSparkError
from airflow_merge_provider.delta_rs import DeltaRsLog
from airflow_merge_provider.operators.merge_record import MergeRecordOperator
from airflow_merge_provider.triggers.landing import LandingTrigger
from tests.s3_server import S3Server, run_s3


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with run_s3() as server:
        yield server


def _find_table(location: str, options: dict[str, str], *, is_local: bool = True) -> object:
    log = DeltaRsLog(options, is_local=is_local)
    return log.find_newest_version(resolve_dataset(location, None, at="target"))


def test_a_missing_bucket_is_named_before_spark(server: S3Server) -> None:
    """A table without a bucket is an error; a table that is only missing is none."""
    options = server.settings.as_delta_rs()

    with pytest.raises(SetupError, match=r"s3://nowhere/t: the bucket does not exist: create it, or correct"):
        _find_table("s3://nowhere/t", options)
    assert _find_table(f"{server.make_bucket()}/t", options) is None


def test_a_store_that_cannot_be_reached_is_named_before_spark(server: S3Server) -> None:
    """The address in the connection may be wrong."""
    options = server.settings.as_delta_rs() | {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}

    with pytest.raises(
        SetupError, match=r"s3://lake/t: the object store cannot be reached: check its address"
    ):
        _find_table("s3://lake/t", options)


def test_a_spark_elsewhere_may_reach_another_store(server: S3Server) -> None:
    """A Spark on another machine may see what this process does not see, so Spark has to answer."""
    with pytest.raises(RequiresSparkError, match="the bucket does not exist"):
        _find_table("s3://nowhere/t", server.settings.as_delta_rs(), is_local=False)


def test_commands_that_read_name_the_bucket(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """History and explain take the address from the environment, and name the bucket."""
    for name, value in server.settings.as_delta_rs().items():
        monkeypatch.setenv(name, value)

    for open_location in (delta_rs.open_table, delta_rs.is_table):
        with pytest.raises(SetupError, match="the bucket does not exist"):
            open_location("s3://nowhere/t")


def test_the_first_look_uses_the_keys_of_the_connection(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task defers if the folder is empty, and the trigger fires once it has a file.

    The environment has neither the keys nor the address.
    """
    store = server.settings
    keys = {"login": store.access_key, "password": store.secret_key}
    connection = {"conn_type": "merge_store", **keys, "extra": {"endpoint_url": store.endpoint}}
    monkeypatch.setenv("AIRFLOW_CONN_MERGE_STORE_DEFAULT", json.dumps(connection))
    bucket = server.make_bucket()
    folders = {name: f"{bucket}/{name}" for name in ("source", "merged", "failure", "original", "state_path")}
    operator = MergeRecordOperator(task_id="merge", reader="json", deferrable=True, **folders)
    task: Any = SimpleNamespace(dag_id="d", run_id="r", task_id="merge", map_index=-1, task=operator)

    with pytest.raises(TaskDeferred) as deferred:
        operator.execute({"ti": task, "run_id": "r"})

    files = fsspec.filesystem("s3", **store.as_fsspec())
    files.pipe_file(f"{bucket}/source/a.json", b"{}")
    assert deferred.value.trigger.find_reason() == "1 new files"


@pytest.mark.parametrize("warehouse", ["gs://lake/w", "abfss://lake@shop.dfs.core.windows.net/w"])
def test_a_connection_without_a_warehouse_has_the_keys_of_the_store_of_the_task(
    warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kind of store comes from the warehouse of the connection, else from that of the task."""
    connection = {"conn_type": "merge_store", "password": "c2VjcmV0"}
    monkeypatch.setenv("AIRFLOW_CONN_MERGE_STORE_DEFAULT", json.dumps(connection))
    trigger = LandingTrigger({}, warehouse=warehouse)

    kind = GcsSettings if warehouse.startswith("gs") else AzureSettings
    assert isinstance(trigger._create_hook().store_settings, kind)
    connection["host"] = "s3://lake/w"
    monkeypatch.setenv("AIRFLOW_CONN_MERGE_STORE_DEFAULT", json.dumps(connection))
    assert isinstance(trigger._create_hook().store_settings, S3Settings)
