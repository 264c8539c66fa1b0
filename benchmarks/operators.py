"""Measure the cost of the Airflow side: in addition to its Spark process, and when there is nothing to do.

``python -m benchmarks.operators [--rounds N]`` runs DAGs as a worker does, with a separate database and Spark
Connect server, and writes the figures to ``benchmarks/out``. Each operator runs once to write its table, then
again without new data: on this machine, where the operator's time without its child process is measured, and
on the server, where the whole run is measured. The sensor checks a table with a thousand commits.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from benchmarks.measure import OUT
from benchmarks.page import update_page

GOALS = {"added by the operator": 0.5, "one check of the sensor": 0.3, "no change, Spark Connect": 4.0}
COMMITS, ROWS = 1000, 1000
_SERVER = "spark_of_the_benchmark"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="runs without changes of each operator (5)")
    rounds = parser.parse_args().rounds
    folder = Path(tempfile.mkdtemp(prefix="merge-benchmark-"))
    # Must be set before Airflow is imported.
    os.environ.update(AIRFLOW_HOME=str(folder / "airflow"), AIRFLOW__CORE__LOAD_EXAMPLES="False")
    try:
        lake = _create_lake(folder)
        with _start_server(folder) as port:
            os.environ[f"AIRFLOW_CONN_{_SERVER.upper()}"] = json.dumps(
                {"conn_type": "spark_connect", "host": "127.0.0.1", "port": port}
            )
            figures = [*_measure_operators(lake, rounds), *_measure_sensor(lake, rounds)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    OUT.mkdir(exist_ok=True)
    (OUT / "operators.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    for name, goal in GOALS.items():
        medians = {figure["of"]: figure["median"] for figure in figures if figure["figure"] == name}
        ratios = {f"{of} / goal": median / goal for of, median in medians.items()}
        update_page("operators", name, medians, ratios)
    missed = [figure for figure in figures if figure["median"] > GOALS[figure["figure"]]]
    print(json.dumps(figures, indent=1), f"\ngoals in seconds {GOALS}; missed: {len(missed)}")
    return 0


def _create_lake(folder: Path) -> Path:
    """Create a small source, and a table with many commits from other writers."""
    lake = folder / "lake"
    rows = pa.table({"_id": [f"e{number}" for number in range(ROWS)], "mail": ["m"] * ROWS})
    write_deltalake(str(lake / "source"), rows)
    write_deltalake(str(lake / "long"), rows.slice(0, 1))
    table = DeltaTable(str(lake / "long"))
    for _ in range(COMMITS):
        write_deltalake(table, rows.slice(0, 1), mode="append")
    return lake


@contextmanager
def _start_server(folder: Path) -> Iterator[int]:
    """Start a Spark Connect server with the command line, and yield its port once it listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-m", "airflow_merge_provider", "connect-server", "--port", str(port)]
    log_file = folder / "server.log"
    with log_file.open("wb") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        while "sc://" not in log_file.read_text(encoding="utf-8", errors="replace"):
            if child.poll() is not None:
                raise RuntimeError(log_file.read_text(encoding="utf-8"))
            time.sleep(0.2)
        yield port
    finally:
        child.terminate()
        child.wait(30)


def _measure_operators(lake: Path, rounds: int) -> Iterator[dict[str, Any]]:
    from airflow.sdk import DAG  # noqa: PLC0415 - after AIRFLOW_HOME is set, here and below

    from airflow_merge_provider.operators.merge_engine import MergeEngineOperator  # noqa: PLC0415
    from airflow_merge_provider.operators.merge_source import MergeSourceOperator  # noqa: PLC0415
    from airflow_merge_provider.operators.upsert import UpsertOperator  # noqa: PLC0415

    configs: dict[Any, dict[str, Any]] = {
        MergeSourceOperator: {"datasets": ["source s"], "strategy": "default", "identity": "first"},
        MergeEngineOperator: {"source": "source", "primary_key": ["_id"]},
        UpsertOperator: {"source": "source", "primary_key": "_id"},
    }
    for operator, config in configs.items():
        for where, conn_id in (("here", "no_connection"), ("server", _SERVER)):
            with DAG(f"{operator.__name__}_{where}", schedule=None) as dag:
                operator(
                    task_id="merge", target=f"{operator.__name__}_{where}", warehouse=str(lake),
                    spark_conn_id=conn_id, **config,
                )  # fmt: skip
            runs = [_time_dag(dag) for _ in range(rounds + 1)][1:]
            totals, child = ([run[index] for run in runs] for index in (0, 1))
            if where == "here":
                yield _build_figure("added by the operator", operator.__name__, [a - b for a, b in runs])
            else:
                yield _build_figure("no change, Spark Connect", operator.__name__, totals)
            print(f"{operator.__name__}, {where}: {totals}, of which the child {child}", flush=True)


def _measure_sensor(lake: Path, rounds: int) -> Iterator[dict[str, Any]]:
    from airflow_merge_provider.sensors.dataset_populated import DatasetPopulatedSensor  # noqa: PLC0415

    durations = []
    for _ in range(rounds + 1):
        sensor = DatasetPopulatedSensor(task_id="wait", datasets=["long"], warehouse=str(lake))
        began = time.perf_counter()
        if not sensor.poke({}).is_done:
            raise RuntimeError("the table is not populated")
        durations.append(time.perf_counter() - began)
    yield _build_figure("one check of the sensor", "the first", durations[:1])
    yield _build_figure("one check of the sensor", "later ones", durations[1:])


def _build_figure(figure: str, of: str, seconds: list[float]) -> dict[str, Any]:
    middle, worst = statistics.median(seconds), max(seconds)
    return {"figure": figure, "of": of, "median": round(middle, 3), "max": round(worst, 3)}


def _time_dag(dag: Any) -> tuple[float, float]:
    """Run a DAG of one operator; return the seconds of the operator and those of its child process."""
    from airflow_merge_provider.launch import JobProcess  # noqa: PLC0415
    from airflow_merge_provider.operators._spark_job import SparkJobOperator  # noqa: PLC0415

    seconds: dict[str, float] = {}
    with _time_calls(SparkJobOperator, "execute", seconds), _time_calls(JobProcess, "_follow", seconds):
        if str(_run_dag(dag).state) != "success":
            raise RuntimeError(f"{dag.dag_id} failed")
    return seconds["execute"], seconds["_follow"]


@contextmanager
def _time_calls(owner: type, name: str, seconds: dict[str, float]) -> Iterator[None]:
    plain: Callable[..., Any] = getattr(owner, name)

    def call_timed(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return plain(*args, **kwargs)
        finally:
            seconds[name] = time.perf_counter() - began

    setattr(owner, name, call_timed)
    try:
        yield
    finally:
        setattr(owner, name, plain)


def _run_dag(dag: Any) -> Any:
    """Run a DAG as a worker does, one task after the other in this process."""
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db  # noqa: PLC0415
    from airflow.models.dagbundle import DagBundleModel  # noqa: PLC0415, TID251 - the server side
    from airflow.utils import db  # noqa: PLC0415, TID251 - the server side
    from airflow.utils.session import create_session  # noqa: PLC0415, TID251 - the server side

    if not (Path(os.environ["AIRFLOW_HOME"]) / "airflow.db").is_file():
        db.initdb()
    with create_session() as session:
        session.merge(DagBundleModel(name="benchmark"))
    bag = DagBag(os.devnull)
    bag.bag_dag(dag)
    sync_bag_to_db(bag, bundle_name="benchmark", bundle_version=None)
    return dag.test()


if __name__ == "__main__":
    sys.exit(main())
