"""Test UndoOperator in a DAG run, with the parts of an undo that need no Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG, Param
from deltalake import CommitProperties, write_deltalake

from airflow_merge_provider.operators.undo import UndoOperator

pytestmark = pytest.mark.airflow


def write_target(folder: Path, run_ids: list[str]) -> None:
    """Write a target whose commits are those of runs, without Spark."""
    for number, run_id in enumerate(run_ids, 1):
        metadata = {"capability": "merge_load", "number": number, "token": {"run_id": run_id}}
        properties = CommitProperties(custom_metadata={"userMetadata": json.dumps(metadata)})
        rows = pa.table({"id": [number]})
        write_deltalake(str(folder), rows, mode="append", commit_properties=properties)
    # delta-rs does not write the property that names the writer.
    log = folder / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    for action in actions:
        if "metaData" in action:
            action["metaData"]["configuration"] = {"merge.capability": "merge_load"}
    log.write_text("\n".join(map(json.dumps, actions)), encoding="utf-8")


@pytest.mark.parametrize(("params", "undone"), [({}, ["r2"]), ({"run": "r1"}, ["r2", "r1"])])
def test_a_person_chooses_the_run_to_undo(
    run_dag: Any, tmp_path: Path, params: dict[str, str], undone: list[str]
) -> None:
    """Without a value of the param, the newest run is undone; a run is undone with all later ones."""
    write_target(tmp_path / "t", ["r1", "r2"])
    with DAG("undo_t", schedule=None, params={"run": Param(None, type=["null", "string"])}) as dag:
        UndoOperator(
            task_id="undo", target="t", run="{{ params.run }}", warehouse=str(tmp_path), dry_run=True
        )

    run = run_dag(dag, run_conf=params)

    report = run.get_task_instance("undo").xcom_pull(task_ids="undo", key="merge_report")
    assert report["run_mode"] == "undo"
    assert [entry["run_id"] for entry in report["details"]["undone"]] == undone
