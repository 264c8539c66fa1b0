"""Test the result file for a request file: every way in which a run can end has a result."""

from __future__ import annotations

import gc
import json
import re
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_merge_provider.core.errors import ConfigError, Problem
from airflow_merge_provider.core.protocol import JobFailure, JobResult, parse_result
from airflow_merge_provider.jobs.run import entry
from airflow_merge_provider.jobs.spark import errors
from airflow_merge_provider.jobs.spark.session import override_settings
from tests.fakes import build_report
from tests.jobs import probe


@pytest.fixture
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> Any:
    """Return the result of a request, from a job in this process whose session outlives the run."""
    monkeypatch.setattr(entry, "die_with_parent", lambda: None)
    lent = SimpleNamespace(sql=spark.sql, conf=spark.conf, stop=lambda: None)
    monkeypatch.setattr(entry, "_open_session", lambda conf: lent)

    def answer_request(run: Any) -> tuple[int, JobResult | JobFailure]:
        request_path, result_path = tmp_path / "request.json", tmp_path / "result.json"
        request_path.write_text(probe.build_request("s", "t").model_dump_json())
        code = entry.main([str(request_path), str(result_path)], jobs={"merge_source": run})
        assert stat.S_IMODE(result_path.stat().st_mode) == 0o600
        return code, parse_result(result_path.read_text(), 0.0)

    return answer_request


def _build_raising(error: Any) -> Any:
    def run(spark: SparkSession, request: Any, progress: Any) -> None:
        raise error

    return run


def _build_reporting(statement: Any) -> Any:
    def run(spark: SparkSession, request: Any, progress: Any) -> Any:
        rows = [tuple(row) for row in spark.sql(statement).collect()]
        return build_report(details={"found": rows})

    return run


def test_a_report_comes_back(answer: Any) -> None:
    """The report that the job returns is the report that the other side reads."""
    report = build_report()
    code, result = answer(lambda *_: report)

    assert code == 0
    assert result.report.with_seconds(report.seconds) == report
    assert list(result.report.seconds) == ["launch", "import", "session", "other"]


def test_runs_are_in_utc(answer: Any, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """The time zone of a session changes no run, and is as before afterwards; the log says so."""
    with override_settings(spark, {"spark.sql.session.timeZone": "America/Los_Angeles"}):
        _, result = answer(_build_reporting("SELECT cast(timestamp'2024-05-01T00:00:00Z' AS string)"))
        assert spark.conf.get("spark.sql.session.timeZone") == "America/Los_Angeles"

    assert result.report.details["found"] == [["2024-05-01 00:00:00"]]
    output = capsys.readouterr()
    assert "timeZone is America/Los_Angeles and has no effect: runs use UTC" in output.out + output.err


def test_an_error_of_ours_keeps_its_problems_and_needs_no_trace(answer: Any) -> None:
    """An error of the package arrives with its problems and without a stack trace."""
    code, result = answer(
        _build_raising(
            ConfigError.from_problems([Problem("datasets[0]", "value", "is wrong", "write it right")])
        )
    )

    assert code == 1
    assert (result.code, result.retryable, result.trace) == ("config", False, "")
    assert result.to_error().problems == (Problem("datasets[0]", "value", "is wrong", "write it right"),)


def test_an_unknown_error_may_be_tried_again_and_has_a_trace(answer: Any) -> None:
    """An unknown error can be retried and has a stack trace; it is not classified as a user error."""
    _, result = answer(_build_raising(RuntimeError("the disk is\non fire")))

    assert (result.code, result.retryable) == ("job", True)
    assert result.message == "RuntimeError: the disk is"
    assert "_raises" in result.trace or "in run" in result.trace


@pytest.mark.parametrize(
    ("statement", "code", "message"),
    [
        ("SELECT nobody", "data", r"\[UNRESOLVED_COLUMN"),
        ("SELECT CAST(name AS INT) FROM VALUES ('x') AS t(name)", "data", r"\[CAST_INVALID_INPUT\]"),
        ("SELECT 1 / x FROM VALUES (0) AS t(x)", "data", r"\[DIVIDE_BY_ZERO\]"),
        (
            "SELECT * FROM nowhere",
            "data",
            "nowhere: a dataset does not exist: check its name and the warehouse",
        ),
        (
            "SELECT * FROM parquet.`/nowhere`",
            "data",
            "file:/nowhere: a dataset does not exist: check its name and the warehouse",
        ),
        ("SELECT * FROM nocatalog.crm.people", "setup", r"nocatalog\S*: Spark has no catalog of this"),
        (
            "DESCRIBE HISTORY nocatalog.crm.people",
            "setup",
            r"nocatalog\S*: Spark has no catalog of this name",
        ),
        (
            "SELECT * FROM avro.`/nowhere`",
            "setup",
            "Spark cannot read Avro without an additional jar: add .*spark-avro",
        ),
        ("SELECT * FROM delta.`obs://bucket/x`", "setup", "Spark does not support this type of location"),
        ("SELECT * FROM delta.`hdfs://nowhere.invalid:1/x`", "job", "a service cannot be reached"),
        ("DESCRIBE HISTORY delta.`gs://bucket/x`", "setup", "Spark does not support this type of location"),
    ],
)
def test_what_spark_says_becomes_an_error_with_a_remedy(
    answer: Any, statement: Any, code: Any, message: Any
) -> None:
    """A Spark error becomes an error with a remedy: first line for the user, stack trace for developers."""
    _, result = answer(_build_reporting(statement))

    assert result.code == code, result
    assert result.retryable == (code == "job")
    first = result.message.splitlines()[0]
    assert re.match(message, first), first


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("org.apache.hadoop.security.AccessControlException: Permission denied: user=x", "setup"),
        ("java.io.FileNotFoundException: /lake/t/_delta_log/0.json (Permission denied)", "setup"),
        ("x.DeltaError: [DELTA_CONCURRENT_APPEND.WITHOUT_HINT] Transaction conflict detected.", "conflict"),
        ("io.delta.exceptions.ConcurrentTransactionException: …", "conflict"),
        ("io.delta.exceptions.ProtocolChangedException: …", "conflict"),
        ("java.lang.ClassNotFoundException: org.apache.spark.sql.delta.catalog.DeltaCatalog", "setup"),
        ("java.lang.OutOfMemoryError: Java heap space", "job"),
    ],
)
def test_a_failure_deep_in_the_jvm_is_recognised_by_its_text(text: Any, code: Any) -> None:
    """A failure inside the JVM is recognised by its text, the same in both kinds of session.

    Their Python classes differ.
    """
    error = errors.convert_error(RuntimeError(f"An error occurred while calling o1.sql.\n: {text}"))

    assert error.code == code


