"""Test deploy mode ``cluster`` on a real YARN cluster: the driver runs in a container of the node."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_merge_provider.core.errors import JobError
from airflow_merge_provider.core.protocol import JobRequest, JobResult, RunToken
from airflow_merge_provider.hooks.spark_job import SparkJobHook
from tests.yarn_cluster import YarnCluster, run_yarn

ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[YarnCluster]:
    with run_yarn(tmp_path_factory.mktemp("yarn")) as cluster:
        yield cluster


@pytest.fixture
def hook(yarn: YarnCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SparkJobHook:
    extra = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": yarn.url}
    monkeypatch.setenv(
        "AIRFLOW_CONN_YARN", json.dumps({"conn_type": "spark", "host": "yarn", "extra": extra})
    )
    monkeypatch.setenv("HADOOP_CONF_DIR", str(yarn.conf))
    return SparkJobHook(
        "yarn",
        conf={
            "spark.yarn.stagingDir": f"file://{tmp_path}/staging",
            "spark.executor.instances": "1",
            "spark.executor.memory": "512m",
            "spark.driver.memory": "1g",
            # The node has this Python, with this package.
            "spark.pyspark.python": sys.executable,
            "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
            "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
        },
    )


def build_request(folder: Path, run: str) -> JobRequest:
    write_deltalake(str(folder / "rows"), ROWS, mode="overwrite")
    return JobRequest(
        job="merge_load",
        config={"strategy": "upsert", "source": "rows", "target": "target", "primary_key": ["id"]},
        run=RunToken(dag_id="d", run_id=run, task_id="t"),
        warehouse=str(folder),
        started_at=time.time_ns() // 1000,
    )


def list_states(yarn: YarnCluster) -> list[tuple[str, str]]:
    """Return state and final status of all applications, oldest first."""
    apps: dict[str, Any] = httpx.get(f"{yarn.url}/ws/v1/cluster/apps").json()["apps"] or {"app": []}
    return [(app["state"], app["finalStatus"]) for app in sorted(apps["app"], key=lambda app: app["id"])]


def test_a_run_and_a_killed_run_on_yarn(yarn: YarnCluster, hook: SparkJobHook, tmp_path: Path) -> None:
    """A run commits and reports through the warehouse; a killed one ends its application, and no more.

    Longer than other tests: YARN starts two applications.
    """
    result = hook.submit(build_request(tmp_path, "r1"))
    assert isinstance(result, JobResult)
    assert result.report.rows.inserted == 3
    assert DeltaTable(str(tmp_path / "target")).version() == 0
    # The task does not wait for the end of the driver, which has nothing to do after its result.
    while list_states(yarn) == [("RUNNING", "UNDEFINED")]:
        time.sleep(0.5)
    assert list_states(yarn) == [("FINISHED", "SUCCEEDED")]
    assert not list((tmp_path / "_merge_runs").iterdir())

    def end_it() -> None:
        while [state for state, _ in list_states(yarn)][1:] not in (["ACCEPTED"], ["RUNNING"]):
            time.sleep(0.2)
        hook.on_kill()

    ender = threading.Thread(target=end_it)
    ender.start()
    with pytest.raises(JobError, match="stopped on request"):
        hook.submit(build_request(tmp_path, "r2"))
    ender.join()
    assert list_states(yarn)[1:] == [("KILLED", "KILLED")]
    assert DeltaTable(str(tmp_path / "target")).version() == 0
    assert not list((tmp_path / "_merge_runs").iterdir())
