"""Tests of what the log of a target says after a failed run, read without Spark."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from airflow_merge_provider.before_spark import find_target_state
from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.core.failure_report import TargetState
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.run.decision import RequiresSparkError

TOKEN = RunToken(dag_id="d", run_id="r2", task_id="t")
LOAD = {"strategy": "upsert", "source": "s", "target": "t", "primary_key": "id"}


def commit_run(folder: Path, run_id: str) -> None:
    """Write a commit as a run does."""
    metadata = {"capability": "merge_load", "number": 1, "token": TOKEN.model_dump() | {"run_id": run_id}}
    properties = CommitProperties(custom_metadata={"userMetadata": json.dumps(metadata)})
    rows = pa.table({"id": [1]})
    write_deltalake(str(folder), rows, mode="append", commit_properties=properties)


def find_state(
    warehouse: Path | str,
    job: str = "merge_load",
    config: Any = None,
    started_at: int = 4_000_000_000_000_000,
    **kwargs: Any,
) -> Any:
    request = JobRequest(
        job=job, config=config or LOAD, run=TOKEN, warehouse=str(warehouse), started_at=started_at
    )
    return find_target_state(request, **{"conf": {}, "is_local": True, **kwargs})


def test_the_log_has_the_commit_of_a_killed_run(tmp_path: Path) -> None:
    """The commit is that of the run by its token, also if other programs have committed since."""
    assert find_state(tmp_path) == TargetState(None)

    commit_run(tmp_path / "t", "r1")
    assert find_state(tmp_path) == TargetState(0)
    assert find_state(tmp_path, started_at=1) == TargetState(0, is_changed=True)

    commit_run(tmp_path / "t", "r2")
    write_deltalake(str(tmp_path / "t"), pa.table({"id": [2]}), mode="append")
    assert find_state(tmp_path) == TargetState(2, 1)

    DeltaTable(str(tmp_path / "t")).restore(0)
    assert find_state(tmp_path) == TargetState(3), "the commit was reverted"


def test_a_log_that_this_machine_may_not_have_says_nothing(tmp_path: Path) -> None:
    """A path on a cluster is not one of this machine: that there is no table here means nothing."""
    with pytest.raises(RequiresSparkError):
        find_state(tmp_path, is_local=False)


def test_a_run_of_several_commits_may_have_written_a_part(tmp_path: Path) -> None:
    """A merge record writes files, and rows that name their tables are committed table by table."""
    files = {"source": str(tmp_path / "in"), "merged": str(tmp_path / "out")}
    for job, config in (("merge_record", files), ("merge_load", {**LOAD, "dispatch_by": "country"})):
        assert find_state(tmp_path, job, config) == TargetState(None, has_parts=True)
        assert find_state(tmp_path, job, config, has_begun=False) is None


def test_a_store_that_does_not_answer_does_not_hide_the_error() -> None:
    """A store that accepts connections and says nothing is given up after seconds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        keys = {"AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
        options = {**keys, "AWS_REGION": "eu-central-1", "AWS_ALLOW_HTTP": "true"}
        start = time.monotonic()
        with pytest.raises((SetupError, RequiresSparkError, OSError)):
            find_state("s3://lake", storage_options=options)

    assert time.monotonic() - start < 20
