"""Measure the merge source's first run against DuckDB with scipy and Spark's minimum; compare the results.

``python -m benchmarks.merge_source_first_run [--size N] [--values columns] [--rounds N]`` runs the methods in
turns and writes the figures to ``benchmarks/out``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession, functions as F

from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.merge_source.job import run
from benchmarks import entities
from benchmarks.measure import OUT, Candidate, measure_size, run_in_turns, warm_session, write_results
from benchmarks.peers.duckdb_merge import PROPERTIES

GOAL = 1.3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1_000_000, help="entities (1000000)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds after the one that warms up (3)")
    parser.add_argument(
        "--values", choices=["entity", "columns"], default="entity", help="the form of the target"
    )
    chosen = parser.parse_args()
    folder = OUT / "data" / f"{chosen.size}"
    clusters = entities.write_datasets(folder, chosen.size)
    spark = warm_session()
    target, file, floor = folder / "target", folder / "duckdb.parquet", folder / "floor"
    candidates = [
        Candidate("operator", lambda: _run_ours(spark, folder, target, chosen.values)),
        Candidate("DuckDB + scipy", lambda: _run_duckdb(folder, file)),
        Candidate("Spark reads, hashes, writes", lambda: _run_floor(spark, folder, floor)),
    ]
    run_in_turns(candidates, chosen.rounds)
    different = _count_differences(spark, target, file, chosen.values)
    spark.stop()
    provider, peer, least = (candidate.summarize_rounds()["median"] for candidate in candidates)
    ratios = {
        "operator / DuckDB": round(provider / peer, 2),
        "operator / Spark floor": round(provider / least, 2),
    }
    counted = candidates[0].rounds[-1]["golden"]
    facts = {"clusters": counted, "clusters_in_truth": clusters, "rows_that_differ": different, "goal": GOAL}
    print(json.dumps([candidate.summarize_rounds() for candidate in candidates], indent=1))
    written = write_results(
        "merge_source_first_run", f"{chosen.size:,} entities, {chosen.values}", candidates, ratios, facts
    )
    print(f"ratios {ratios}, {facts}\nwritten to {written} and {written.with_suffix('.png')}")
    return 1 if different or counted != clusters else 0


def _run_ours(spark: SparkSession, folder: Path, target: Path, values: str) -> Mapping[str, Any]:
    shutil.rmtree(target, ignore_errors=True)
    config = {
        "version": 2,
        "datasets": [f"{name} {name.lower()}" for name in entities.DATASETS],
        "equality": entities.RULES,
        "target": target.name,
        "values": values,
    }
    request = JobRequest(
        job="merge_source",
        config=config,
        run=RunToken(dag_id="benchmark", run_id="1", task_id="merge"),
        warehouse=str(folder),
        started_at=0,
    )
    spark.sparkContext.setJobGroup("ours", "ours")
    before = len(spark.sparkContext.statusTracker().getJobIdsForGroup("ours"))
    report = run(spark, request, Progress(out=str)).as_json()
    jobs = len(spark.sparkContext.statusTracker().getJobIdsForGroup("ours")) - before
    spark.sparkContext.setJobGroup("others", "others")
    return {
        "jobs": jobs,
        "bytes_written": measure_size(target),
        "steps": report["seconds"],
        "golden": report["counts"]["live_rows"],
    }


def _run_duckdb(folder: Path, file: Path) -> Mapping[str, Any]:
    """Run the peer in a separate process; its imports are not measured."""
    command = [sys.executable, "-m", "benchmarks.peers.duckdb_merge", str(folder), str(file)]
    figures = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {"seconds": figures["seconds"], "bytes_written": file.stat().st_size}


def _run_floor(spark: SparkSession, folder: Path, floor: Path) -> Mapping[str, Any]:
    tables = [spark.read.format("delta").load(str(folder / name)) for name in entities.DATASETS]
    rows = reduce(DataFrame.unionByName, tables)
    rows.withColumn("hash", F.xxhash64(*rows.columns)).write.mode("overwrite").parquet(str(floor))
    return {"bytes_written": measure_size(floor)}


def _count_differences(spark: SparkSession, target: Path, file: Path, values: str) -> int:
    """Compare all rows with the peer's: id, position, ids, and every property."""
    table = spark.read.format("delta").load(str(target))
    # The peer's columns are lists; a single value of an entity is not a list.
    entity = F.to_json("entity" if values == "entity" else F.struct(*PROPERTIES)).alias("entity")
    mine = table.select("_id", "_updated", "$ids", entity).toArrow()
    theirs = {row["_id"]: row for row in pq.read_table(file).to_pylist()}
    wrong = abs(len(mine) - len(theirs))
    for row in mine.to_pylist():
        other = theirs.get(row["_id"], {})
        shape = _to_value if values == "entity" else list
        expected = {name: shape(other[name]) for name in PROPERTIES if other.get(name)}
        same = (row["_updated"], row["$ids"]) == (other.get("_updated"), other.get("$ids"))
        wrong += not (same and json.loads(row["entity"]) == expected)
    return wrong


def _to_value(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else values


if __name__ == "__main__":
    sys.exit(main())
