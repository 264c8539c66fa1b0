"""What runs over a warehouse on an object store have to do, whatever the store."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_merge_provider.core.protocol import JobFailure, JobRequest, JobResult, RunToken
from airflow_merge_provider.hooks._submit import RunFolder
from airflow_merge_provider.hooks.warehouse import WarehouseHook
from airflow_merge_provider.jobs.merge_record.files.storage import RemoteStorage
from tests.fakes import build_report

Submit = Callable[[JobRequest], JobResult | JobFailure]


def build_request(warehouse: str, run: str) -> JobRequest:
    """Return the request of an upsert of ``rows`` into ``target``."""
    return JobRequest(
        job="merge_load",
        config={"strategy": "upsert", "source": "rows", "target": "target", "primary_key": ["id"]},
        run=RunToken(dag_id="d", run_id=run, task_id="t"),
        warehouse=warehouse,
        started_at=time.time_ns() // 1000,
    )


def check_three_runs(warehouse: str, options: Mapping[str, str], submit: Submit) -> None:
    """Check a first, an unchanged and a changed run.

    :param options: those of delta-rs, which writes the source.
    """
    store = dict(options)
    write_deltalake(f"{warehouse}/rows", pa.table({"id": [1, 2]}), storage_options=store)
    results = [submit(build_request(warehouse, run)) for run in ("r1", "r2")]
    write_deltalake(f"{warehouse}/rows", pa.table({"id": [3]}), mode="append", storage_options=store)
    results.append(submit(build_request(warehouse, "r3")))

    reports = [result.report for result in results if isinstance(result, JobResult)]
    assert [(report.changed, report.rows.inserted) for report in reports] == [
        (True, 2),
        (False, 0),
        (True, 1),
    ]
    assert reports[0].target.uri == f"{warehouse}/target"
    assert "session" in reports[0].seconds
    assert "session" not in reports[1].seconds, "a run without work needs no Spark"
    assert DeltaTable(f"{warehouse}/target", storage_options=store).version() == 1


class BrokenStream(io.BytesIO):
    """A file that cannot be read to its end."""

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() > 6 << 20:
            raise OSError("the connection is lost")
        return super().read(size)


def check_copies(location: str, arguments: Mapping[str, Any]) -> None:
    """Check that a copy is recognized by its content, also one of several parts, and is never partial.

    :param arguments: those of fsspec.
    """
    source, other = (RemoteStorage(f"{location}/{name}", arguments) for name in ("source", "other"))
    source.write_stream("parts", io.BytesIO(bytes(11 << 20)))
    source.write_file("small", b"content")
    for name in ("parts", "small"):
        assert [source.copy_new(name, other, name) for _ in range(2)] == [True, True]
    other.write_file("small", b"another")
    assert not source.copy_new("small", other, "small")
    assert other.read_file("small") == b"another"
    with pytest.raises(OSError, match="connection is lost"):
        source.write_stream("broken", BrokenStream(bytes(12 << 20)))
    listed = {entry.name: entry for entry in source.list_files()}
    assert listed == {name: source.find_entry(name) for name in ("parts", "small")}


def check_exchange(warehouse: str, files: Any) -> None:
    """Check that the worker writes the request, reads a result, and removes both.

    :param files: the file system of fsspec, which does the part of the driver.
    """
    request = build_request(warehouse, "r1")
    folder = RunFolder(request, WarehouseHook().store_settings)
    folder.write_request()
    [path] = files.find(folder.uri)
    assert json.loads(files.cat_file(path)) == request.model_dump(mode="json")
    result = path.replace("request.json", "result")
    files.pipe_file(f"{result}/part-00000", JobResult(report=build_report()).model_dump_json().encode())
    assert folder.find_result(0.0) is None
    files.pipe_file(f"{result}/_SUCCESS", b"")

    answer = folder.find_result(0.0)

    assert isinstance(answer, JobResult)
    assert answer.report.changed
    assert folder.remove_folder() is None
    files.invalidate_cache()
    assert files.find(folder.uri) == []
