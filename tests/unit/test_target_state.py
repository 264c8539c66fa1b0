"""Tests of what the log of a target says after a failed run, read without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake

from airflow_merge_provider.before_spark import find_target_state
from airflow_merge_provider.core.failure_report import TargetState, describe_outcome
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


def find_state(warehouse: Path, job: str = "merge_load", config: Any = None, **kwargs: Any) -> Any:
    request = JobRequest(
        job=job, config=config or LOAD, run=TOKEN, warehouse=str(warehouse), started_at=1_700_000_000_000_000
    )
    return find_target_state(request, **{"conf": {}, "is_local": True, **kwargs})


def test_the_log_has_the_commit_of_a_killed_run(tmp_path: Path) -> None:
    """The commit is that of the run by its token, also if other programs have committed since."""
    assert find_state(tmp_path) == TargetState(None)

    commit_run(tmp_path / "t", "r1")
    assert find_state(tmp_path) == TargetState(0)

    commit_run(tmp_path / "t", "r2")
    write_deltalake(str(tmp_path / "t"), pa.table({"id": [2]}), mode="append")
    assert find_state(tmp_path) == TargetState(2, 1)


def test_a_log_that_this_machine_may_not_have_says_nothing(tmp_path: Path) -> None:
    """A path on a cluster is not one of this machine: that there is no table here means nothing."""
    with pytest.raises(RequiresSparkError):
        find_state(tmp_path, is_local=False)


def test_tables_that_rows_name_have_logs_of_their_own(tmp_path: Path) -> None:
    """The run may have committed to some of them before it failed, whatever its error is."""
    state = find_state(tmp_path, config={**LOAD, "dispatch_by": "kind"})

    outcomes = {
        describe_outcome("lake", code, state, dry_run=False) for code in ("data", "conflict", "job", "risk")
    }
    assert outcomes == {"it is not known whether the run has written to lake: see its history"}
    assert describe_outcome("lake", "data", state, dry_run=True) == "nothing was written to lake"


def test_files_have_no_log(tmp_path: Path) -> None:
    """A merge record writes files."""
    config = {"source": str(tmp_path / "in"), "merged": str(tmp_path / "out")}

    assert find_state(tmp_path, "merge_record", config) is None
