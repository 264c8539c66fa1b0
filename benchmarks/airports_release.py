"""Merge a later release of an airport list incrementally and compare the result with that of a full merge.

``python -m benchmarks.airports_release [--before RELEASE]`` downloads the earlier release with pip.
"""

from __future__ import annotations

import argparse
import csv
import io
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import airportsdata
import pyarrow as pa
from deltalake import write_deltalake
from demo.nyc_flights import read_table
from pyspark.sql import DataFrame, SparkSession
from vega_datasets import data as vega

from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.merge_source.job import run
from benchmarks.measure import warm_session

CONFIG = {
    "version": 2,
    "datasets": ["world w", "nyc n", "us u"],
    "equality": [
        ["eq", "w.iata", "n.faa"],
        ["eq", "w.lid", "n.faa"],
        ["eq", "w.iata", "u.iata"],
        ["eq", "w.lid", "u.iata"],
        ["eq", "n.faa", "u.iata"],
    ],
}
_COMPARED_COLUMNS = ("_id", "`$ids` AS ids", "to_json(entity) AS entity", "_deleted")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", default="20250909", help="the earlier release (20250909)")
    chosen = parser.parse_args()
    warehouse = Path(tempfile.mkdtemp(prefix="airports-"))
    spark = warm_session()
    try:
        _write_table(warehouse / "nyc", read_table("airports").to_dict("records"), "faa")
        _write_table(warehouse / "us", vega.airports().to_dict("records"), "iata")
        _write_table(warehouse / "world", _fetch_release(chosen.before, warehouse), "icao")
        _print_report("the earlier release", *_run_job(spark, warehouse, "golden"))
        _write_table(warehouse / "world", list(airportsdata.load("ICAO").values()), "icao")
        _print_report("the later one, as a change", *_run_job(spark, warehouse, "golden"))
        _print_report("a full refresh after it", *_run_job(spark, warehouse, "golden", full_refresh=True))
        _print_report("the later one alone", *_run_job(spark, warehouse, "anew"))
        different = _count_differences(
            _read_live(spark, warehouse / "golden"), _read_live(spark, warehouse / "anew")
        )
        print(f"rows that differ between change and merge of everything: {different}")
        return 1 if different else 0
    finally:
        spark.stop()
        shutil.rmtree(warehouse)


def _fetch_release(version: str, folder: Path) -> list[dict[str, Any]]:
    """Download a release of the package and read its list as the package does."""
    wheel = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder / "wheel")]
    subprocess.run([*wheel, f"airportsdata=={version}"], check=True)
    (file,) = (folder / "wheel").glob("*.whl")
    text = zipfile.ZipFile(file).read("airportsdata/airports.csv").decode()
    rows = list(csv.DictReader(io.StringIO(text), quoting=csv.QUOTE_NONNUMERIC))
    shutil.rmtree(folder / "wheel")
    return rows


def _write_table(path: Path, records: list[dict[str, Any]], id_column: str) -> None:
    named = [(record[id_column], record.items()) for record in records]
    rows = [{"_id": id_, **{name: _to_null(value) for name, value in content}} for id_, content in named]
    write_deltalake(str(path), pa.Table.from_pylist(rows), mode="overwrite", schema_mode="overwrite")


def _to_null(value: Any) -> Any:
    return None if value == "" or value != value else value  # noqa: PLR0124 - NaN is treated as NULL


def _run_job(
    spark: SparkSession, warehouse: Path, target: str, *, full_refresh: bool = False
) -> tuple[dict[str, Any], float]:
    start = time.time()
    request = JobRequest(
        job="merge_source",
        config={**CONFIG, "target": target},
        run=RunToken(dag_id="benchmark", run_id=str(start), task_id=target),
        warehouse=str(warehouse),
        started_at=int(start * 1_000_000),
        full_refresh=full_refresh,
    )
    return run(spark, request, Progress(out=str)).as_json(), time.time() - start


def _print_report(label: str, report: dict[str, Any], seconds: float) -> None:
    print(f"{label}: {seconds:.1f} s, changed {report['changed']}, {report['rows']}, {report['counts']}")


def _read_live(spark: SparkSession, target: Path) -> DataFrame:
    return (
        spark.read.format("delta")
        .load(str(target))
        .where("size(_members) > 0")
        .selectExpr(*_COMPARED_COLUMNS)
    )


def _count_differences(left: DataFrame, right: DataFrame) -> int:
    return left.exceptAll(right).count() + right.exceptAll(left).count()


if __name__ == "__main__":
    sys.exit(main())
