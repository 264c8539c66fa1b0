"""The session that jobs get: its settings, its silence, and the same job through a Spark Connect server."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_merge_provider.core.errors import JobError
from airflow_merge_provider.core.protocol import JobFailure, JobResult
from airflow_merge_provider.launch import JobProcess
from tests.jobs import probe
from tests.jobs.delta_log import commits


def test_a_local_session_is_lean_and_strict(spark):
    """UTC, ANSI, few partitions, no UI."""
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"
    assert spark.conf.get("spark.databricks.delta.snapshotPartitions") == "2"
    assert spark.sparkContext.uiWebUrl is None


def test_a_session_finds_the_classes_of_its_last_run(spark):
    """Of the hundred that Spark keeps unless it is told otherwise, a run of more leaves none for the next."""
    jvm = spark._jvm
    generated = jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME().getCount
    codegen = jvm.org.apache.spark.sql.catalyst.expressions.codegen
    no_comments = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap({})

    counts = [generated()]
    for _ in range(2):
        for number in range(150):
            body = f"public Object generate(Object[] references) {{ return {number}; }}"
            codegen.CodeGenerator.compile(codegen.CodeAndComment(body, no_comments))
        counts.append(generated())

    assert counts[1] - counts[0] == 150
    assert counts[2] == counts[1]


def test_a_failed_statement_prints_nothing(spark, capfd):
    """The job reports its errors itself, once."""
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        spark.sql("SELECT 1 / id FROM range(1)").collect()
    with pytest.raises(Exception, match="UNRESOLVED_COLUMN"):
        spark.sql("SELECT nobody")

    assert capfd.readouterr() == ("", "")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Start the server that users start, and end it as they do."""
    with socket.socket() as probe_socket:
        probe_socket.bind(("127.0.0.1", 0))
        port = probe_socket.getsockname()[1]
    command = [sys.executable, "-m", "airflow_merge_provider", "connect-server", "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    said = process.stdout.readline()
    yield re.search(r"sc://\S+", said)[0]
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130


def test_the_same_job_commits_through_a_server(spark, server, tmp_path):
    """A light child process, a session on the server, the same commits and the same conflicts."""
    source, target = str(tmp_path / "source"), str(tmp_path / "target")
    spark.range(3).selectExpr("id", "id + 1 AS amount").write.format("delta").save(source)

    def through(run_id: str, **config) -> JobResult | JobFailure:
        asked = probe.request(source, target, run_id, **config)
        return JobProcess(asked, script=Path(probe.__file__), remote=server, on_line=lambda _: None).run()

    first, again, second = through("r1"), through("r1"), through("r2")
    broken, distrusted = through("r3", broken=True), through("r3", fail=True)

    assert (first.report["changed"], first.report["version"]) == (True, 0)
    assert (again.report["changed"], again.report["version"]) == (False, 0)
    assert (second.report["changed"], second.report["version"]) == (True, 1)
    assert [each["txn"][1] for each in commits(Path(target))] == [1, 2]
    assert (broken.code, broken.message.split("]")[0]) == ("data", "[USER_RAISED_EXCEPTION")
    assert (distrusted.code, distrusted.message) == ("data", "the source is not to be trusted")
    assert spark.sql(f"SELECT sum(amount) AS total FROM delta.`{target}`").collect()[0].total == 12


def test_a_job_that_is_ended_is_ended_on_the_server_too(spark, server, tmp_path):
    """The statement does not go on and commit after the task was stopped."""
    source, target = str(tmp_path / "source"), str(tmp_path / "target")
    spark.range(0, 2, 1, 1).selectExpr("id", "id + 1 AS amount").write.format("delta").save(source)
    asked = probe.request(source, target, slow=True)
    job = JobProcess(asked, script=Path(probe.__file__), remote=server, on_line=lambda _: None)
    ended: list[object] = []

    def run() -> None:
        try:
            ended.append(job.run())
        except JobError as error:
            ended.append(error.message)

    thread = threading.Thread(target=run)
    thread.start()
    end = time.monotonic() + 120
    while not any(Path(target).glob("*.parquet")):
        assert thread.is_alive(), ended
        assert time.monotonic() < end, "the statement does not begin"
        time.sleep(0.05)
    job.kill()
    thread.join(30)

    # Nothing shows that a statement will never commit: this is longer than it would have taken.
    time.sleep(7)
    assert ended == ["The Spark process was ended on request"]
    assert not list(Path(target).glob("_delta_log/*.json"))
