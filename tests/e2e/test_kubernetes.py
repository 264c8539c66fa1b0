"""Test deploy mode ``cluster`` on Kubernetes: spark-submit creates pods, which are processes here."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_merge_provider.core.errors import JobError
from airflow_merge_provider.core.protocol import JobRequest, JobResult, RunToken
from airflow_merge_provider.hooks.spark_job import SparkJobHook
from airflow_merge_provider.spark_process.launch import SCRIPT
from tests.kubernetes_api import (
    NAMESPACE,
    KubernetesApi,
    Manifest,
    StartContainer,
    find_schema_error,
    run_api,
)
from tests.spark_image import SparkImage

KEY = "a-key-that-nobody-may-see"
ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})
Connect = Callable[[StartContainer], tuple[KubernetesApi, SparkJobHook]]


@pytest.fixture
def connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connect]:
    """Return a function that starts the API server with pods of one kind, and a hook that submits to it."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("AIRFLOW__MERGE__CLUSTER_APPLICATION", f"local://{SCRIPT}")
    servers = []

    def start_api(start_container: StartContainer) -> tuple[KubernetesApi, SparkJobHook]:
        server = run_api(start_container)
        api = server.__enter__()
        servers.append(server)
        connection = {
            "conn_type": "spark",
            "host": f"k8s://{api.url}",
            "extra": {"deploy-mode": "cluster", "namespace": NAMESPACE},
        }
        monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps(connection))
        conf = {
            "spark.kubernetes.container.image": "registry.example/merge:1",
            "spark.kubernetes.driver.label.team": "data",
            "spark.kubernetes.driver.master": api.url,
            "spark.kubernetes.allocation.batch.delay": "1s",
            "spark.executor.instances": "1",
            "spark.executor.memory": "512m",
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "2",
            # The image has this Python, with this package.
            "spark.pyspark.python": sys.executable,
            "spark.hadoop.fs.s3a.secret.key": KEY,
        }
        return api, SparkJobHook("cluster", conf=conf)

    yield start_api
    for server in servers:
        server.__exit__(None, None, None)


def start_program(*command: str) -> StartContainer:
    """Return a function that starts this program as the container of every pod."""
    return lambda pod, files: subprocess.Popen(command)


def build_request(folder: Path) -> JobRequest:
    write_deltalake(str(folder / "rows"), ROWS)
    return JobRequest(
        job="merge_load",
        config={"strategy": "upsert", "source": "rows", "target": "target", "primary_key": ["id"]},
        run=RunToken(dag_id="Load_persons", run_id="r1", task_id="merge"),
        warehouse=str(folder),
        started_at=time.time_ns() // 1000,
    )


def find_driver(api: KubernetesApi) -> Manifest:
    return next(pod for pod in api.find_created("Pod") if pod["metadata"]["labels"]["spark-role"] == "driver")


def test_a_run_in_pods(connect: Connect, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A driver pod and an executor pod merge; the pods follow the schema of the API and contain no key.

    Longer than other tests: spark-submit, the driver and the executor each start a JVM.
    """
    api, hook = connect(SparkImage(tmp_path / "pods").start_container)

    result = hook.submit(build_request(tmp_path / "lake"))

    assert isinstance(result, JobResult)
    assert result.report.rows.inserted == 3
    assert DeltaTable(str(tmp_path / "lake/target")).version() == 0
    assert not list((tmp_path / "lake/_merge_runs").iterdir())
    pods = api.find_created("Pod")
    assert [pod["metadata"]["labels"]["spark-role"] for pod in pods] == ["driver", "executor"]
    assert [find_schema_error(pod, "V1Pod") for pod in pods] == [None, None]
    driver = find_driver(api)
    assert driver["metadata"]["name"].startswith("load-persons-merge-")
    assert (
        driver["metadata"]["labels"] | {"team": "data", "spark-app-name": "load-persons-merge"}
        == (driver["metadata"]["labels"])
    )
    assert driver["spec"]["restartPolicy"] == "Never"
    [container] = driver["spec"]["containers"]
    assert container["image"] == "registry.example/merge:1"
    application, request, answer = container["args"][-3:]
    assert application == f"local://{SCRIPT}"
    folder = request.removesuffix("/request.json")
    assert folder.startswith(f"file://{tmp_path}/lake/_merge_runs/")
    assert answer == f"{folder}/result"
    # Spark has all settings in a config map, as the documentation of this package says.
    maps = api.find_created("ConfigMap")
    settings = "".join(text for item in maps for text in item["data"].values()).replace("\\:", ":")
    assert KEY in settings
    assert f"spark.jars={folder}/spark-upload-" in settings
    assert KEY not in json.dumps([item for item in api.created if item["kind"] != "ConfigMap"])
    assert KEY not in capsys.readouterr().out


def test_a_driver_that_fails(connect: Connect, tmp_path: Path) -> None:
    """The first line of the error names the pod, its exit code, and the command that reads its log."""
    api, hook = connect(start_program("false"))

    with pytest.raises(JobError) as error:
        hook.submit(build_request(tmp_path))

    name = find_driver(api)["metadata"]["name"]
    assert str(error.value) == (
        f"driver pod merge/{name} ended without a result (exit code 1): read its log with "
        f"kubectl logs --namespace merge {name} (its Python needs the package airflow-merge-provider)"
    )
    assert error.value.retryable
    assert not list((tmp_path / "_merge_runs").iterdir())


def test_a_pod_that_somebody_deletes(connect: Connect, tmp_path: Path) -> None:
    """The task ends, and says that the pod may be gone."""
    api, hook = connect(start_program("sleep", "600"))

    def delete_pod() -> None:
        api.wait_for_watched_pod()
        api.delete_object("pods", find_driver(api)["metadata"]["name"])

    deleter = threading.Thread(target=delete_pod)
    deleter.start()
    with pytest.raises(JobError, match=r"kubectl logs .* \(if it is gone, somebody has deleted it"):
        hook.submit(build_request(tmp_path))
    deleter.join()


def test_a_killed_task_deletes_its_pod(connect: Connect, tmp_path: Path) -> None:
    """The process of the driver ends with the task."""
    processes = []

    def start_container(*_: object) -> subprocess.Popen[bytes]:
        processes.append(subprocess.Popen(["sleep", "600"]))
        return processes[0]

    api, hook = connect(start_container)

    def end_task() -> None:
        api.wait_for_watched_pod()
        hook.on_kill()

    ender = threading.Thread(target=end_task)
    ender.start()
    with pytest.raises(JobError, match="stopped on request"):
        hook.submit(build_request(tmp_path))
    ender.join()

    assert api.deleted == [find_driver(api)["metadata"]["name"]]
    processes[0].wait(30)
    assert not list((tmp_path / "_merge_runs").iterdir())


@pytest.mark.parametrize(
    ("change", "is_valid"),
    [
        ({}, True),
        ({"restartPolicy": 1}, False),
        ({"restartPolicies": "Never"}, False),
        ({"containers": [{"image": "a"}]}, False),
    ],
)
def test_the_schema_of_the_api(change: Manifest, is_valid: bool) -> None:
    """A wrong type, an unknown field and a missing field are found."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "spec": {"containers": [{"name": "a"}], "restartPolicy": "Never"},
    }
    pod["spec"] |= change
    assert (find_schema_error(pod, "V1Pod") is None) == is_valid
