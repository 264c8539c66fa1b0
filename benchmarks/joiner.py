"""The joiner against DuckDB, Spark SQL by hand, and reading plus shuffling the inputs; results are equal.

``python -m benchmarks.joiner [--task inner|full|skewed] [--size N] [--rounds N]``; the figures go to
``benchmarks/out``.
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

from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.spark_conf import session_conf
from airflow_merge_provider.jars import delta_jars
from airflow_merge_provider.jobs.joiner.job import run
from airflow_merge_provider.jobs.progress import Progress
from airflow_merge_provider.jobs.session import local_session
from benchmarks import relations
from benchmarks.measure import OUT, Way, in_turns, size_of, write_results
from benchmarks.relations import NAMES, SKEWED, SMALL

TASKS = ("inner", "full", "skewed")
GOALS = {"ours / read and shuffle": 1.5, "ours / DuckDB": 2.5, "ours / Spark SQL": 1.1}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=TASKS, default="full", help="which join (full)")
    parser.add_argument("--size", type=int, default=1_000_000, help="rows an input (1000000)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds after the one that warms up (3)")
    chosen = parser.parse_args()
    folder = OUT / "data" / f"joiner-{chosen.size}"
    folder.mkdir(parents=True, exist_ok=True)
    relations.write(folder, chosen.size)
    spark = local_session(session_conf(local=True, jars=delta_jars(), user={}))
    target, by_hand, file = folder / "target", folder / "by_hand", folder / "duckdb.parquet"
    ways = [
        Way("ours", lambda: _ours(spark, folder, chosen.task, target)),
        Way("Spark SQL", lambda: _by_hand(spark, folder, chosen.task, by_hand)),
        Way("DuckDB", lambda: _duckdb(folder, chosen.task, file)),
        Way("read and shuffle", lambda: _floor(spark, folder, chosen.task)),
    ]
    in_turns(ways, chosen.rounds)
    spark.stop()
    different = _different(target, by_hand, file)
    medians = {way.name: way.figures()["median"] for way in ways}
    ratios = {f"ours / {name}": round(medians["ours"] / medians[name], 2) for name in list(medians)[1:]}
    facts = {"rows_that_differ": different, "goals": GOALS}
    print(json.dumps([way.figures() for way in ways], indent=1))
    written = write_results(f"joiner_{chosen.task}", chosen.size, ways, ratios, facts)
    print(f"ratios {ratios}, {facts}\nwritten to {written} and {written.with_suffix('.png')}")
    return 1 if different else 0


def _stages(task: str) -> Sequence[str]:
    return (SKEWED, SMALL) if task == "skewed" else NAMES


def _ours(spark: SparkSession, folder: Path, task: str, target: Path) -> Mapping[str, Any]:
    shutil.rmtree(target, ignore_errors=True)
    stages = _stages(task)
    fields = [f"{name}.k as {name}_k, {name}.{name}_n, {name}.{name}_t" for name in stages]
    required = {"inner": stages, "full": (), "skewed": stages[:1]}[task]
    config = {
        "inputs": {name: name for name in stages},
        "join_keys": "=".join(f"{name}.k" for name in stages),
        "required_inputs": list(required),
        "selected_fields": ",".join(fields),
        "target": target.name,
    }
    request = JobRequest(
        job="joiner",
        config=config,
        run=RunToken(dag_id="benchmark", run_id="1", task_id="join"),
        warehouse=str(folder),
        started_at=0,
    )
    spark.sparkContext.setJobGroup("ours", "ours")
    before = len(spark.sparkContext.statusTracker().getJobIdsForGroup("ours"))
    report = run(spark, request, Progress(out=str))
    jobs = len(spark.sparkContext.statusTracker().getJobIdsForGroup("ours")) - before
    spark.sparkContext.setJobGroup("others", "others")
    return {"jobs": jobs, "bytes_written": size_of(target), "steps": report["seconds"]}


def _by_hand(spark: SparkSession, folder: Path, task: str, place: Path) -> Mapping[str, Any]:
    """Join as one would write it in SQL, into a Delta table."""
    shutil.rmtree(place, ignore_errors=True)
    first, *others = _stages(task)
    how = {"inner": "JOIN", "full": "FULL JOIN", "skewed": "LEFT JOIN"}[task]
    words, before = [f"delta.`{folder / first}` {first}"], [f"{first}.k"]
    for name in others:
        key = f"coalesce({', '.join(before)})" if task == "full" else before[0]
        words.append(f"{how} delta.`{folder / name}` {name} ON {key} = {name}.k")
        before.append(f"{name}.k")
    columns = ", ".join(f"{name}.k AS {name}_k, {name}_n, {name}_t" for name in (first, *others))
    rows = spark.sql(f"SELECT {columns} FROM {' '.join(words)}")
    rows.write.format("delta").save(str(place))
    return {"bytes_written": size_of(place)}


def _duckdb(folder: Path, task: str, file: Path) -> Mapping[str, Any]:
    """Run the peer in a process of its own; its imports do not count."""
    words = [sys.executable, "-m", "benchmarks.peers.duckdb_join", str(folder), task, str(file)]
    said = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    return {"seconds": said["seconds"], "bytes_written": file.stat().st_size}


def _floor(spark: SparkSession, folder: Path, task: str) -> Mapping[str, Any]:
    """Read every input and shuffle it by its key, and no more: nothing is joined and nothing written."""
    for name in _stages(task):
        table = spark.read.format("delta").load(str(folder / name))
        table.repartition("k").write.format("noop").mode("overwrite").save()
    return {}


def _different(target: Path, by_hand: Path, file: Path) -> int:
    """Count the rows that one of the three results has more often than another."""
    base = duckdb.connect()
    mine, hand = (
        f"SELECT * FROM read_parquet({DeltaTable(str(place)).file_uris()!r})" for place in (target, by_hand)
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
