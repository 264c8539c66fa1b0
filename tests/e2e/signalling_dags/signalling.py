"""DAGs that start each other through assets; a step that copies values replaces Spark.

Like every job, the step compares the versions of its sources with those of its last commit, processes all
changes in between, and writes nothing if there are none.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from airflow.sdk import DAG, AssetWatcher, task
from deltalake import CommitProperties, DeltaTable, write_deltalake

from airflow_merge_provider.assets import dataset_asset
from airflow_merge_provider.core.protocol import JobRequest, JobResult
from airflow_merge_provider.core.report import Report, RowCounts, TargetReport
from airflow_merge_provider.operators import _spark_job
from airflow_merge_provider.operators.upsert import UpsertOperator
from airflow_merge_provider.pipes import pipe_dag
from airflow_merge_provider.triggers.dataset_changed import DatasetChangedTrigger

SLOW_SECONDS = 6.0
# Limits the values, so that the loop of two DAGs ends.
HIGHEST = 6


class CopyingHook:
    """A replacement of the hook that starts Spark: it copies values."""

    def __init__(self, conn_id: str, merge_store_conn_id: str, *, conf: Any = None) -> None:
        self.seconds = SLOW_SECONDS if (conf or {}).get("slow") else 0.0

    def submit(self, request: JobRequest) -> JobResult:
        warehouse = Path(request.warehouse or "")
        datasets = request.config.get("datasets") or [request.config["source"]]
        sources = [dataset.split()[0] for dataset in datasets]
        target = warehouse / request.config["target"]
        now = {name: read_values(warehouse / name) for name in sources}
        time.sleep(self.seconds)
        changed = now != read_state(target)
        if changed:
            commit_properties = CommitProperties(custom_metadata={"seen": json.dumps(now)})
            highest = max([0, *(max(values) for values in now.values() if values)])
            value = min(highest + 1, HIGHEST)
            rows = pa.table({"_id": ["x"], "value": [value]})
            changed = read_values(target) != [value]
            if changed:
                write_deltalake(target, rows, mode="overwrite", commit_properties=commit_properties)
        version = DeltaTable(target).version()
        report = Report(
            job=request.job,
            run_mode="incremental" if changed else "noop",
            run_mode_reason="the sources were read",
            changed=changed,
            dry_run=False,
            target=TargetReport(
                dataset=request.config["target"], uri=str(target), version_before=None, version=version
            ),
            sources={},
            rows=RowCounts(),
            counts={},
            details={},
            seconds={},
            warnings=[],
        )
        return JobResult(report=report.model_dump())


def read_values(path: Path) -> list[int]:
    if not DeltaTable.is_deltatable(str(path)):
        return []
    return sorted(DeltaTable(path).to_pyarrow_table()["value"].to_pylist())


def read_state(path: Path) -> dict[str, list[int]] | None:
    if not DeltaTable.is_deltatable(str(path)):
        return None
    states = (commit.get("seen") for commit in DeltaTable(path).history())
    return next((json.loads(state) for state in states if state), None)


_spark_job.SparkJobHook = CopyingHook  # type: ignore[assignment,attr-defined]


def merge_pipe(name: str, *datasets: str, **source: Any) -> DAG:
    """Return a DAG that merges datasets and starts whenever one of them changes."""
    aliased = [f"{dataset} {chr(ord('a') + index)}" for index, dataset in enumerate(datasets)]
    settings = {"type": "merge", "version": 2, "datasets": aliased, "supports_signalling": True, **source}
    return pipe_dag({"_id": name, "source": settings})


# A consumer of two inputs, followed by a task that runs with or without changes.
with merge_pipe("burst_out", "burst_a", "burst_b") as burst:

    @task
    def after() -> str:
        return "ran"

    burst.get_task("merge") >> after()

paused = merge_pipe("paused_out", "paused_in")
slow = pipe_dag(
    {
        "_id": "slow_out",
        "source": {
            "type": "merge",
            "version": 2,
            "datasets": ["slow_in a"],
            "supports_signalling": True,
        },
    },
    operator_args={"conf": {"slow": "true"}},
)
# A loop: each of the two datasets is an input of the other DAG.
there = merge_pipe("loop_there", "loop_back", "loop_start", initial_datasets=["loop_start"])
back = merge_pipe("loop_back", "loop_there")

watched = dataset_asset(
    "watched_in",
    watchers=[
        AssetWatcher(name="watched", trigger=DatasetChangedTrigger(dataset="watched_in", poke_interval=1.0))
    ],
)
with DAG("watched_out", schedule=watched, catchup=False, max_active_runs=1) as from_outside:
    UpsertOperator(task_id="merge", source=watched, target="watched_out", primary_key="_id")

# Waits for a dataset that has not been loaded yet.
waiting = pipe_dag(
    {
        "_id": "waiting_out",
        "source": {
            "type": "merge",
            "version": 2,
            "datasets": ["waiting_in a"],
            "ignore_non_existent_datasets": False,
        },
    }
)
