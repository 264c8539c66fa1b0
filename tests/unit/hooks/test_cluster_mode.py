"""Test deploy mode ``cluster``: request and result are in a folder that worker and cluster reach."""

from __future__ import annotations

import json
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from airflow_merge_provider.core.errors import JobError, SetupError
from airflow_merge_provider.core.protocol import JobFailure, JobRequest, JobResult, RunToken
from airflow_merge_provider.hooks import _submit
from airflow_merge_provider.hooks.spark_job import SparkJobHook
from tests.fakes import build_report

APPLICATION = "application_1_0001"
# A program that does what spark-submit and the driver on the cluster do.
_PROGRAM = """#!{python}
import json, os, sys
from pathlib import Path
from urllib.parse import urlsplit
request, result = (Path(urlsplit(uri).path) for uri in sys.argv[-2:])
settings = open(sys.argv[sys.argv.index("--properties-file") + 1]).read()
record = {{"args": sys.argv[1:], "settings": settings, "request": json.loads(request.read_text()),
    "environment": sorted(os.environ)}}
Path({record!r}).write_text(json.dumps(record))
print("Submitted application {application}", flush=True)
def write(text):
    result.mkdir()
    (result / "part-00000").write_text(text + "\\n")
    (result / "_SUCCESS").touch()
{then}
"""


@pytest.fixture
def request_(tmp_path: Path) -> JobRequest:
    run = RunToken(dag_id="d", run_id="r", task_id="t")
    config = {"source": "/new", "note": "visible in the request only"}
    return JobRequest(
        job="merge_record", config=config, run=run, warehouse=str(tmp_path / "lake"), started_at=1
    )


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Put a program named spark-submit on the path, and return the file with what it was given."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(_submit, "find_java", lambda: Path("/bin/java"))
    monkeypatch.setattr(_submit, "submit_conf", lambda user, *, local: {"spark.local": str(local), **user})

    def install_program(then: str) -> Path:
        program, record = tmp_path / "spark-submit", tmp_path / "record.json"
        program.write_text(
            _PROGRAM.format(python=sys.executable, record=str(record), application=APPLICATION, then=then)
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return record

    return install_program


def connect(monkeypatch: pytest.MonkeyPatch, host: str = "yarn", **extra: str) -> SparkJobHook:
    connection = {"conn_type": "spark", "host": host, "extra": {"deploy-mode": "cluster", **extra}}
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps(connection))
    return SparkJobHook("cluster")


def write_result(answer: JobResult | JobFailure, code: int = 0) -> str:
    return f"write({answer.model_dump_json()!r}); sys.exit({code})"


def list_left_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_request_and_result_are_below_the_warehouse(
    monkeypatch: pytest.MonkeyPatch, request_: JobRequest, submit: Callable[[str], Path], tmp_path: Path
) -> None:
    """The driver gets URIs; nothing of this machine's Python is passed on; the folder is removed."""
    record_file = submit(write_result(JobResult(report=build_report())))

    result = connect(monkeypatch).submit(request_)

    record = json.loads(record_file.read_text())
    assert isinstance(result, JobResult)
    assert result.report.changed
    shown_rows = {"rows": "keys", "key_columns": [], "masked_columns": []}
    assert record["request"] == request_.model_dump(mode="json") | {"shown_rows": shown_rows}
    assert [uri.partition("/_merge_runs/")[0] for uri in record["args"][-2:]] == [
        f"file://{tmp_path}/lake"
    ] * 2
    assert record["args"][record["args"].index("--deploy-mode") + 1] == "cluster"
    assert "spark.yarn.maxAppAttempts=1" in record["settings"]
    assert "spark.local=False" in record["settings"]
    assert "PYSPARK_DRIVER_PYTHON" not in record["environment"]
    assert "visible in the request only" not in " ".join(record["args"])
    assert not list_left_files(tmp_path / "lake")


def test_the_exchange_can_be_elsewhere(
    monkeypatch: pytest.MonkeyPatch, request_: JobRequest, submit: Callable[[str], Path], tmp_path: Path
) -> None:
    """Settings choose the folder and the file of the job."""
    monkeypatch.setenv("AIRFLOW__MERGE__EXCHANGE", f"file://{tmp_path}/exchange/")
    monkeypatch.setenv("AIRFLOW__MERGE__CLUSTER_APPLICATION", "local:///opt/merge/main.py")
    record_file = submit(write_result(JobResult(report=build_report())))

    connect(monkeypatch).submit(request_)

    args = json.loads(record_file.read_text())["args"]
    assert args[-3] == "local:///opt/merge/main.py"
    assert args[-1].startswith(f"file://{tmp_path}/exchange/_merge_runs/")


def test_a_failure_of_the_driver_is_its_result(
    monkeypatch: pytest.MonkeyPatch, request_: JobRequest, submit: Callable[[str], Path]
) -> None:
    """The result counts, whatever spark-submit reports."""
    failure = JobFailure(code="data", message="duplicate output id", retryable=False)
    submit(write_result(failure, code=1))

    assert connect(monkeypatch).submit(request_) == failure


@pytest.mark.parametrize(("code", "message"), [(0, "its Python needs the package"), (3, "without a result")])
def test_a_driver_without_a_result_can_be_tried_again(
    monkeypatch: pytest.MonkeyPatch,
    request_: JobRequest,
    submit: Callable[[str], Path],
    tmp_path: Path,
    code: int,
    message: str,
) -> None:
    """The error names what to look at; the folder is removed."""
    submit(f"sys.exit({code})")

    with pytest.raises(JobError, match=message) as error:
        connect(monkeypatch).submit(request_)

    assert error.value.retryable
    assert not list_left_files(tmp_path / "lake")


