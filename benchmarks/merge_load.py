"""Measure merge loads against delta-rs, DuckDB with dlt's statements and a standard MERGE; compare results.

``python -m benchmarks.merge_load [--size N] [--rounds N] [--suite NAME]`` runs the methods in turns and
writes the figures to ``benchmarks/out``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.merge_load.job import run
from benchmarks import rows
from benchmarks.measure import OUT, Candidate, measure_size, run_in_turns, warm_session, write_results
from benchmarks.peers import load_peers

GOALS = {
    "scd2": {"operator / DuckDB": 1.25, "operator / textbook": 0.25, "operator, changes / operator": 0.4},
    "by key": {"operator / delta-rs": 1.5, "delete-insert / delta-rs": 1.5, "insert-only / operator": 0.6},
}
_RUNS = itertools.count(1)
_DAYS = ("2024-01-01", "2024-01-02", "2024-01-03")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1_000_000, help="rows of the stored table (1000000)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds after the one that warms up (3)")
    parser.add_argument("--suite", choices=sorted(SUITES), help="one task instead of all")
    chosen = parser.parse_args()
    spark = warm_session()
    wrong = 0
    for name in [chosen.suite] if chosen.suite else sorted(SUITES):
        folder = OUT / "data" / f"load_{name}_{chosen.size}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        wrong += SUITES[name](spark, folder, chosen.size, chosen.rounds)
    spark.stop()
    return 1 if wrong else 0


def _measure_scd2(spark: SparkSession, folder: Path, size: int, rounds: int) -> int:
    """Load a snapshot with 1 % changed rows into a history in which a fifth of the versions is closed."""
    first = rows.build_rows(np.arange(size), 1)
    second = rows.change_rows(first, 0.2, 2)
    third = rows.drop_rows(rows.change_rows(second, 0.01, 3), 0.001, 4)
    third = pa.concat_tables([third, rows.build_rows(np.arange(size, size + size // 1000), 5)])
    files = []
    for day, content in zip(_DAYS, (first, second, third), strict=True):
        files.append((day, folder / f"{day}.parquet"))
        pq.write_table(content, files[-1][1])
    config = {"strategy": "scd2", "natural_key": "id", "target": "stored"}
    for day, file in files[:2]:
        _load_rows(spark, folder, {**config, "source": _build_source(file), "boundary_timestamp": day})
    plain = spark.read.format("delta").load(str(folder / "stored")).drop("_row_hash")
    plain.write.format("delta").save(str(folder / "plain"))
    load_peers.duckdb_history(folder / "stored.duckdb", files[:2])
    day, file = files[2]

    def run_ours() -> Mapping[str, Any]:
        _copy_table(folder / "stored", folder / "target")
        run_config = {**config, "source": _build_source(file), "boundary_timestamp": day, "target": "target"}
        return _load_rows(spark, folder, run_config)

    def run_peer() -> Mapping[str, Any]:
        shutil.copy(folder / "stored.duckdb", folder / "target.duckdb")
        return _time_work(lambda: load_peers.duckdb_scd2(folder / "target.duckdb", day, file))

    _load_rows(spark, folder, {**config, "source": _build_source(files[0][1]), "boundary_timestamp": _DAYS[0],
                          "target": "followed", "mode": "changes"})  # fmt: skip
    pq.write_table(rows.build_batch(size, max(size // 100, 10), 6), folder / "changes.parquet")

    def run_changes() -> Mapping[str, Any]:
        _copy_table(folder / "followed", folder / "changed")
        source = _build_source(folder / "changes.parquet")
        run_config = {**config, "source": source, "boundary_timestamp": day, "target": "changed"}
        return _load_rows(spark, folder, {**run_config, "mode": "changes"})

    def run_textbook() -> Mapping[str, Any]:
        _copy_table(folder / "plain", folder / "textbook")
        return _time_work(lambda: load_peers.textbook_scd2(spark, folder / "textbook", day, file))

    candidates = [
        Candidate("operator", run_ours),
        Candidate("DuckDB", run_peer),
        Candidate("operator, changes", run_changes),
        Candidate("textbook", run_textbook),
    ]
    run_in_turns(candidates, rounds)
    load_peers.duckdb_rows(folder / "target.duckdb", folder / "duckdb.parquet")
    mine = spark.read.format("delta").load(str(folder / "target")).drop("_row_hash")
    wrong = _count_differences(mine, spark.read.parquet(str(folder / "duckdb.parquet")))
    wrong += _count_differences(mine, spark.read.format("delta").load(str(folder / "textbook")))
    return _print_figures(f"scd2, {size:,} rows", candidates, wrong, GOALS["scd2"])


def _by_key(spark: SparkSession, folder: Path, size: int, rounds: int, *, part: int) -> int:
    """Load a part of the stored rows; a tenth of the load is new."""
    rows.write_rows(folder / "first", rows.build_rows(np.arange(size), 1))
    content = rows.build_batch(size, max(size // part, 10), 2)
    pq.write_table(content, folder / "batch.parquet")
    upsert = {"strategy": "upsert", "primary_key": "id"}
    replaced = {"strategy": "delete-insert", "primary_key": "id"}
    _load_rows(spark, folder, {**upsert, "target": "stored", "source": "first"})

    def ours(config: Mapping[str, Any], target: str) -> Mapping[str, Any]:
        _copy_table(folder / "stored", folder / target)
        return _load_rows(
            spark, folder, {**config, "source": _build_source(folder / "batch.parquet"), "target": target}
        )

    def peer() -> Mapping[str, Any]:
        _copy_table(folder / "first", folder / "deltars")
        return _time_work(lambda: load_peers.deltars_upsert(folder / "deltars", content))

    candidates = [
        Candidate("insert-only", lambda: ours({**upsert, "variant": "insert-only"}, "inserted")),
        Candidate("operator", lambda: ours(upsert, "target")),
        Candidate("delete-insert", lambda: ours(replaced, "replaced")),
        Candidate("delta-rs", peer),
    ]
    run_in_turns(candidates, rounds)
    theirs = spark.read.format("delta").load(str(folder / "deltars"))
    mine = [spark.read.format("delta").load(str(folder / name)) for name in ("target", "replaced")]
    wrong = sum(_count_differences(frame, theirs) for frame in mine)
    return _print_figures(f"by key, {size:,} rows, a {part}th changed", candidates, wrong, GOALS["by key"])


SUITES: dict[str, Callable[[SparkSession, Path, int, int], int]] = {
    "scd2": _measure_scd2,
    "by_key_100": partial(_by_key, part=100),
    "by_key_10": partial(_by_key, part=10),
}


def _load_rows(spark: SparkSession, folder: Path, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Run a job and return its time, without the copy of the stored table."""
    request = JobRequest(
        job="merge_load",
        config=dict(config),
        # Each load needs its own run id: the copied table would identify an equal id as a retry.
        run=RunToken(dag_id="benchmark", run_id=str(next(_RUNS)), task_id="load"),
        warehouse=str(folder),
        started_at=0,
    )
    report: dict[str, Any] = {}
    tracker = spark.sparkContext.statusTracker()
    spark.sparkContext.setJobGroup("ours", "ours")
    before = len(tracker.getJobIdsForGroup("ours"))
    written = measure_size(folder / str(config["target"]))
    took = _time_work(lambda: report.update(run(spark, request, Progress(out=str)).as_json()))
    jobs = len(tracker.getJobIdsForGroup("ours")) - before
    spark.sparkContext.setJobGroup("others", "others")
    return {
        **took,
        "jobs": jobs,
        "bytes_written": measure_size(folder / str(config["target"])) - written,
        "steps": report["seconds"],
        "counts": report["counts"],
    }


