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
import pytest
from pyspark.sql import SparkSession

from airflow_merge_provider.core.errors import JobError
from airflow_merge_provider.launch import JobProcess
from tests.jobs.joiner import probe
from tests.jobs.joiner.lake import TARGET, Lake

ROWS = 300_000
SETTINGS = {
    "inputs": {"a": "a", "b": "b"},
    "join_keys": "a.id = b.id",
    "required_inputs": None,
    "join_type": "innerjoin",
    "selected_fields": "a.id, b.note",
}


# More than 20 seconds: three Spark processes start and are killed.
def test_a_killed_run_is_made_good_by_its_retry(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The retry completes a run that was killed while it wrote a table or after it staged all its files.

    Staged means that no file has been moved to its final place.
    """
    rows = spark.range(ROWS).selectExpr("id", "sha2(CAST(id AS STRING), 256) AS note")
    for name in ("a", "b"):
        rows.write.format("delta").save(str(tmp_path / name))
    target = tmp_path / TARGET

    table = Lake(spark, tmp_path, **SETTINGS)
    kill_join(table, lambda _: any(target.glob("*.parquet")))
    assert not any((target / "_delta_log").glob("*.json"))
    assert table.run_job("r")["counts"]["outputs"] == ROWS
    assert table.read_version() == 0

    for moment, runs in (("record_run", 0), ("settle_run", 1)):
        files = Lake(spark, tmp_path, **SETTINGS, target=f"by_{moment}", target_format="parquet")
        monkeypatch.setenv("MERGE_PROBE", moment)
        kill_join(files, lambda lines: "waiting" in lines)
        assert not any((tmp_path / f"by_{moment}").glob("*.parquet"))
        assert len(list((tmp_path / f"by_{moment}").glob("_merge/ledger/*.json"))) == runs
        report = files.run_job("r")
        assert (report["changed"], report["target"]["version"]) == (True, 1)
        assert spark.read.parquet(str(tmp_path / f"by_{moment}")).distinct().count() == ROWS


def kill_join(join: Lake, condition: Callable[[list[str]], bool]) -> None:
    """Run a join in a process of its own and kill its JVM as soon as a condition holds."""
    lines: list[str] = []
    process = JobProcess(join.build_request("r"), script=Path(probe.__file__), on_line=lines.append)
    ended: list[Any] = []

    def run_join() -> None:
        try:
            ended.append(process.run())
        except JobError as error:
            ended.append(error)

    thread = threading.Thread(target=run_join, daemon=True)
    thread.start()
    until = time.monotonic() + 300
    while not condition(lines):
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
