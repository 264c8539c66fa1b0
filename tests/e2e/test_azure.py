"""Test runs over a warehouse on Azure Data Lake Storage: the key is in the connection of the warehouse."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.core.protocol import JobRequest, JobResult, RunToken
from airflow_merge_provider.hooks._exchange import RunFolder
from airflow_merge_provider.hooks.spark_job import SparkJobHook
from airflow_merge_provider.hooks.warehouse import WarehouseHook
from tests.azurite import KEY, Azurite, run_azurite


@pytest.fixture(scope="module")
def azurite() -> Iterator[Azurite]:
    with run_azurite() as emulator:
        yield emulator


@pytest.fixture
def warehouse(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> str:
    location = f"{azurite.make_container()}/wh"
    connect(monkeypatch, azurite, location)
    return location


def connect(monkeypatch: pytest.MonkeyPatch, azurite: Azurite, location: str) -> None:
    extra = {"endpoint_url": azurite.endpoint}
    connection = {"conn_type": "merge_store", "host": location, "password": KEY, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_MERGE_STORE_DEFAULT", json.dumps(connection))


def build_request(warehouse: str, run: str, target: str = "target") -> JobRequest:
    return JobRequest(
        job="merge_load",
        config={"strategy": "upsert", "source": "rows", "target": target, "primary_key": ["id"]},
        run=RunToken(dag_id="d", run_id=run, task_id="t"),
        warehouse=warehouse,
        started_at=time.time_ns() // 1000,
    )


def test_first_unchanged_and_changed_run(
    azurite: Azurite, warehouse: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark and delta-rs use the key of the connection, and no output has it.

    Longer than other tests: two runs start Spark.
    """
    options = azurite.settings.as_delta_rs()
    write_deltalake(f"{warehouse}/rows", pa.table({"id": [1, 2]}), storage_options=options)
    results = [SparkJobHook().submit(build_request(warehouse, run)) for run in ("r1", "r2")]
    write_deltalake(f"{warehouse}/rows", pa.table({"id": [3]}), mode="append", storage_options=options)
    results.append(SparkJobHook().submit(build_request(warehouse, "r3")))

    reports = [result.report for result in results if isinstance(result, JobResult)]
    assert [(report["changed"], report["rows"]["inserted"]) for report in reports] == [
        (True, 2),
        (False, 0),
        (True, 1),
    ]
    assert reports[0]["target"]["uri"] == f"{warehouse}/target"
    assert "session" in reports[0]["seconds"]
    assert "session" not in reports[1]["seconds"], "a run without work needs no Spark"
    assert DeltaTable(f"{warehouse}/target", storage_options=options).version() == 1
    assert KEY not in capsys.readouterr().out


def test_files_are_exchanged_through_the_container(azurite: Azurite, warehouse: str) -> None:
    """The worker writes the request, reads a result, and removes both."""
    request = build_request(warehouse, "r1")
    folder = RunFolder(request, WarehouseHook().store_settings)
    folder.write_request()
    files = azurite.open_files()
    [path] = files.find(folder.uri)
    assert json.loads(files.cat_file(path)) == request.model_dump(mode="json")
    result = path.replace("request.json", "result")
    files.pipe_file(f"{result}/part-00000", JobResult(report={"changed": True}).model_dump_json().encode())
    assert folder.find_result(0.0) is None
    files.pipe_file(f"{result}/_SUCCESS", b"")

    answer = folder.find_result(0.0)

    assert isinstance(answer, JobResult)
    assert answer.report["changed"]
    assert folder.remove_folder() is None
    files.invalidate_cache()
    assert files.find(folder.uri) == []


def test_a_container_that_does_not_exist(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is refused before Spark starts."""
    location = f"{azurite.make_container().replace('lake-', 'nowhere-')}/wh"
    connect(monkeypatch, azurite, location)

    with pytest.raises(SetupError, match="the container does not exist: create it"):
        SparkJobHook().submit(build_request(location, "r1"))
