"""Test runs over a warehouse on Google Cloud Storage: the key is in a Google Cloud connection."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from airflow_merge_provider.core.errors import ConflictError, SetupError
from airflow_merge_provider.core.object_store.clients import complete_arguments
from airflow_merge_provider.core.protocol import JobFailure, JobRequest, JobResult
from airflow_merge_provider.hooks.spark_job import SparkJobHook
from airflow_merge_provider.hooks.warehouse import WarehouseHook
from airflow_merge_provider.jobs.merge_record.files.storage import RemoteStorage
from tests.e2e.store_runs import build_request, check_copies, check_exchange, check_three_runs
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


def submit_request(gcs: GcsServer, request: JobRequest) -> JobResult | JobFailure:
    hook = SparkJobHook(conf={"spark.driver.extraJavaOptions": gcs.java_options})
    return hook.submit(request)


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
    check_three_runs(warehouse, WarehouseHook().storage_options, partial(submit_request, gcs))

    assert set(gcs.read_log_conditions()) == {"0"}, "a log entry is written only if there is none"
    assert str(gcs.key_content["private_key"])[40:80] not in capsys.readouterr().out


def test_another_writer_is_faster(gcs: GcsServer, warehouse: str) -> None:
    """Spark and delta-rs write the same log entry: that of the first one stays, and no commit is lost.

    Longer than other tests: two runs start Spark.
    """
    options = WarehouseHook().storage_options
    target = f"{warehouse}/target"
    write_deltalake(f"{warehouse}/rows", pa.table({"id": [1, 2]}), storage_options=options)
    submit_request(gcs, build_request(warehouse, "r1"))
    write_deltalake(f"{warehouse}/rows", pa.table({"id": [3]}), mode="append", storage_options=options)
    gcs.hold_next_log_entry()
    with ThreadPoolExecutor(1) as executor:
        run = executor.submit(submit_request, gcs, build_request(warehouse, "r2"))
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
    check_exchange(warehouse, gcs.open_files())


def test_a_file_is_created_once(gcs: GcsServer, warehouse: str) -> None:
    """The second writer of a plan, a ledger entry or a lease is refused, and the file does not change."""
    arguments = complete_arguments(warehouse, WarehouseHook().store_settings)
    storage = RemoteStorage(f"{warehouse}/state", arguments)

    assert storage.create_file("lease.json", b"first")
    assert not storage.create_file("lease.json", b"second")
    assert storage.read_file("lease.json") == b"first"


# Clients of stores send large requests.
@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
def test_copies_are_recognized_by_their_content(gcs: GcsServer, warehouse: str) -> None:
    """A copy has another tag on Google Cloud Storage."""
    check_copies(warehouse, complete_arguments(warehouse, WarehouseHook().store_settings))


def test_a_bucket_that_does_not_exist(gcs: GcsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is refused before Spark starts; the key is in a file."""
    connect(monkeypatch, gcs, "gs://nowhere/wh", {"key_path": str(gcs.key_file)})

    with pytest.raises(SetupError, match="the bucket does not exist: create it"):
        submit_request(gcs, build_request("gs://nowhere/wh", "r1"))


def test_another_key_is_refused(gcs: GcsServer, warehouse: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server checks the key: one of another account cannot read the warehouse."""
    other_key = generate_private_key(65537, 2048)
    pem = other_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    connect(monkeypatch, gcs, warehouse, {"keyfile_dict": {**gcs.key_content, "private_key": pem}})

    with pytest.raises(SetupError, match="cannot be read"):
        WarehouseHook().read_version("rows")
