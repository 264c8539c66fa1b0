"""Measure the joiner against DuckDB, hand-written Spark SQL, and reading plus shuffling; compare the results.

``python -m benchmarks.joiner [--task inner|full|two|skewed] [--size N] [--rounds N]`` runs one task, or
all without ``--task``, and writes the figures to ``benchmarks/out``. "Ours, joined" is the join without the
job around it and without writing; it is compared with reading and shuffling.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.delta.table import pin_dataset
from airflow_merge_provider.jobs.joiner.job import prepare_join, run
from benchmarks import relations
from benchmarks.measure import OUT, Candidate, measure_size, run_in_turns, warm_session, write_results
from benchmarks.relations import NAMES, SKEWED, SMALL

TASKS = ("inner", "full", "two", "skewed")
# The first two limits apply to the tasks with four inputs, the third to the tasks with two.
GOALS = {"joined / read and shuffle": 1.5, "joined / DuckDB": 2.5, "run / Spark SQL": 1.1, "counting": 0.1}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=TASKS, help="which join (all)")
    parser.add_argument("--size", type=int, default=1_000_000, help="rows an input (1000000)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds after the one that warms up (3)")
    parser.add_argument("--folder", type=Path, help="where the tables are (benchmarks/out/data)")
    chosen = parser.parse_args()
    folder = chosen.folder or OUT / "data" / f"joiner-{chosen.size}"
    folder.mkdir(parents=True, exist_ok=True)
    relations.write_tables(folder, chosen.size)
    spark = warm_session()
    different = 0
    for task in TASKS if chosen.task is None else (chosen.task,):
        different += _measure_task(spark, folder, task, chosen.size, chosen.rounds)
    spark.stop()
    return 1 if different else 0


def _measure_task(spark: SparkSession, folder: Path, task: str, size: int, rounds: int) -> int:
    """Measure one join with every method, and count the rows that differ between the results."""
    target, by_hand, file = folder / "target", folder / "by_hand", folder / "duckdb.parquet"
    candidates = [
        Candidate("operator", lambda: _run_ours(spark, folder, task, target)),
        Candidate("operator, joined", lambda: _run_unwritten(spark, folder, task)),
        Candidate("Spark SQL", lambda: _by_hand(spark, folder, task, by_hand)),
        Candidate("DuckDB", lambda: _run_duckdb(folder, task, file)),
        Candidate("read and shuffle", lambda: _run_floor(spark, folder, task)),
    ]
    run_in_turns(candidates, rounds)
    different = _count_differences(target, by_hand, file)
    provider, joined, hand, peer, floor = (candidate.summarize_rounds()["median"] for candidate in candidates)
    steps = candidates[0].summarize_rounds()["steps"]
    ratios = {
        "joined / read and shuffle": round(joined / floor, 2),
        "joined / DuckDB": round(joined / peer, 2),
        "run / Spark SQL": round(provider / hand, 2),
        "run / DuckDB": round(provider / peer, 2),
        "counting": round(steps["count inputs"] / sum(steps.values()), 2),
    }
    facts = {"rows_that_differ": different, "goals": GOALS}
    print(json.dumps([candidate.summarize_rounds() for candidate in candidates], indent=1))
    written = write_results("joiner", f"{task}, {size:,} rows an input", candidates, ratios, facts)
    print(f"{task}: {ratios}, {facts}\nwritten to {written} and {written.with_suffix('.png')}", flush=True)
    return different


def _list_stages(task: str) -> Sequence[str]:
    return {"skewed": (SKEWED, SMALL), "two": NAMES[:2]}.get(task, NAMES)


def _build_config(task: str) -> dict[str, Any]:
    stages = _list_stages(task)
    fields = [f"{name}.k as {name}_k, {name}.{name}_n, {name}.{name}_t" for name in stages]
    required = {"full": (), "skewed": stages[:1]}.get(task, stages)
    return {
        "inputs": {name: name for name in stages},
        "join_keys": "=".join(f"{name}.k" for name in stages),
        "required_inputs": list(required),
        "selected_fields": ",".join(fields),
    }


def _run_unwritten(spark: SparkSession, folder: Path, task: str) -> Mapping[str, Any]:
    """Join as a run does and discard the rows."""
    pinned = {name: pin_dataset(spark, Dataset(name, path=str(folder / name))) for name in _list_stages(task)}
    rows = prepare_join(spark, _build_config(task), pinned).rows
    rows.write.format("noop").mode("overwrite").save()
    return {}


def _run_ours(spark: SparkSession, folder: Path, task: str, target: Path) -> Mapping[str, Any]:
    shutil.rmtree(target, ignore_errors=True)
    request = JobRequest(
        job="joiner",
        config={**_build_config(task), "target": target.name},
        run=RunToken(dag_id="benchmark", run_id="1", task_id="join"),
        warehouse=str(folder),
        started_at=0,
    )
    before = _count_jobs(spark)
    report = run(spark, request, Progress(out=str)).as_json()
    jobs = _count_jobs(spark) - before
    return {"jobs": jobs, "bytes_written": measure_size(target), "steps": report["seconds"]}


def _count_jobs(spark: SparkSession) -> int:
    """Return the number of Spark jobs so far; a run's threads set no job group, so all jobs are counted."""
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(None))


def _by_hand(spark: SparkSession, folder: Path, task: str, path: Path) -> Mapping[str, Any]:
    """Join with hand-written SQL and write a Delta table."""
    shutil.rmtree(path, ignore_errors=True)
    first, *other_stages = _list_stages(task)
    how = {"full": "FULL JOIN", "skewed": "LEFT JOIN"}.get(task, "JOIN")
    clauses, keys = [f"delta.`{folder / first}` {first}"], [f"{first}.k"]
    for name in other_stages:
        key = f"coalesce({', '.join(keys)})" if task == "full" else keys[0]
        clauses.append(f"{how} delta.`{folder / name}` {name} ON {key} = {name}.k")
        keys.append(f"{name}.k")
    columns = ", ".join(f"{name}.k AS {name}_k, {name}_n, {name}_t" for name in (first, *other_stages))
    rows = spark.sql(f"SELECT {columns} FROM {' '.join(clauses)}")
    rows.write.format("delta").save(str(path))
    return {"bytes_written": measure_size(path)}


def _run_duckdb(folder: Path, task: str, file: Path) -> Mapping[str, Any]:
    """Run the peer in a separate process; its imports are not measured."""
    command = [sys.executable, "-m", "benchmarks.peers.duckdb_join", str(folder), task, str(file)]
    figures = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {"seconds": figures["seconds"], "bytes_written": file.stat().st_size}


def _run_floor(spark: SparkSession, folder: Path, task: str) -> Mapping[str, Any]:
    """Read every input and shuffle it by its key, without a join and without writing."""
    for name in _list_stages(task):
        table = spark.read.format("delta").load(str(folder / name))
        table.repartition("k").write.format("noop").mode("overwrite").save()
    return {}


def _count_differences(target: Path, by_hand: Path, file: Path) -> int:
    """Count the rows that occur more often in one of the three results than in another."""
    base = duckdb.connect()
    mine, hand = (
        f"SELECT * FROM read_parquet({DeltaTable(str(path)).file_uris()!r})" for path in (target, by_hand)
    )
    theirs = f"SELECT * FROM read_parquet('{file}')"
    pairs = ((mine, theirs), (theirs, mine), (mine, hand), (hand, mine))
    counts = [
        base.execute(f"SELECT count(*) FROM ({left} EXCEPT ALL {right})").fetchall()[0][0]
        for left, right in pairs
    ]
    return sum(counts)


if __name__ == "__main__":
    sys.exit(main())
