"""Test joins that are killed: readers see a run completely or not at all, and its retry completes it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession

from airflow_merge_provider.core.errors import JobError
from airflow_merge_provider.spark_process.launch import JobProcess
from tests.jobs.joiner.lake import TARGET, Lake

ROWS = 300_000
SETTINGS = {
    "inputs": {"a": "a", "b": "b"},
    "join_keys": "a.id = b.id",
    "required_inputs": None,
    "join_type": "innerjoin",
    "selected_fields": "a.id, b.note",
}


def test_a_killed_run_is_made_good_by_its_retry(spark: SparkSession, tmp_path: Path) -> None:
    """The retry completes a run that was killed while it wrote its files, before its commit."""
    rows = spark.range(ROWS).selectExpr("id", "sha2(CAST(id AS STRING), 256) AS note")
    for name in ("a", "b"):
        rows.write.format("delta").save(str(tmp_path / name))
    target = tmp_path / TARGET

    table = Lake(spark, tmp_path, **SETTINGS)
    kill_join(table, lambda: any(target.glob("*.parquet")))
    assert not any((target / "_delta_log").glob("*.json"))
    assert table.run_job("r")["counts"]["outputs"] == ROWS
    assert table.read_version() == 0


def kill_join(join: Lake, condition: Callable[[], bool]) -> None:
    """Run a join in a process of its own and kill its JVM as soon as a condition holds."""
    lines: list[str] = []
    process = JobProcess(join.build_request("r"), on_line=lines.append)
    ended: list[Any] = []

    def run_join() -> None:
        try:
            ended.append(process.run())
        except JobError as error:
            ended.append(error)

    thread = threading.Thread(target=run_join, daemon=True)
    thread.start()
    until = time.monotonic() + 300
    while not condition():
        assert thread.is_alive(), (ended, lines)
        assert time.monotonic() < until, lines
        time.sleep(0.001)
    child = process._child
    assert child is not None
    family = [psutil.Process(child.pid), *psutil.Process(child.pid).children(recursive=True)]
    os.kill(child.pid, signal.SIGKILL)
    thread.join(60)
    assert isinstance(ended[0], JobError)
    assert psutil.wait_procs(family, timeout=30)[1] == []
