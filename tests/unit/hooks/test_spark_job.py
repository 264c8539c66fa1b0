"""Tests of where a job runs for each kind of connection, and of the command line of spark-submit."""

from __future__ import annotations

import json
import stat
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_merge_provider.core.errors import ConfigError, JobError, SetupError
from airflow_merge_provider.core.protocol import JobFailure, JobRequest, JobResult, RunToken
from airflow_merge_provider.hooks import _submit
from airflow_merge_provider.hooks.spark_job import SparkJobHook
from airflow_merge_provider.spark_process.launch import JobProcess
from airflow_merge_provider.spark_process.shared.client import SharedSparkProcess
from tests.fakes import build_report

SECRET = "s3cr3t-value"  # noqa: S105 - not a secret
_RECORD = """#!{python}
import json, os, sys
args = sys.argv[1:]
here = os.path.dirname(os.path.abspath(__file__))
settings = args[args.index("--properties-file") + 1]
with open(here + "/seen.json", "w") as file:
    json.dump({{
        "args": args,
        "settings": open(settings).read(),
        "modes": [oct(os.stat(path).st_mode & 0o777) for path in (settings, args[-2])],
        "remote": os.environ.get("SPARK_REMOTE"),
        "environment": sorted(os.environ),
        "parent": os.getppid(),
    }}, file)
print("a line of the job", flush=True)
{then}
"""
_ANSWER = "open(args[-1], 'w').write({answer!r}); sys.exit({code})"


@pytest.fixture
def request_() -> Any:
    run = RunToken(dag_id="d", run_id="r", task_id="t")
    return JobRequest(job="merge_record", config={"source": "/new"}, run=run, started_at=1)


@pytest.fixture
def spark_submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put a program named spark-submit on the path that records its arguments."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(_submit, "find_java", lambda: Path("/bin/java"))
    monkeypatch.setattr(
        _submit, "submit_conf", lambda user, *, local: {"spark.master.local": str(local), **user}
    )

    def install_program(then: Any) -> Any:
        program = tmp_path / "spark-submit"
        program.write_text(_RECORD.format(python=sys.executable, then=then))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return tmp_path / "seen.json"

    return install_program


def define_connection(monkeypatch: pytest.MonkeyPatch, name: Any = "CLUSTER", **connection: Any) -> None:
    monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(connection))


def test_without_a_connection_spark_runs_on_this_machine(request_: Any) -> None:
    """Without a connection Spark runs on this machine; the stock hook would use YARN."""
    process = SparkJobHook()._choose_process(request_, None)

    assert isinstance(process, JobProcess)
    assert (process._master, process._remote) == ("local[*]", None)


def test_without_a_connection_runs_share_a_server(monkeypatch: pytest.MonkeyPatch, request_: Any) -> None:
    """By default, runs on this machine share a server; an invalid setting is an error before a run."""
    monkeypatch.delenv("AIRFLOW__MERGE__LOCAL_SPARK")
    assert isinstance(SparkJobHook()._choose_process(request_, None), SharedSparkProcess)
    monkeypatch.setenv("AIRFLOW__MERGE__LOCAL_SPARK", "cluster")

    with pytest.raises(ConfigError, match=r"\[merge\] local_spark: 'cluster' is not valid"):
        SparkJobHook().submit(request_)


def test_a_connection_that_is_named_has_to_exist(request_: Any) -> None:
    """A missing connection raises an error.

    A run for a cluster must not run on this machine without notice.
    """
    with pytest.raises(
        SetupError, match="connection 'nowhere' does not exist: create it, or leave out spark_conn"
    ):
        SparkJobHook("nowhere").submit(request_)


