"""Test tasks over a warehouse on S3 in a real Airflow, with the keys in the connection of the warehouse."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import s3fs
from deltalake import DeltaTable, write_deltalake
from demo.local_airflow import ALL, LocalAirflow

from tests.e2e.conftest import MakeHome
from tests.s3_server import S3Server, run_s3

DAGS = Path(__file__).parent / "object_store_dags"
SECRET = "s3cr3t-key-of-the-lake"  # noqa: S105 - of a server in this test
PATIENCE = 300.0


@pytest.fixture
def server() -> Iterator[S3Server]:
    with run_s3() as server:
        yield server


def _wait_for_end(airflow: LocalAirflow, run: str) -> dict[str, str]:
    """Return the states of the tasks of a run that has ended."""
    end = time.monotonic() + PATIENCE
    while True:
        state = airflow.get_json(f"/dags/object_store/dagRuns/{run}")["state"]
        if state in {"success", "failed"}:
            tasks = airflow.get_json(f"/dags/object_store/dagRuns/{run}/taskInstances")["task_instances"]
            return {task["task_id"]: task["state"] for task in tasks}
        assert time.monotonic() < end, f"the run is {state}"
        time.sleep(1)


def _read_xcom(airflow: LocalAirflow, run: str, task: str) -> Any:
    path = f"/dags/object_store/dagRuns/{run}/taskInstances/{task}/xcomEntries/return_value"
    value = airflow.get_json(path)["value"]
    return json.loads(value) if isinstance(value, str) else value


def test_tasks_use_the_keys_of_the_connection(
    tmp_path: Path, airflow_home: MakeHome, server: S3Server
) -> None:
    """A sensor, a load and a deferred merge of files reach the store, and no log or XCom has the key."""
    warehouse = f"{server.make_bucket()}/wh"
    options = server.settings.as_delta_rs()
    write_deltalake(f"{warehouse}/orders", pa.table({"id": [1, 2]}), storage_options=options)
    files = s3fs.S3FileSystem(**server.settings.as_fsspec(), skip_instance_cache=True)
    for number in range(2):
        files.pipe(f"{warehouse}/landing/{number}.json", f'{{"id": {number}}}\n'.encode())
    extra = {"endpoint_url": server.settings.endpoint}
    connection = {"conn_type": "merge_store", "host": warehouse, "login": "key", "password": SECRET}
    settings = {"AIRFLOW_CONN_MERGE_STORE_DEFAULT": json.dumps({**connection, "extra": extra})}

    home = airflow_home(tmp_path)
    with LocalAirflow(home, tmp_path / "unused", parts=ALL, dags=DAGS, settings=settings) as airflow:
        airflow.wait_until_ready(("object_store",))
        run = airflow.trigger_run("object_store")
        states = _wait_for_end(airflow, run)
        assert states == dict.fromkeys(("wait", "load", "merge"), "success"), airflow.read_reason(
            "object_store", run
        )
        reports = {task: _read_xcom(airflow, run, task) for task in ("load", "merge")}

    assert reports["load"]["rows"]["inserted"] == 2
    assert reports["load"]["target"]["uri"] == f"{warehouse}/loaded"
    assert reports["merge"]["counts"]["merged"] == 1
    assert DeltaTable(f"{warehouse}/loaded", storage_options=options).version() == 0
    assert set(server.read_behaviour().conditions) == {"*"}
    texts = [path.read_bytes() for path in home.rglob("*") if path.is_file()]
    assert SECRET not in json.dumps(reports)
    assert not [text for text in texts if SECRET.encode() in text]