def test_a_folder_that_stays_does_not_fail_the_run(
    monkeypatch: pytest.MonkeyPatch,
    request_: JobRequest,
    submit: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A run that has committed succeeds, and its log says what is left."""
    submit(write_result(JobResult(report=build_report())))

    def refuse_removal(*_: Any, **__: Any) -> None:
        raise PermissionError("no permission to delete")

    monkeypatch.setattr(LocalFileSystem, "rm_file", refuse_removal)
    result = connect(monkeypatch).submit(request_)

    assert isinstance(result, JobResult)
    assert "stays: no permission to delete" in capsys.readouterr().out


def test_a_run_without_a_folder_is_refused(
    monkeypatch: pytest.MonkeyPatch, request_: JobRequest, submit: Callable[[str], Path]
) -> None:
    """Nothing is submitted that could not answer."""
    record_file = submit("")
    request = request_.model_copy(update={"warehouse": None})

    with pytest.raises(SetupError, match=r"set a warehouse, or \[merge\] exchange"):
        connect(monkeypatch).submit(request)

    assert not record_file.exists()


def test_a_standalone_master_is_refused(
    monkeypatch: pytest.MonkeyPatch, request_: JobRequest, submit: Callable[[str], Path]
) -> None:
    """Spark has no cluster mode for Python there; the error has the remedy."""
    record_file = submit("")

    with pytest.raises(SetupError, match="standalone master: set deploy-mode to 'client'"):
        connect(monkeypatch, host="spark://master:7077").submit(request_)

    assert not record_file.exists()


class ResourceManager(ThreadingHTTPServer):
    """YARN's resource manager, as far as a task asks it: the state of an application, and its end."""

    state = {"state": "RUNNING", "finalStatus": "UNDEFINED", "diagnostics": ""}  # noqa: RUF012 - replaced
    query_count = 0


class _Handler(BaseHTTPRequestHandler):
    server: ResourceManager

    def do_GET(self) -> None:
        self.server.query_count += 1
        self._answer({"app": self.server.state})

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.state = {"state": "KILLED", "finalStatus": "KILLED", "diagnostics": ""}
        self._answer({"state": "KILLED"})

    def _answer(self, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[ResourceManager]:
    monkeypatch.setattr(_submit, "_SUBMIT_POLL_SECONDS", 0.1)
    server = ResourceManager(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_folders_of_killed_workers_are_removed(
    monkeypatch: pytest.MonkeyPatch, request_: JobRequest, submit: Callable[[str], Path], tmp_path: Path
) -> None:
    """The request of a killed worker goes after a week; younger ones may be in use."""
    submit(write_result(JobResult(report=build_report())))
    days = 24 * 3600
    names = [f"{int(time.time() - age * days)}-abc" for age in (8, 6)] + ["someone-else"]
    for name in names:
        (tmp_path / "lake/_merge_runs" / name / "result").mkdir(parents=True)
        (tmp_path / "lake/_merge_runs" / name / "request.json").touch()

    connect(monkeypatch).submit(request_)

    assert sorted(path.name for path in (tmp_path / "lake/_merge_runs").iterdir()) == sorted(names[1:])


def test_a_task_that_is_killed_before_its_process_exists_ends(
    monkeypatch: pytest.MonkeyPatch, request_: JobRequest, submit: Callable[[str], Path], tmp_path: Path
) -> None:
    """A task that is stopped while the request is written does not start an application."""
    record_file = submit(write_result(JobResult(report=build_report())))
    connect(monkeypatch)
    process = _submit.SubmitProcess(request_, conn_id="cluster", conf={})
    process.kill_process()

    with pytest.raises(JobError, match="was stopped on request"):
        process.run()

    assert not record_file.exists()
    assert list_left_files(tmp_path / "lake") == []


def test_yarn_is_queried_until_the_result_is_there(
    monkeypatch: pytest.MonkeyPatch,
    request_: JobRequest,
    submit: Callable[[str], Path],
    manager: ResourceManager,
    tmp_path: Path,
) -> None:
    """With the address of the resource manager, spark-submit ends at once, and the task waits."""
    submit("")
    answer = JobResult(report=build_report(changed=False)).model_dump_json()

    def write_late() -> None:
        while manager.query_count < 3:
            time.sleep(0.02)
        folder = next((tmp_path / "lake/_merge_runs").iterdir()) / "result"
        folder.mkdir()
        (folder / "part-00000").write_text(answer)
        (folder / "_SUCCESS").touch()

    writer = threading.Thread(target=write_late)
    writer.start()
    url = f"http://127.0.0.1:{manager.server_port}"
    result = connect(monkeypatch, yarn_resourcemanager_webapp_address=url).submit(request_)
    writer.join()

    assert isinstance(result, JobResult)
    assert manager.query_count >= 3


def test_a_killed_task_ends_the_application(
    monkeypatch: pytest.MonkeyPatch,
    request_: JobRequest,
    submit: Callable[[str], Path],
    manager: ResourceManager,
) -> None:
    """The resource manager is told to end the application, and the task fails with a retry."""
    submit("")
    hook = connect(monkeypatch, yarn_resourcemanager_webapp_address=f"http://127.0.0.1:{manager.server_port}")

    def end_it() -> None:
        while manager.query_count < 2:
            time.sleep(0.02)
        hook.on_kill()

    ender = threading.Thread(target=end_it)
    ender.start()
    with pytest.raises(JobError, match="stopped on request"):
        hook.submit(request_)
    ender.join()

    assert manager.state["state"] == "KILLED"
