"""Warm up a Spark Connect server: run each kind of plan on ten rows, on the path of a real run.

Later runs then find loaded classes, compiled methods and cached code of the same shape.
"""

from __future__ import annotations

import gc
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_merge_provider.core.child_process import die_with_parent
from airflow_merge_provider.core.protocol import JobRequest, JobResult, RunToken
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.run.entry import answer_request
from airflow_merge_provider.jobs.spark.session import get_session

_WARM_UP_ROWS = 10
# The rounds of each kind: the first one creates the target, the second one merges changed rows into it.
_ROUNDS = (("upsert", "merge_source", "scd2", "merge_engine", "joiner"), ("upsert", "merge_source", "scd2"))
# The job and the configuration of each kind; every dataset is a table of the temporary warehouse.
RUNS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "upsert": ("merge_load", {"strategy": "upsert", "source": "first", "primary_key": ["id"]}),
    "merge_source": (
        "merge_source",
        {"datasets": ["first a", "second b"], "equality": [["eq", "a.name", "b.name"]], "version": 2},
    ),
    "scd2": ("merge_load", {"strategy": "scd2", "source": "first"}),
    "merge_engine": (
        "merge_engine",
        {"source": "first", "primary_key": ["id"], "merge_engine": "deduplicate", "incremental": False},
    ),
    "joiner": (
        "joiner",
        {
            "inputs": {"first": "first", "second": "second"},
            "join_keys": "first.id = second.id",
            "join_type": "innerjoin",
        },
    ),
}


def warm_up_server(warehouse: Path) -> list[JobResult]:
    """Run every kind of plan, and those with an incremental path twice; return the results of all runs.

    A kind whose marker file exists has been run by an earlier, interrupted process.
    """
    results = []
    for number, names in enumerate(_ROUNDS):
        for name in names:
            marker = warehouse / f"{name}-{number}.done"
            if marker.exists():
                continue
            write_sources(warehouse, number)
            request = _build_request(warehouse, name, number)
            answer = answer_request(request, {}, Progress(lambda _: None))
            if isinstance(answer, JobResult):
                results.append(answer)
            else:
                sys.stderr.write(f"{name}: {answer.message}\n")
            marker.touch()
    return results


def write_sources(warehouse: Path, number: int) -> None:
    """Write the source tables of one round, unless they are those of this round."""
    marker = warehouse / f"sources-{number}.done"
    if marker.exists():
        return
    spark = get_session()
    for name in ("first", "second"):
        columns = [
            "CAST(id AS STRING) AS _id",
            "id",
            "CAST(id AS STRING) AS name",
            f"id * {number} AS amount",
        ]
        rows = spark.range(_WARM_UP_ROWS + number).selectExpr(*columns)
        rows.write.format("delta").mode("overwrite").save(str(warehouse / name))
    spark.stop()
    marker.touch()


def _build_request(warehouse: Path, name: str, number: int) -> JobRequest:
    job, config = RUNS[name]
    return JobRequest.model_validate(
        {
            "job": job,
            "config": {**config, "target": f"target_{name}"},
            "run": RunToken(dag_id="warm_up", run_id=str(number), task_id=name),
            "warehouse": str(warehouse),
            "started_at": time.time_ns() // 1000,
        }
    )


if __name__ == "__main__":
    die_with_parent()
    # As in the process of a run: see jobs/run/entry.py.
    gc.disable()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder = Path(sys.argv[1])
    folder.mkdir(mode=0o700, exist_ok=True)
    warm_up_server(folder)
