"""Test whole runs on a store without Spark jars: records are copied to this machine and back."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.merge_record.engine import SparkEngine
from airflow_merge_provider.jobs.merge_record.files import local_copies as spools
from airflow_merge_provider.jobs.merge_record.files.local_copies import LocalCopies
from airflow_merge_provider.jobs.merge_record.files.storage import open_storage
from airflow_merge_provider.jobs.merge_record.job import _resolve_config, run_with
from tests.reports import check_report

START = 1_700_000_000


@pytest.fixture
def bucket() -> Any:
    """Return an empty location of an in-memory store."""
    return f"memory://{uuid.uuid4().hex}"


def run_job(spark: SparkSession, bucket: Any, number: Any = 1, **settings: Any) -> Any:
    folders = {name: f"{bucket}/{name}" for name in ("source", "merged", "failure", "original")}
    config = {**folders, "state_path": f"{bucket}/state", "reader": "json", **settings}
    token = RunToken(dag_id="d", run_id=f"r{number}", task_id="merge")
    request = JobRequest(job="merge_record", config=config, run=token, started_at=2**60)
    engine = SparkEngine(spark)
    try:
        return check_report(
            run_with(engine, open_storage, _resolve_config(request), request, Progress(out=str))
        )
    finally:
        engine.close()


def put_file(bucket: Any, name: Any, *records: Any) -> None:
    open_storage(f"{bucket}/source").write_file(
        name, "".join(json.dumps(record) + "\n" for record in records).encode()
    )


def read_merged(bucket: Any) -> Any:
    storage = open_storage(f"{bucket}/merged")
    names = [entry.name for entry in storage.list_files() if not entry.name.endswith(".attributes.json")]
    return sorted([json.loads(line)["id"] for line in storage.read_file(name).splitlines()] for name in names)


def test_files_of_a_store_are_merged_there(lean: SparkSession, bucket: Any) -> None:
    """Each record is merged once in the store, where originals, state, manifests and ledger are too.

    No local copy remains.
    """
    put_file(bucket, "k=1/a b.json", {"id": 1}, {"id": 2})
    put_file(bucket, "k=2/b.json", {"id": 3})
    settings = {"min_records": 2, "correlation_attribute_name": "k"}
    first = run_job(lean, bucket, **settings)
    put_file(bucket, "k=2/c.json", {"id": 4})

    second = run_job(lean, bucket, 2, **settings)

    assert (first["counts"]["merged"], first["counts"]["open_files"]) == (1, 1)
    assert (second["counts"]["merged"], read_merged(bucket)) == (1, [[1, 2], [3, 4]])
    names = {entry.name for entry in open_storage(f"{bucket}/original").list_files()}
    assert {"k=1/a b.json", "k=2/b.json", "k=2/c.json"} <= names
    assert open_storage(f"{bucket}/source").list_files() == []
    state_names = {entry.name.split("/")[0] for entry in open_storage(f"{bucket}/state").list_files()}
    assert state_names == {"state-000000000001.json", "state-000000000002.json", "manifests", "ledger"}
    assert not [entry for entry in open_storage(f"{bucket}/merged").list_files() if "_staging" in entry.name]


def test_the_ledger_names_files_where_they_are(lean: SparkSession, bucket: Any) -> None:
    """The ledger has the locations of the files in the store, not those of their copies."""
    put_file(bucket, "a.json", {"id": 1})

    report = run_job(lean, bucket)

    assert report["details"]["merged"][0]["uri"].startswith(f"{bucket}/merged/merged-")
    assert [source["uri"] for source in _read_ledger(bucket)[0]["sources"]] == [f"{bucket}/source/a.json"]


def _read_ledger(bucket: Any) -> Any:
    state = open_storage(f"{bucket}/state")
    name = next(entry.name for entry in state.list_files() if entry.name.startswith("ledger/"))
    return [json.loads(line) for line in state.read_file(name).splitlines()]


def test_a_malformed_file_of_a_store_goes_to_its_failure(lean: SparkSession, bucket: Any) -> None:
    """A malformed file of a store goes to the failure folder of the store with its reason."""
    put_file(bucket, "good.json", {"id": 1})
    open_storage(f"{bucket}/source").write_file("bad.json", b"no record\n")

    report = run_job(lean, bucket)

    assert report["counts"]["failed_files"] == 1
    assert open_storage(f"{bucket}/failure").find_entry("bad.json")
    assert read_merged(bucket) == [[1]]


def test_a_spark_elsewhere_needs_the_jars_of_the_store(
    lean: SparkSession, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Spark on another machine needs the jars of the store: it cannot read copies on this machine."""
    monkeypatch.setattr(spools, "is_local", lambda spark: False)

    with pytest.raises(SetupError, match="Spark has no file system for memory"):
        LocalCopies(lean).copy_files(open_storage(bucket), [])
