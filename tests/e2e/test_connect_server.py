"""Test a job through a Spark Connect server that the command line starts and stops."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

from airflow_merge_provider.core.errors import JobError
from airflow_merge_provider.core.protocol import JobFailure, JobResult
from airflow_merge_provider.spark_process.connect_token import TOKEN_VARIABLE, add_token
from airflow_merge_provider.spark_process.launch import JobProcess
from tests.jobs import probe
from tests.jobs.delta_log import list_commits

pytestmark = pytest.mark.spark


# A script that ends after its server without having stopped its session.
_SCRIPT = """
import sys
from airflow_merge_provider.jobs.spark.session import get_session
print(get_session().range(3).count(), flush=True)
sys.stdin.read()
"""


def start_server() -> tuple[subprocess.Popen[str], str]:
    """Start a server with the command that users run; return its process and its address."""
    with socket.socket() as probe_socket:
        probe_socket.bind(("127.0.0.1", 0))
        port = probe_socket.getsockname()[1]
    command = [sys.executable, "-m", "airflow_merge_provider", "connect-server", "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        # A shell starts what it runs in the background with this signal ignored, also in its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )
    return process, re.search(r"sc://\S+", process.stdout.readline())[0]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Start the server with the command that users run, and stop it likewise."""
    process, url = start_server()
    yield url
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    process.stdout.close()


# More than 20 seconds: a server and five jobs start.
def test_the_same_job_commits_through_a_server(spark: SparkSession, server: Any, tmp_path: Path) -> None:
    """Through a server, a child process without a JVM makes the same commits and meets the same conflicts."""
    source, target = str(tmp_path / "source"), str(tmp_path / "target")
    spark.range(3).selectExpr("id", "id + 1 AS amount").write.format("delta").save(source)

    def run_through(run_id: str, **config: Any) -> JobResult | JobFailure:
        request = probe.build_request(source, target, run_id, **config)
        return JobProcess(request, script=Path(probe.__file__), remote=server, on_line=lambda _: None).run()

    first, again, second = run_through("r1"), run_through("r1"), run_through("r2")
    broken, distrusted = run_through("r3", broken=True), run_through("r3", fail=True)

    assert (first.report.changed, first.report.target.version) == (True, 0)
    assert (again.report.changed, again.report.target.version) == (False, 0)
    assert (second.report.changed, second.report.target.version) == (True, 1)
    assert [commit["txn"][1] for commit in list_commits(Path(target))] == [1, 2]
    assert (broken.code, broken.message) == ("data", "amounts are negative")
    assert (distrusted.code, distrusted.message) == ("data", "the source is not to be trusted")
    assert spark.sql(f"SELECT sum(amount) AS total FROM delta.`{target}`").collect()[0].total == 12


def test_who_has_not_the_token_is_refused(server: Any) -> None:
    """A client without the token is rejected before anything runs.

    A client of the same user finds the token by the port.
    """
    code = (
        "import sys; from pyspark.sql import SparkSession\n"
        "print(SparkSession.builder.remote(sys.argv[1]).getOrCreate().range(3).count())"
    )
    url, token = server, add_token(server)[1]
    assert token
    # PySpark dials both addresses of localhost: nobody else can listen on the other one.
    port = int(url.rpartition(":")[2])
    with socket.socket(socket.AF_INET6) as other, pytest.raises(OSError, match="in use"):
        other.bind(("::1", port))
    bare = {name: value for name, value in os.environ.items() if name not in {TOKEN_VARIABLE, "SPARK_REMOTE"}}

    def count_rows(**more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, url]
        return subprocess.run(command, env=bare | more, capture_output=True, text=True, check=False)

    without, wrong, right = count_rows(), count_rows(**{TOKEN_VARIABLE: "guessed"}), count_rows(**token)

    assert (without.returncode, wrong.returncode, right.returncode) == (1, 1, 0)
    assert "UNAUTHENTICATED" in without.stderr
    assert "UNAUTHENTICATED" in wrong.stderr
    assert right.stdout == "3\n"


# May take more than 20 seconds: a statement has to run, and the test checks that it does not commit.
def test_a_job_that_is_ended_is_ended_on_the_server_too(
    spark: SparkSession, server: Any, tmp_path: Path
) -> None:
    """Stopping the task cancels its statement on the server, which does not commit afterwards."""
    source, target = str(tmp_path / "source"), str(tmp_path / "target")
    spark.range(0, 2, 1, 1).selectExpr("id", "id + 1 AS amount").write.format("delta").save(source)
    request = probe.build_request(source, target, slow=True)
    job = JobProcess(request, script=Path(probe.__file__), remote=server, on_line=lambda _: None)
    ended: list[object] = []

    def run_job() -> None:
        try:
            ended.append(job.run())
        except JobError as error:
            ended.append(error.message)

    thread = threading.Thread(target=run_job)
    thread.start()
    end = time.monotonic() + 120
    while not any(Path(target).glob("*.parquet")):
        assert thread.is_alive(), ended
        assert time.monotonic() < end, "the statement does not begin"
        time.sleep(0.05)
    job.kill_process()
    thread.join(30)

    # No event shows that a statement will never commit: this wait is longer than the statement takes.
    time.sleep(7)
    assert ended == ["The Spark process was stopped on request"]
    assert not list(Path(target).glob("_delta_log/*.json"))


# More than 20 seconds: a server starts, and its clients look for it for a while after it was killed.
def test_a_server_that_is_killed_is_reported_soon(spark: SparkSession, tmp_path: Path) -> None:
    """A run whose server is killed ends within 30 seconds with a retryable error; a script ends likewise."""
    source, target = str(tmp_path / "source"), str(tmp_path / "target")
    spark.range(0, 2, 1, 1).selectExpr("id", "id + 1 AS amount").write.format("delta").save(source)
    process, url = start_server()
    address, token = add_token(url)
    script = subprocess.Popen(
        [sys.executable, "-c", _SCRIPT],
        env={**os.environ, **token, "SPARK_REMOTE": address},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert script.stdout.readline() == "3\n"
    request = probe.build_request(source, target, slow=True)
    job = JobProcess(request, script=Path(probe.__file__), remote=url, on_line=lambda _: None)
    with ThreadPoolExecutor(1) as threads:
        outcome = threads.submit(run_job, job)
        wait_for_files(target)
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        begin = time.monotonic()
        error = outcome.result()

    assert time.monotonic() - begin < 30
    assert error.retryable
    assert "Spark Connect server" in error.message
    assert "not known" in error.message
    begin = time.monotonic()
    script.communicate("")
    assert time.monotonic() - begin < 10
    process.communicate()


def run_job(job: JobProcess) -> Any:
    """Return how a run has failed."""
    try:
        return job.run()
    except JobError as error:
        return error


def wait_for_files(target: str) -> None:
    """Wait until a run writes its first file."""
    end = time.monotonic() + 120
    while not any(Path(target).glob("*.parquet")):
        assert time.monotonic() < end, "the statement does not begin"
        time.sleep(0.05)
