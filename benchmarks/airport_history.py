"""Load five releases of real airport lists in order, and shuffled with a duplicate; compare the histories.

``python -m benchmarks.airport_history [--seed N]`` downloads the releases with pip into ``benchmarks/out``.
Both histories must be equal.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import shutil
import subprocess
import sys
import zipfile
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.merge_load.job import run
from benchmarks.measure import OUT, warm_session

# The version of a release is its date.
RELEASES = ("20240415", "20241001", "20250523", "20250909", "20260905")
_HISTORY = {"strategy": "scd2", "natural_key": "icao", "current_column": "is_current"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the shuffled order (1)")
    chosen = parser.parse_args()
    folder = OUT / "data" / "airport_history"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for release in RELEASES:
        pq.write_table(_read_airports(release), folder / f"{release}.parquet")
    spark = warm_session()
    shuffled = list(RELEASES)
    random = Random(chosen.seed)  # noqa: S311 - shuffles the order, no security use
    random.shuffle(shuffled)
    shuffled.insert(random.randrange(len(shuffled)), random.choice(shuffled))
    orders = {"ordered": list(RELEASES), "shuffled": shuffled}
    for target, releases in orders.items():
        for release in releases:
            _print_report(target, release, _load_release(spark, folder, target, release))
        check = {"strategy": "scd2-check", "target": target, "source": _build_source(folder, RELEASES[-1])}
        print(f"{target}: {json.dumps(_run_job(spark, folder, check)['counts'])}")
    different = _count_differences(
        *(spark.read.format("delta").load(str(folder / target)) for target in orders)
    )
    print(f"versions that only one of the histories has: {different}")
    spark.stop()
    return 1 if different else 0


def _read_airports(release: str) -> pa.Table:
    """Return the airports of a release; its wheel contains them as text."""
    folder = OUT / "wheels"
    wheel = next(folder.glob(f"airportsdata-{release}-*.whl"), None)
    if wheel is None:
        arguments = [f"airportsdata=={release}", "--no-deps", "--no-binary=:none:", "-d", str(folder)]
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", *arguments], check=True)
        wheel = next(folder.glob(f"airportsdata-{release}-*.whl"))
    with zipfile.ZipFile(wheel) as files:
        text = files.read("airportsdata/airports.csv").decode("utf-8")
    rows = [row for row in csv.DictReader(io.StringIO(text)) if row["icao"]]
    return pa.Table.from_pylist(rows)


def _build_source(folder: Path, release: str) -> dict[str, str]:
    return {"dataset": str(folder / f"{release}.parquet"), "format": "parquet"}


def _load_release(spark: SparkSession, folder: Path, target: str, release: str) -> dict[str, Any]:
    at = datetime.strptime(release, "%Y%m%d").date().isoformat()  # noqa: DTZ007 - a date without a time
    return _run_job(
        spark,
        folder,
        {
            **_HISTORY,
            "source": _build_source(folder, release),
            "target": target,
            "boundary_timestamp": at,
            "on_late": "repair",
        },
    )


def _run_job(spark: SparkSession, folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    request = JobRequest(
        job="merge_load",
        config=config,
        run=RunToken(dag_id="show", run_id=str(datetime.now().timestamp()), task_id="load"),  # noqa: DTZ005
        warehouse=str(folder),
        started_at=0,
    )
    return run(spark, request, Progress(out=lambda _: None)).as_json()


def _print_report(target: str, release: str, report: dict[str, Any]) -> None:
    seconds = sum(report["seconds"].values())
    print(f"{target} {release}: {json.dumps(report['counts'])} in {seconds:.1f} s", flush=True)


def _count_differences(left: DataFrame, right: DataFrame) -> int:
    right = right.select(*left.columns)
    return left.exceptAll(right).count() + right.exceptAll(left).count()


if __name__ == "__main__":
    sys.exit(main())
