"""Test whole runs on a local S3 server, if its libraries are installed (``s3fs`` and ``moto[server]``)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_merge_provider.jobs.merge_record.files.storage import RemoteStorage, open_storage
from tests.jobs.merge_record.test_stores import put_file, read_merged, run_job

s3fs = pytest.importorskip("s3fs", reason="s3fs wants an older python-dateutil than Airflow's constraints")
server = pytest.importorskip("moto.server", reason="moto wants an older python-dateutil, too")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Start a server with one bucket and configure every S3 library of this process to use it."""
    running = server.ThreadedMotoServer(port=0)
    running.start()
    host, port = running.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    # fsspec caches clients, which have the address of the previous server.
    s3fs.S3FileSystem.clear_instance_cache()
    storage = open_storage(f"s3://bucket-{uuid.uuid4().hex}/lake")
    assert isinstance(storage, RemoteStorage)
    storage.fs.mkdir(storage.resolve_path("").split("/")[0])
    yield storage.location
    running.stop()


def test_a_name_is_created_once_on_s3(bucket: Any) -> None:
    """A name is created once: lease, plan and manifests depend on it."""
    state = open_storage(f"{bucket}/state")

    assert state.create_file("lease.json", b"first") is True
    assert state.create_file("lease.json", b"second") is False
    assert state.read_file("lease.json") == b"first"


@pytest.mark.spark
def test_bins_of_several_runs_are_merged_on_s3(lean: SparkSession, bucket: Any) -> None:
    """State, plan, manifest, ledger, lease, originals and failures work on S3; records are merged once."""
    put_file(bucket, "k=1/a b.json", {"id": 1}, {"id": 2})
    put_file(bucket, "k=2/b.json", {"id": 3})
    open_storage(f"{bucket}/source").write_file("bad.json", b"no record\n")
    settings = {"min_records": 2, "correlation_attribute_name": "k"}
    first = run_job(lean, bucket, **settings)
    put_file(bucket, "k=2/c.json", {"id": 4})

    second = run_job(lean, bucket, 2, **settings)

    assert (first["counts"]["merged"], first["counts"]["failed"], second["counts"]["merged"]) == (1, 1, 1)
    assert read_merged(bucket) == [[1, 2], [3, 4]]
    assert open_storage(f"{bucket}/source").list_files() == []
    assert open_storage(f"{bucket}/failure").find_entry("bad.json")
    state_names = {entry.name.split("/")[0] for entry in open_storage(f"{bucket}/state").list_files()}
    assert state_names == {"state-000000000001.json", "state-000000000002.json", "manifests", "ledger"}
