"""Fixtures: a machine whose spark-submit is a small program that listens on the port of a server."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from airflow_merge_provider.core.protocol import JobResult
from airflow_merge_provider.spark_process.jvm.log_store.jar import locate_log_store_jar
from airflow_merge_provider.spark_process.shared.client import SharedSparkProcess
from airflow_merge_provider.spark_process.shared.server_folder import (
    ServerFolder,
    find_base_folder,
    list_folders,
)
from airflow_merge_provider.spark_process.shared.settings import LocalSparkSettings
from tests.fakes import REPORT
from tests.jobs import probe

ROOT = Path(__file__).parents[3]
_SECONDS_MAX = 60
_SERVER = """#!{python}
import os, pathlib, socket, sys, time
from airflow_merge_provider.core.child_process import write_server_answer
folder = pathlib.Path({folder!r})
properties = pathlib.Path(sys.argv[sys.argv.index("--properties-file") + 1]).read_text()
settings = dict(line.split("=", 1) for line in properties.splitlines())
with open(folder / "starts.txt", "a") as file:
    file.write(f"{{os.getpid()}}\\n")
if os.environ.get("SPARK_FAKE") == "broken":
    print("the server is broken", flush=True)
    sys.exit(7)
(folder / f"{{os.getpid()}}.environment").write_text("\\n".join(os.environ))
(folder / f"{{os.getpid()}}.properties").write_text(properties)
time.sleep(0.05)
while os.environ.get("SPARK_FAKE") == "hanging":
    time.sleep(1)
server = socket.create_server(("127.0.0.1", int(settings["spark.connect.grpc.binding.port"])))
token = settings["spark.connect.authenticate.token"]
write_server_answer(pathlib.Path(sys.argv[-1]), token, server.getsockname()[1])
server.settimeout(0.05)
while True:
    try:
        server.accept()[0].close()
    except TimeoutError:
        pass
    if (folder / "exhausted").exists():
        print("Terminating due to java.lang.OutOfMemoryError: Java heap space", flush=True)
        os._exit(3)
"""
_JOB = """
import json, os, pathlib, sys, time
folder = pathlib.Path({folder!r})
request, result = json.loads(pathlib.Path(sys.argv[1]).read_text()), pathlib.Path(sys.argv[2])
config = request["config"]
settings = json.loads(pathlib.Path(sys.argv[3]).read_text())
time.sleep(config.get("slow", 0))
print("[merge +  0.0s] import: 0.0s", flush=True)
if not config.get("silent") or (folder / "answers").exists():
    print("[merge +  0.1s] session: 0.1s", flush=True)
(folder / "answers").touch()
(folder / f"job-{{request['run']['run_id']}}").write_text(str(os.getpid()))
time.sleep(config.get("seconds", 0))
while config.get("until") and not (folder / config["until"]).exists():
    time.sleep(0.02)
report = {{**json.loads({report!r}), "details": settings}}
result.with_suffix(".part").write_text(json.dumps({{"ok": True, "report": report}}))
result.with_suffix(".part").rename(result)
"""


class FakeMachine:
    """A machine with a fake Spark, and the shared servers that tests start on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.job = folder / "job.py"
        # Other processes of a test have the same machine, and may be executing the script.
        if not self.job.exists():
            self.job.write_text(_JOB.format(folder=str(folder), report=json.dumps(REPORT)))

    def build_process(
        self,
        run_id: str = "r1",
        *,
        conf: dict[str, str] | None = None,
        memory: str = "2g",
        idle_seconds: float = 600.0,
        on_line: Callable[[str], object] = print,
        **config: object,
    ) -> SharedSparkProcess:
        """Build one run; ``config`` has the seconds that it takes, or the file that ends it (``until``).

        ``slow`` is the seconds that its Python process takes until it asks for a session.
        """
        settings = LocalSparkSettings(memory=memory, idle_seconds=idle_seconds, warm_up=False)
        request = probe.build_request("s", "t", run_id, **config)
        return SharedSparkProcess(request, settings=settings, conf=conf, script=self.job, on_line=on_line)

    def run_job(self, run_id: str = "r1", **options: object) -> JobResult:
        """Run one job to its end."""
        outcome = self.build_process(run_id, **options).run()
        assert isinstance(outcome, JobResult)
        return outcome

    def list_starts(self) -> list[int]:
        """Return the process IDs of all servers that were started, oldest first."""
        file = self.folder / "starts.txt"
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    def list_folders(self) -> list[ServerFolder]:
        """Return the folders of all servers."""
        return list_folders(find_base_folder())

    def wait_for_job(self, run_id: str) -> None:
        """Wait until a run has a session."""
        wait_until((self.folder / f"job-{run_id}").exists)

    def stop_servers(self) -> None:
        """Kill what the tests have started."""
        for folder in self.list_folders():
            if (state := folder.read_any_state()) is not None:
                os.kill(state.pid, signal.SIGTERM)
        for pid in self.list_starts():
            wait_until(partial(_is_gone, pid))


def _is_gone(pid: int) -> bool:
    return not is_running(pid)


def is_running(pid: int) -> bool:
    """Return whether a process exists and has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for a condition of another process."""
    end = time.monotonic() + _SECONDS_MAX
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMachine]:
    """Install a Java, a Spark and jars that only have the names of real ones."""
    temporary, spark = tmp_path / "tmp", tmp_path / "spark"
    for folder in (temporary, spark / "bin", spark / "jars", tmp_path / "java" / "bin", tmp_path / "cache"):
        folder.mkdir(parents=True)
    (spark / "jars" / "spark-core_2.13-4.2.0.jar").touch()
    (spark / "jars" / "delta-spark_4.2_2.13-4.4.0.jar").touch()
    for program, text in (
        (tmp_path / "java" / "bin" / "java", ""),
        (spark / "bin" / "spark-submit", _SERVER.format(python=sys.executable, folder=str(tmp_path))),
    ):
        program.write_text(text)
        program.chmod(0o755)
    variables = {
        "TMPDIR": temporary, "SPARK_HOME": spark, "JAVA_HOME": tmp_path / "java",
        "AIRFLOW_MERGE_PROVIDER_CACHE": tmp_path / "cache", "PYTHONPATH": ROOT,
    }  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    locate_log_store_jar().parent.mkdir(exist_ok=True)
    locate_log_store_jar().touch()
    monkeypatch.setattr(tempfile, "tempdir", None)
    fake = FakeMachine(tmp_path)
    yield fake
    fake.stop_servers()