def test_a_key_in_the_settings_is_warned_of(
    request_: Any, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The warning names the setting and not its value."""
    with pytest.raises(SetupError):
        SparkJobHook("nowhere", conf={"spark.hadoop.fs.s3a.secret.key": SECRET}).submit(request_)

    output = capsys.readouterr()
    logged = f"{caplog.text}{output.out}{output.err}"
    assert "conf contains spark.hadoop.fs.s3a.secret.key: keys belong in the connection" in logged
    assert SECRET not in logged


def test_a_connect_connection_names_the_server(monkeypatch: pytest.MonkeyPatch, request_: Any) -> None:
    """A Spark Connect connection has the address of the server.

    It contains the token, and is passed in the environment of the child only.
    """
    define_connection(monkeypatch, conn_type="spark_connect", host="server", port=15002, password=SECRET)

    hook = SparkJobHook("cluster")
    process = hook._choose_process(request_, hook._find_connection())

    assert isinstance(process, JobProcess)
    assert process._remote == f"sc://server:15002/;token={SECRET}"


def test_another_type_of_connection_is_refused(monkeypatch: pytest.MonkeyPatch, request_: Any) -> None:
    """Another type of connection is rejected; the first line has the connection and the valid types."""
    define_connection(monkeypatch, conn_type="postgres", host="db")

    with pytest.raises(
        SetupError, match=r"'cluster' has type 'postgres', which is not supported: set spark_conn_id"
    ):
        SparkJobHook("cluster").submit(request_)


def test_a_spark_connection_goes_through_the_stock_hook(
    monkeypatch: pytest.MonkeyPatch, request_: Any, spark_submit: Any
) -> None:
    """Master and queue come from the connection.

    Settings come from a private file and override those of the cluster.
    """
    define_connection(
        monkeypatch, conn_type="spark", host="yarn", extra={"queue": "etl", "deploy-mode": "client"}
    )
    answer = JobResult(report=build_report())
    record_path = spark_submit(_ANSWER.format(answer=answer.model_dump_json(), code=0))

    outcome = SparkJobHook("cluster", conf={"spark.hadoop.key": SECRET, "spark.x": True}).submit(request_)

    record = json.loads(record_path.read_text())
    args = record["args"]
    assert outcome.report.changed
    assert list(outcome.report.seconds) == list(build_report().seconds)
    assert args[args.index("--master") + 1] == "yarn"
    assert args[args.index("--queue") + 1] == "etl"
    assert args[args.index("--name") + 1] == "d.t"
    assert "--load-spark-defaults" in args
    assert args[-3].endswith("jobs/submit/main.py")
    assert SECRET not in " ".join(args)
    assert f"spark.hadoop.key={SECRET}" in record["settings"]
    assert "spark.x=true" in record["settings"]
    assert "spark.master.local=False" in record["settings"]
    assert record["modes"] == ["0o600", "0o600"]
    assert not [name for name in record["environment"] if name.startswith(("AIRFLOW_CONN_", "AIRFLOW__"))]
    assert "PATH" in record["environment"]
    assert not Path(args[-1]).parent.exists()


def test_a_local_master_of_a_connection_is_local(
    monkeypatch: pytest.MonkeyPatch, request_: Any, spark_submit: Any
) -> None:
    """With a local master, jars on the class path of the driver are enough."""
    define_connection(monkeypatch, conn_type="spark", host="local[2]")
    record_path = spark_submit(
        _ANSWER.format(answer=JobResult(report=build_report()).model_dump_json(), code=0)
    )

    SparkJobHook("cluster").submit(request_)

    assert "spark.master.local=True" in json.loads(record_path.read_text())["settings"]


def test_an_answer_counts_more_than_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, request_: Any, spark_submit: Any
) -> None:
    """The answer of a failed job takes precedence over the exit code, which has no reason."""
    define_connection(monkeypatch, conn_type="spark", host="local")
    answer = JobFailure(code="data", message="duplicate output id", retryable=False)
    spark_submit(_ANSWER.format(answer=answer.model_dump_json(), code=1))

    assert SparkJobHook("cluster").submit(request_) == answer


def test_a_process_without_an_answer_can_be_tried_again(
    monkeypatch: pytest.MonkeyPatch, request_: Any, spark_submit: Any
) -> None:
    """A process that ends without a result can be retried; the error has its last lines."""
    define_connection(monkeypatch, conn_type="spark", host="local")
    spark_submit("sys.exit(3)")

    with pytest.raises(JobError, match="without a result"):
        SparkJobHook("cluster").submit(request_)


def test_on_kill_ends_the_child(monkeypatch: pytest.MonkeyPatch, request_: Any, spark_submit: Any) -> None:
    """on_kill ends the child immediately and the task fails with an error that can be retried."""
    define_connection(monkeypatch, conn_type="spark", host="local")
    record_path = spark_submit("import time; time.sleep(60)")
    hook = SparkJobHook("cluster")

    def end_it() -> None:
        while not record_path.exists():
            time.sleep(0.05)
        time.sleep(0.2)
        hook.on_kill()

    ender = threading.Thread(target=end_it)
    ender.start()
    started = time.monotonic()
    with pytest.raises(JobError, match="stopped on request"):
        hook.submit(request_)
    ender.join()

    assert time.monotonic() - started < 30
