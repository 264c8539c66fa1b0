"""Test that after Spark is killed at any moment no process remains and the next run has the expected result.

A test may take more than 20 seconds: it starts its own Spark and merges 400,000 rows.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

from airflow_merge_provider.core.errors import JobError
from airflow_merge_provider.core.protocol import JobFailure, JobResult
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.spark_process.launch import JobProcess
from tests.jobs import probe

pytestmark = pytest.mark.spark

PROBE = Path(probe.__file__)
ROWS = 400_000


class Running:
    """A job in a thread, and its child processes."""

    def __init__(self, request: Any) -> None:
        self.lines: list[str] = []
        self.process = JobProcess(request, script=PROBE, on_line=self.lines.append)
        self.outcome: object = None
        self._thread = threading.Thread(target=self._run_process, daemon=True)
        self._thread.start()

    def _run_process(self) -> None:
        try:
            self.outcome = self.process.run()
        except Exception as error:  # noqa: BLE001 - whatever it was, the test looks at it
            self.outcome = error

    def wait_until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + 300
        while not condition():
            assert self._thread.is_alive(), (self.outcome, self.lines)
            assert time.monotonic() < end, self.lines
            time.sleep(0.001)

    def has_printed(self, text: str) -> Callable[[], bool]:
        return lambda: any(text in line for line in self.lines)

    def list_processes(self) -> list[psutil.Process]:
        java = psutil.Process(self.process._child.pid)
        return [java, *java.children(recursive=True)]

    def wait_for_end(self) -> object:
        self._thread.join(300)
        assert not self._thread.is_alive()
        return self.outcome


def _is_gone(processes: list[psutil.Process]) -> bool:
    _, survivors = psutil.wait_procs(processes, timeout=30)
    return not survivors


@pytest.fixture
def table_paths(spark: SparkSession, tmp_path: Path) -> tuple[str, str]:
    """Create a source, and return its location and that of the target."""
    rows = spark.range(ROWS).selectExpr("id", "id % 7 AS amount", "sha2(CAST(id AS STRING), 256) AS note")
    rows.write.format("delta").save(str(tmp_path / "source"))
    return str(tmp_path / "source"), str(tmp_path / "target")


def _sum_target(spark: SparkSession, target: str) -> tuple[int, int, int]:
    """Return the number of rows, the total and the number of commits."""
    row = spark.sql(f"SELECT count(*) AS n, sum(amount) AS total FROM delta.`{target}`").collect()[0]
    return row.n, row.total, len(list((Path(target) / "_delta_log").glob("*.json")))


def _list_files(target: str) -> set[str]:
    return {file.name for file in Path(target).glob("*.parquet")}


def _build_log_path(target: str, version: int) -> Path:
    return Path(target) / "_delta_log" / f"{version:020d}.json"


@pytest.mark.parametrize(
    ("first", "moment"),
    [(False, "before"), (True, "during"), (False, "during"), (False, "after")],
    ids=["before a merge", "during the first write", "during a merge", "after a merge"],
)
def test_the_next_run_gives_what_one_clean_run_gives(
    spark: SparkSession, table_paths: Any, first: Any, moment: Any
) -> None:
    """Whenever Spark is killed, the retry of the same run ends with the rows and commits of one run."""
    source, target = table_paths
    if not first:
        probe.run(spark, probe.build_request(source, target, "r0"), Progress(lambda _: None))
    version = 0 if first else 1
    request = probe.build_request(source, target)
    before = _list_files(target)
    running = Running(request.model_copy(update={"config": {**request.config, "wait": moment}}))
    if moment == "during":
        running.wait_until(lambda: bool(_list_files(target) - before))
    else:
        running.wait_until(running.has_printed(f"waiting {moment} the commit"))
    family = running.list_processes()

    os.kill(family[0].pid, signal.SIGKILL)

    assert isinstance(running.wait_for_end(), JobError)
    assert _is_gone(family)
    assert _build_log_path(target, version).exists() == (moment == "after")
    report = probe.run(spark, request, Progress(lambda _: None))
    runs = version + 1
    total = sum(row % 7 for row in range(ROWS)) * runs
    assert _sum_target(spark, target) == (ROWS, total, runs)
    assert report.changed is (moment != "after")
    assert report.target.version == version


def test_a_killed_launcher_takes_spark_and_its_driver_with_it(table_paths: Any) -> None:
    """If the launcher is killed with SIGKILL, Spark and its driver end too and stop writing."""
    source, target = table_paths
    request = probe.build_request(source, target, wait="before")
    code = (
        "import sys; from pathlib import Path\n"
        "from airflow_merge_provider.core.protocol import JobRequest\n"
        "from airflow_merge_provider.spark_process.launch import JobProcess\n"
        "request = JobRequest.model_validate_json(sys.argv[1])\n"
        "JobProcess(request, script=Path(sys.argv[2]), on_line=lambda line: print(line, flush=True)).run()\n"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-c", code, request.model_dump_json(), str(PROBE)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert any("waiting before the commit" in line for line in launcher.stdout)
        family = psutil.Process(launcher.pid).children(recursive=True)
        assert {"java"} < {process.name() for process in family}
    finally:
        launcher.kill()
        launcher.stdout.close()
        launcher.wait()

    assert _is_gone(family)


def test_a_job_that_is_ended_on_request_ends_whole(table_paths: Any) -> None:
    """Ending a job, as a stopped task does, ends both processes, and the error has the reason."""
    source, target = table_paths
    running = Running(probe.build_request(source, target, wait="before"))
    running.wait_until(running.has_printed("waiting before the commit"))
    family = running.list_processes()

    running.process.kill_process()

    outcome = running.wait_for_end()
    assert _is_gone(family)
    assert isinstance(outcome, JobError)
    assert outcome.message == "The Spark process was stopped on request"
    assert not Path(target).exists()


def test_a_run_says_little_and_answers(table_paths: Any) -> None:
    """A run prints its steps and no output of Spark, and leaves no file behind."""
    source, target = table_paths
    running = Running(probe.build_request(source, target))

    outcome = running.wait_for_end()

    assert isinstance(outcome, JobResult)
    assert outcome.report.target.version == 0
    assert len(running.lines) <= 20
    assert all(line.startswith("[merge +") for line in running.lines), running.lines


def test_a_run_that_fails_says_little_and_why(table_paths: Any) -> None:
    """The answer of a failed run has one line for the user; the log has no stack trace of the JVM."""
    source, target = table_paths
    running = Running(probe.build_request(source, target, broken=True))

    outcome = running.wait_for_end()

    assert isinstance(outcome, JobFailure)
    assert outcome.message == "amounts are negative"
    assert len(running.lines) <= 20
    assert not any("\tat " in line for line in running.lines), running.lines
    assert not Path(target).exists()
