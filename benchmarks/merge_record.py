"""Measure MergeRecord against plain Spark (read and write; read and shuffle) and a copy loop on equal files.

``python -m benchmarks.merge_record [--files N] [--records N] [--groups N] [--rounds N] [--weather]`` writes
the figures to ``benchmarks/out``. ``--weather`` uses hourly weather files of three airports.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from demo.nyc_flights import read_table
from pyspark.sql import SparkSession

from airflow_merge_provider.core.merge_record.landing import SIDECAR
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.merge_record.job import run
from benchmarks.measure import OUT, Candidate, run_in_turns, warm_session, write_results

# Limits: 2.0 for 10 000 files of 100 records (read and write), 1.4 for 50 groups (read and shuffle).
GOALS = {"read and written": 2.0, "read and shuffled": 1.4}
SCHEMA = "id STRING, station STRING, temp DOUBLE, wind DOUBLE, gust DOUBLE, text STRING"
_DAY = 86_400
_START = 1_700_000_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000, help="files (10000)")
    parser.add_argument("--records", type=int, default=100, help="records in each (100)")
    parser.add_argument("--groups", type=int, default=300, help="values of the correlation attribute (300)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds after the one that warms up (3)")
    parser.add_argument("--weather", action="store_true", help="real files instead")
    chosen = parser.parse_args()
    if chosen.weather:
        measured, files, folder = "weather", _read_weather(), OUT / "data" / "weather"
    else:
        numbers = (chosen.files, chosen.records, chosen.groups)
        measured = "{:,} files of {:,} records, {:,} groups".format(*numbers)
        files = _build_readings(*numbers)
        folder = OUT / "data" / "files-{}-{}-{}".format(*numbers)
    truth = _write_files(folder / "kept", files)
    spark = warm_session()
    candidates = [
        Candidate("operator", lambda: _run_ours(spark, folder)),
        Candidate("Spark reads and writes", lambda: _run_plain(spark, folder)),
        Candidate("Spark reads and shuffles", lambda: _run_shuffle(spark, folder)),
        Candidate("Python loop", lambda: _run_loop(folder)),
    ]
    run_in_turns(candidates, chosen.rounds)
    spark.stop()
    wrong = _count_wrong(folder, truth)
    provider, plain, shuffled, loop = (candidate.summarize_rounds()["median"] for candidate in candidates)
    ratios = {
        "operator / Spark reads and writes": round(provider / plain, 2),
        "operator / Spark reads and shuffles": round(provider / shuffled, 2),
        "operator / Python loop": round(provider / loop, 2),
        "planning / operator": round(candidates[0].rounds[-1]["steps"]["plan"] / provider, 3),
    }
    facts = {"records": truth.total(), "records_not_exactly_once": wrong, "goals": GOALS}
    print(json.dumps([candidate.summarize_rounds() for candidate in candidates], indent=1))
    written = write_results("merge_record", measured, candidates, ratios, facts)
    print(f"ratios {ratios}, {facts}\nwritten to {written} and {written.with_suffix('.png')}")
    return 1 if wrong else 0


def _build_readings(files: int, records: int, groups: int) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for number in range(files):
        station = f"s{number * 7919 % groups}"
        rows = [
            {
                "id": f"{number}-{index}", "station": station, "temp": number % 40 + 0.5,
                "wind": index % 30 + 0.25, "gust": None if index % 3 else 1.5,
                "text": "clear, with a light breeze from the sea",
            }
            for index in range(records)
        ]  # fmt: skip
        yield f"station={station}/{number:06d}.json", rows


def _read_weather() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for number, row in enumerate(read_table("weather").to_dict("records")):
        values = (row.get(name) for name in ("temp", "wind_speed", "wind_gust"))
        temp, wind, gust = (None if value != value else value for value in values)  # noqa: PLR0124 - NaN
        measured = {"temp": temp, "wind": wind, "gust": gust, "text": str(row["time_hour"])}
        reading = {"id": str(number), "station": row["origin"], **measured}
        yield f"station={row['origin']}/{number:06d}.json", [reading]


def _write_files(folder: Path, files: Iterator[tuple[str, list[dict[str, Any]]]]) -> Counter[str]:
    """Write the files once, a second apart; return the expected number of occurrences of each record."""
    truth: Counter[str] = Counter()
    for number, (name, rows) in enumerate(files):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        os.utime(path, (_START + number, _START + number))
        truth.update(row["id"] for row in rows)
    return truth


def _run_ours(spark: SparkSession, folder: Path) -> Mapping[str, Any]:
    for name in ("in", "merged", "failure", "original", "state"):
        shutil.rmtree(folder / name, ignore_errors=True)
    shutil.copytree(folder / "kept", folder / "in", copy_function=os.link)
    config = {
        "source": "in", "merged": "merged", "failure": "failure", "original": "original",
        "state_path": "state",
        "reader": {"format": "json", "schema": SCHEMA}, "correlation_attribute_name": "station",
        "max_records": 1_000_000, "max_bins": "unlimited", "max_bin_age": "1 hour",
    }  # fmt: skip
    request = JobRequest(
        job="merge_record",
        config=config,
        run=RunToken(dag_id="benchmark", run_id="1", task_id="merge"),
        warehouse=str(folder),
        started_at=(_START + _DAY) * 1_000_000,
    )
    # Flush pending writes of the input files, so that they do not count for the run.
    os.sync()
    start = time.perf_counter()
    report = run(spark, request, Progress(out=str)).as_json()
    seconds = time.perf_counter() - start
    state = sum(file.stat().st_size for file in (folder / "state").rglob("*") if file.is_file())
    merged = report["counts"]["merged"]
    return {"seconds": seconds, "steps": report["seconds"], "merged": merged, "state_bytes": state}


def _run_plain(spark: SparkSession, folder: Path) -> Mapping[str, Any]:
    rows = spark.read.schema(SCHEMA).option("recursiveFileLookup", value=True).json(str(folder / "kept"))
    rows.write.mode("overwrite").json(str(folder / "plain"))
    return {}


def _run_shuffle(spark: SparkSession, folder: Path) -> Mapping[str, Any]:
    """Read the rows and shuffle them by group, without using the result."""
    rows = spark.read.schema(SCHEMA).option("recursiveFileLookup", value=True).json(str(folder / "kept"))
    rows.repartition("station").write.format("noop").mode("overwrite").save()
    return {}


def _run_loop(folder: Path) -> Mapping[str, Any]:
    """Copy the bytes of each group into one file, without parsing, checks or stored state."""
    out = folder / "loop"
    out.mkdir(exist_ok=True)
    for group in (folder / "kept").iterdir():
        parts = [file.read_bytes() for file in sorted(group.iterdir())]
        (out / f"{group.name}.json").write_bytes(b"".join(parts))
    return {}


def _count_wrong(folder: Path, truth: Counter[str]) -> int:
    """Count the records that were not written exactly once, or not in the order of their group."""
    counts: Counter[str] = Counter()
    expected = {file.name: file.read_bytes() for file in (folder / "loop").iterdir()}
    disorder = 0
    for file in (folder / "merged").glob("merged-*"):
        if file.name.endswith(SIDECAR):
            continue
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        counts.update(row["id"] for row in rows)
        lines = expected[f"station={rows[0]['station']}.json"].splitlines()
        disorder += [row["id"] for row in rows] != [json.loads(line)["id"] for line in lines]
    return (counts - truth).total() + (truth - counts).total() + disorder


if __name__ == "__main__":
    sys.exit(main())
