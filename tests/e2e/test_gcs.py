"""Test runs over a warehouse on Google Cloud Storage: the key is in a Google Cloud connection."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from airflow_merge_provider.core.errors import ConflictError, SetupError
from airflow_merge_provider.core.object_store.clients import complete_arguments
from airflow_merge_provider.core.protocol import JobFailure, JobRequest, JobResult, RunToken
from airflow_merge_provider.hooks._exchange import RunFolder
from airflow_merge_provider.hooks.spark_job import SparkJobHook
from airflow_merge_provider.hooks.warehouse import WarehouseHook
from airflow_merge_provider.jobs.merge_record.files.storage import RemoteStorage
from tests.gcs_server import GcsServer, run_gcs


@pytest.fixture(scope="module")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    with run_gcs(tmp_path_factory.mktemp("gcs")) as server:
        yield server


@pytest.fixture
def warehouse(gcs: GcsServer, monkeypatch: pytest.MonkeyPatch) -> str:
    location = f"{gcs.make_bucket()}/wh"
    connect(monkeypatch, gcs, location, {"keyfile_dict": gcs.key_content})
    return location


def connect(monkeypatch: pytest.MonkeyPatch, gcs: GcsServer, location: str, key: dict[str, object]) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.endpoint)
    # gcsfs asks for the type of a bucket with gRPC, which the server does not have, unless this is set before
    # gcsfs is imported.
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    google = {"conn_type": "google_cloud_platform", "extra": key}
    monkeypatch.setenv("AIRFLOW_CONN_GOOGLE", json.dumps(google))
    store = {"conn_type": "merge_store", "host": location, "extra": {"google_cloud_conn_id": "google"}}
    monkeypatch.setenv("AIRFLOW_CONN_MERGE_STORE_DEFAULT", json.dumps(store))


def build_request(warehouse: str, run: str) -> JobRequest:
    return JobRequest(
        job="merge_load",
        config={"strategy": "upsert", "source": "rows", "target": "target", "primary_key": ["id"]},
        run=RunToken(dag_id="d", run_id=run, task_id="t"),
        warehouse=warehouse,
        started_at=time.time_ns() // 1000,
    )


def submit(gcs: GcsServer, warehouse: str, run: str) -> JobResult | JobFailure:
    hook = SparkJobHook(conf={"spark.driver.extraJavaOptions": gcs.java_options})
    return hook.submit(build_request(warehouse, run))


def read_ids(location: str, options: dict[str, str]) -> list[int]:
    table = DeltaTable(location, storage_options=options)
    result = QueryBuilder().register("t", table).execute("SELECT id FROM t ORDER BY id")
    return [row["id"] for row in pa.RecordBatchReader.from_stream(result).read_all().to_pylist()]


def test_first_unchanged_and_changed_run(
    gcs: GcsServer, warehouse: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark and delta-rs use the key of the connection, and no output has it.

    Longer than other tests: two runs start Spark.
    """
    options = WarehouseHook().storage_options
    write_deltalake(f"{warehouse}/rows", pa.table({"id": [1, 2]}), storage_options=options)
    results = [submit(gcs, warehouse, run) for run in ("r1", "r2")]
    write_deltalake(f"{warehouse}/rows", pa.table({"id": [3]}), mode="append", storage_options=options)
    results.append(submit(gcs, warehouse, "r3"))

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
    assert set(gcs.read_log_conditions()) == {"0"}, "a log entry is written only if there is none"
    assert str(gcs.key_content["private_key"])[40:80] not in capsys.readouterr().out


def test_another_writer_is_faster(gcs: GcsServer, warehouse: str) -> None:
    """Spark and delta-rs write the same log entry: that of the first one stays, and no commit is lost.

    Longer than other tests: two runs start Spark.
    """
    options = WarehouseHook().storage_options
    target = f"{warehouse}/target"
    write_deltalake(f"{warehouse}/rows", pa.table({"id": [1, 2]}), storage_options=options)
    submit(gcs, warehouse, "r1")
    write_deltalake(f"{warehouse}/rows", pa.table({"id": [3]}), mode="append", storage_options=options)
    gcs.hold_next_log_entry()
    with ThreadPoolExecutor(1) as executor:
        run = executor.submit(submit, gcs, warehouse, "r2")
        while gcs.find_held_entry() is None:
            assert not run.done(), run.result()
            time.sleep(0.1)
        write_deltalake(target, pa.table({"id": [9]}), mode="append", storage_options=options)
        result = run.result()

    history = DeltaTable(target, storage_options=options).history()
    if isinstance(result, JobResult):
        assert read_ids(target, options) == [1, 2, 3, 9]
    else:
        assert result.to_error().__class__ is ConflictError
        assert read_ids(target, options) == [1, 2, 9]
    assert history[-2]["engineInfo"].startswith("delta-rs"), "version 1 is that of the faster writer"


def test_files_are_exchanged_through_the_bucket(gcs: GcsServer, warehouse: str) -> None:
    """The worker writes the request, reads a result, and removes both."""
    request = build_request(warehouse, "r1")
    folder = RunFolder(request, WarehouseHook().store_settings)
    folder.write_request()
    files = gcs.open_files()
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
    assert files.find(folder.uri) == []


def test_a_file_is_created_once(gcs: GcsServer, warehouse: str) -> None:
    """The second writer of a plan, a ledger entry or a lease is refused, and the file does not change."""
    arguments = complete_arguments(warehouse, WarehouseHook().store_settings)
    storage = RemoteStorage(f"{warehouse}/state", arguments)

    assert storage.create_file("lease.json", b"first")
    assert not storage.create_file("lease.json", b"second")
    assert storage.read_file("lease.json") == b"first"


def test_a_bucket_that_does_not_exist(gcs: GcsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is refused before Spark starts; the key is in a file."""
    connect(monkeypatch, gcs, "gs://nowhere/wh", {"key_path": str(gcs.key_file)})

    with pytest.raises(SetupError, match="the bucket does not exist: create it"):
        submit(gcs, "gs://nowhere/wh", "r1")


def test_another_key_is_refused(gcs: GcsServer, warehouse: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server checks the key: one of another account cannot read the warehouse."""
    other_key = generate_private_key(65537, 2048)
    pem = other_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    connect(monkeypatch, gcs, warehouse, {"keyfile_dict": {**gcs.key_content, "private_key": pem}})

    with pytest.raises(SetupError, match="cannot be read"):
        WarehouseHook().read_version("rows")