def _time_work(work: Callable[[], object]) -> dict[str, Any]:
    start = time.perf_counter()
    work()
    return {"seconds": time.perf_counter() - start}


def _build_source(file: Path) -> dict[str, str]:
    return {"dataset": str(file), "format": "parquet"}


def _copy_table(stored: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(stored, target)


def _count_differences(mine: DataFrame, theirs: DataFrame) -> int:
    """Count the rows that only one side has."""
    same = [theirs[name].cast(mine.schema[name].dataType).alias(name) for name in mine.columns]
    theirs = theirs.select(*same)
    return mine.exceptAll(theirs).count() + theirs.exceptAll(mine).count()


def _print_figures(measured: str, candidates: list[Candidate], wrong: int, goals: Mapping[str, float]) -> int:
    """Write and print the figures, with the ratios that have limits."""
    figures = {candidate.name: candidate.summarize_rounds()["median"] for candidate in candidates}
    ratios = {}
    for name in goals:
        numerator, _, denominator = name.partition(" / ")
        ratios[name] = round(figures[numerator] / figures[denominator], 2)
    facts = {"rows_that_differ": wrong, "goals": dict(goals)}
    print(json.dumps([candidate.summarize_rounds() for candidate in candidates], indent=1))
    written = write_results("merge_load", measured, candidates, ratios, facts)
    print(f"ratios {ratios}, {facts}\nwritten to {written} and {written.with_suffix('.png')}")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
