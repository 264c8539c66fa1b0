"""Measure whole Airflow tasks, from the start of the task's process to its end, beside an empty task.

``python -m benchmarks.operators [--rounds N]`` starts an Airflow with its scheduler, and runs DAGs of one
task in turns: over 100 changed rows, and again without changes. The sensor checks a table with a thousand
commits.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from demo.local_airflow import LocalAirflow

from benchmarks.measure import Candidate, run_in_turns, write_results
from benchmarks.start import JOBS, WITHOUT_NEWS, Lake

COMMITS = 1000
EMPTY = "empty task"
_OPERATORS = {
    "upsert": "upsert.UpsertOperator",
    "scd2": "scd2.Scd2Operator",
    "merge source": "merge_source.MergeSourceOperator",
    "merge engine": "merge_engine.MergeEngineOperator",
    "joiner": "joiner.JoinerOperator",
}
_EMPTY_DAG = """
from airflow.sdk import DAG, task

with DAG("empty", schedule=None):

    @task(task_id="merge")
    def do_nothing():
        pass

    do_nothing()
"""
_DAG = """
from airflow.sdk import DAG
from airflow_merge_provider.operators.{module} import {name}

with DAG("{dag_id}", schedule=None):
    {name}(task_id="merge", target="{dag_id}", **{config!r})
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds after the first (%(default)s)")
    rounds = parser.parse_args().rounds
    folder = Path(tempfile.mkdtemp(prefix="merge-benchmark-"))
    lake = Lake(folder)
    try:
        _measure_tasks(lake, rounds)
        _measure_sensor(folder, rounds)
    finally:
        lake.run_command("local-spark", "stop")
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _measure_tasks(lake: Lake, rounds: int) -> None:
    dags = lake.folder / "dags"
    dags.mkdir()
    (dags / "empty.py").write_text(_EMPTY_DAG, encoding="utf-8")
    changed = {name: _write_dag(dags, name, config) for name, config in JOBS.items()}
    unchanged = {
        name: _write_dag(dags, f"{name} again", config, operator=name)
        for name, config in WITHOUT_NEWS.items()
    }
    settings = {"TMPDIR": str(lake.folder), "AIRFLOW__MERGE__LOCAL_SPARK_WARM_UP": "True"}
    with LocalAirflow(lake.folder / "airflow", lake.folder, dags=dags, settings=settings) as airflow:
        airflow.wait_until_ready(("empty", *changed.values(), *unchanged.values()))
        _measure_dags(airflow, "100 changed rows", changed, rounds, lake.change_rows)
        _measure_dags(airflow, "nothing new", unchanged, rounds, lambda: None)


def _measure_dags(
    airflow: Any, measured: str, dag_ids: Mapping[str, str], rounds: int, prepare: Callable[[], None]
) -> None:
    candidates = [
        Candidate(name, partial(_time_task, airflow, dag_id))
        for name, dag_id in (*dag_ids.items(), (EMPTY, "empty"))
    ]
    for _ in range(rounds + 1):
        prepare()
        run_in_turns(candidates, 0)
    _report(measured, candidates)


def _write_dag(dags: Path, name: str, config: Mapping[str, Any], operator: str | None = None) -> str:
    """Write the file of a DAG with one task, and return the ID of the DAG."""
    dag_id = name.replace(" ", "_")
    module, _, class_name = _OPERATORS[operator or name].partition(".")
    arguments = {argument: value for argument, value in config.items() if argument != "job"}
    text = _DAG.format(module=module, name=class_name, dag_id=dag_id, config=arguments)
    (dags / f"{dag_id}.py").write_text(text, encoding="utf-8")
    return dag_id


def _time_task(airflow: Any, dag_id: str) -> dict[str, float]:
    """Run a DAG, and return the seconds of its task.

    :raises RuntimeError: if it fails.
    """
    run_id = airflow.trigger_run(dag_id)
    if airflow.follow_run(dag_id, run_id, lambda _: None) != "success":
        raise RuntimeError(f"{dag_id}: {airflow.read_reason(dag_id, run_id)}")
    task = airflow.get_json(f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/merge")
    return {"seconds": float(task["duration"])}


def _measure_sensor(folder: Path, rounds: int) -> None:
    """Measure one check of the sensor over a table with many commits of another writer."""
    from airflow_merge_provider.sensors.dataset_populated import DatasetPopulatedSensor  # noqa: PLC0415

    row = pa.table({"_id": ["e"], "mail": ["m"]})
    write_deltalake(str(folder / "long"), row)
    table = DeltaTable(str(folder / "long"))
    for _ in range(COMMITS):
        write_deltalake(table, row, mode="append")

    def check_table() -> dict[str, float]:
        sensor = DatasetPopulatedSensor(task_id="wait", datasets=["long"], warehouse=str(folder))
        began = time.perf_counter()
        if not sensor.poke({}).is_done:
            raise RuntimeError("the table is not populated")
        return {"seconds": time.perf_counter() - began}

    candidate = Candidate("sensor", check_table)
    run_in_turns([candidate], rounds)
    _report(f"one check of the sensor, {COMMITS} commits", [candidate])


def _report(measured: str, candidates: list[Candidate]) -> None:
    medians = {candidate.name: candidate.summarize_rounds()["median"] for candidate in candidates}
    first = {candidate.name: candidate.rounds[0]["seconds"] for candidate in candidates}
    ratios = {
        f"{name} / {EMPTY}": median / medians[EMPTY]
        for name, median in medians.items()
        if EMPTY in medians and name != EMPTY
    }
    print(json.dumps({"measured": measured, "first": first, "medians": medians, "ratios": ratios}, indent=1))
    write_results("operators", measured, candidates, ratios, {})


if __name__ == "__main__":
    sys.exit(main())