def test_a_request_of_another_protocol_is_answered_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request of another protocol version, from another driver, gets an error as its result."""
    monkeypatch.setattr(entry, "die_with_parent", lambda: None)
    raw = probe.build_request("s", "t").model_dump() | {"protocol": 2}
    (tmp_path / "request.json").write_text(json.dumps(raw))

    code = entry.main([str(tmp_path / "request.json"), str(tmp_path / "result.json")])

    result = parse_result((tmp_path / "result.json").read_text(), 0.0)
    assert code == 1
    assert "the request does not match protocol 1" in result.message
    assert "install the same version" in result.message


_WITHOUT_LIBRARY = """
import sys
sys.modules[sys.argv[1]] = None
from airflow_merge_provider.jobs.run import entry
from airflow_merge_provider.jobs.submit.main import main
from airflow_merge_provider.core.capabilities import JOBS
entry.die_with_parent = lambda: None
if sys.argv[1] == "grpc":
    # A session without a server needs none of it, nor does any job.
    import airflow_merge_provider.jobs.spark.session
    sys.exit([name for name in JOBS if not callable(entry._import_job(name))] or 0)
try:
    sys.exit(main(sys.argv[2:]))
except entry.SetupError as error:
    print(error)
"""


@pytest.mark.parametrize("library", ["pyspark", "grpc"])
def test_a_driver_needs_only_what_its_session_needs(tmp_path: Path, library: str) -> None:
    """A driver without PySpark says so; the library of Spark Connect is needed only for a server."""
    request, result = tmp_path / "request.json", tmp_path / "result.json"
    request.write_text(probe.build_request("s", "t").model_dump_json())

    def run_driver(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", _WITHOUT_LIBRARY, library, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    process = run_driver(str(request), str(result))

    if library == "grpc":
        assert (process.returncode, process.stderr) == (0, "")
        return
    assert process.returncode == 1, process.stderr
    failure = parse_result(result.read_text(), 0.0)
    assert isinstance(failure, JobFailure)
    assert (failure.code, failure.retryable) == ("setup", False)
    assert failure.message.startswith("The Python of the Spark driver cannot import pyspark: run pip install")
    assert run_driver("file:///request.json", "file:///result").stdout.startswith("The Python of the Spark")


def test_an_error_that_is_its_own_cause_is_looked_at_once() -> None:
    """An error that is its own cause, as some libraries raise, is inspected once and the loop ends."""
    error = RuntimeError("round")
    error.__cause__ = RuntimeError("and round")
    error.__cause__.__cause__ = error

    assert errors.convert_error(error) is None


def test_a_driver_over_connect_collects_nothing_meanwhile(
    answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Garbage collection is off in a driver over Spark Connect.

    Otherwise PySpark's client calls the server from any thread, also from one that waits for gRPC's lock.
    """
    monkeypatch.setenv("SPARK_REMOTE", "sc://localhost")
    monkeypatch.setattr("signal.signal", lambda *_: None)
    gc.enable()

    _, result = answer(lambda *_: build_report(approved_by=str(gc.isenabled())))

    assert result.report.approved_by == "False"
