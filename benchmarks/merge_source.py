"""Measure later runs of the merge source, and their plans, against its full run; compare the results.

``python -m benchmarks.merge_source [--size N] [--changes N …] [--rounds N]`` writes the figures to
``benchmarks/out``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.protocol import JobRequest, RunToken, Until
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.merge_source.job import run
from benchmarks import entities
from benchmarks.measure import OUT, Candidate, measure_size, run_in_turns, warm_session, write_results

GOAL = {1_000_000: 0.5, 5_000_000: 0.2}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1_000_000, help="entities (1000000)")
    parser.add_argument(
        "--changes", type=int, nargs="+", default=[1_000, 10_000, 100_000], help="changed ones"
    )
    parser.add_argument("--rounds", type=int, default=2, help="rounds after the one that warms up (2)")
    chosen = parser.parse_args()
    spark = warm_session(**{"spark.driver.memory": "4g"})
    warehouses = {count: _prepare_warehouse(spark, chosen.size, count) for count in chosen.changes}
    full = Candidate("full run", lambda: _run_full(spark, warehouses[max(warehouses)]))
    later = [
        Candidate(f"{count:,} changed", partial(_run_incremental, spark, warehouse))
        for count, warehouse in warehouses.items()
    ]
    plans = [
        Candidate(f"plan of {count:,} changed", partial(_run_incremental, spark, warehouse, "planned"))
        for count, warehouse in warehouses.items()
    ]
    candidates = [full, *later, *plans]
    run_in_turns(candidates, chosen.rounds)
    different = sum(_count_differences(spark, warehouse) for warehouse in warehouses.values())
    spark.stop()
    medians = {candidate.name: candidate.summarize_rounds()["median"] for candidate in candidates}
    ratios = {f"{run.name} / full": round(medians[run.name] / medians[full.name], 2) for run in later}
    ratios |= {
        f"{plan.name} / its run": round(medians[plan.name] / medians[run.name], 2)
        for plan, run in zip(plans, later, strict=True)
    }
    facts = {"outputs_that_differ": different, "goal": GOAL.get(chosen.size)}
    print(json.dumps([candidate.summarize_rounds() for candidate in candidates], indent=1))
    written = write_results("merge_source", f"{chosen.size:,} entities", candidates, ratios, facts)
    print(f"ratios {ratios}, {facts}\nwritten to {written} and {written.with_suffix('.png')}")
    return 1 if different else 0


def _prepare_warehouse(spark: SparkSession, size: int, count: int) -> Path:
    """Create a warehouse that was merged once and whose datasets have changed since."""
    base = OUT / "data" / f"{size}-versions"
    entities.write_datasets(base, size, versions=True)
    warehouse = OUT / "data" / f"{size}-{count}-changed"
    if (warehouse / "ready").exists():
        return warehouse
    shutil.rmtree(warehouse, ignore_errors=True)
    for name in entities.DATASETS:
        shutil.copytree(base / name, warehouse / name)
    _run_job(spark, warehouse, "merged", "0")
    for name in entities.DATASETS:
        table = DeltaTable(str(warehouse / name)).to_pyarrow_table()
        write_deltalake(
            str(warehouse / name), entities.change_rows(table, count // 3, name.lower()), mode="append"
        )
    (warehouse / "ready").touch()
    return warehouse


def _run_full(spark: SparkSession, warehouse: Path) -> Mapping[str, Any]:
    shutil.rmtree(warehouse / "full", ignore_errors=True)
    return _run_job(spark, warehouse, "full", "0")


def _run_incremental(spark: SparkSession, warehouse: Path, target: str = "later") -> Mapping[str, Any]:
    """Run on a copy of the target from before the change, or plan that run; copying is not measured."""
    copy = warehouse / target
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(warehouse / "merged", copy)
    # The path now contains another table. Only its cached log is removed, not those of the sources.
    jvm = spark.sparkContext._jvm  # noqa: SLF001 - PySpark has no public API for Delta's cache
    path = jvm.org.apache.hadoop.fs.Path(str(copy))
    jvm.org.apache.spark.sql.delta.DeltaLog.invalidateCache(spark._jsparkSession, path)  # noqa: SLF001
    before, start = measure_size(copy), time.perf_counter()
    figures = _run_job(spark, warehouse, target, "1", until="transform" if target == "planned" else "commit")
    seconds = time.perf_counter() - start
    return {**figures, "seconds": seconds, "bytes_written": measure_size(copy) - before}


def _run_job(
    spark: SparkSession, warehouse: Path, target: str, run_id: str, until: Until = "commit"
) -> Mapping[str, Any]:
    config = {
        "version": 2,
        "datasets": [f"{name} {name.lower()}" for name in entities.DATASETS],
        "equality": entities.RULES,
        "target": target,
    }
    token = RunToken(dag_id="benchmark", run_id=run_id, task_id="merge")
    fields: dict[str, Any] = {"config": config, "run": token, "warehouse": str(warehouse), "until": until}
    request = JobRequest(job="merge_source", started_at=0, **fields)
    group = f"{target} {run_id}"
    spark.sparkContext.setJobGroup(group, group)
    before = len(spark.sparkContext.statusTracker().getJobIdsForGroup(group))
    report = run(spark, request, Progress(out=str)).as_json()
    jobs = len(spark.sparkContext.statusTracker().getJobIdsForGroup(group)) - before
    return {"jobs": jobs, "steps": report["seconds"], "counts": report["counts"]}


def _count_differences(spark: SparkSession, warehouse: Path) -> int:
    """Count the live outputs that differ between an incremental and a full run."""
    shutil.rmtree(warehouse / "full", ignore_errors=True)
    _run_job(spark, warehouse, "full", "0")
    full, later = (_read_live(spark, warehouse / name) for name in ("full", "later"))
    return full.exceptAll(later).count() + later.exceptAll(full).count()


def _read_live(spark: SparkSession, table: Path) -> DataFrame:
    rows = spark.read.format("delta").load(str(table)).where("NOT _deleted")
    return rows.selectExpr("_id", "to_json(`$ids`)", "to_json(entity)", "to_json(_members)")


if __name__ == "__main__":
    sys.exit(main())
