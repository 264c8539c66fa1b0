"""Tests of runs on the shared server: real processes and locks, and a program in place of Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from airflow_merge_provider.core.errors import JobError
from airflow_merge_provider.core.protocol import JobResult
from airflow_merge_provider.spark_process.launch import JobProcess
from airflow_merge_provider.spark_process.shared import client, server_run, server_start
from airflow_merge_provider.spark_process.shared.client import SharedSparkProcess, build_local_process
from airflow_merge_provider.spark_process.shared.settings import LocalSparkSettings
from tests.fakes import build_report
from tests.jobs import probe
from tests.unit.spark_process.conftest import ROOT, FakeMachine, is_running, wait_until

_RUN = """
import sys
from pathlib import Path
from tests.unit.spark_process.conftest import FakeMachine
FakeMachine(Path(sys.argv[1])).run_job(sys.argv[2], seconds=0.5)
"""


class Running:
    """A run in a thread, and its lines."""

    def __init__(self, machine: FakeMachine, run_id: str, **options: Any) -> None:
        self.lines: list[str] = []
        self.process = machine.build_process(run_id, on_line=self.lines.append, **options)
        self.outcome: Any = None
        self._thread = threading.Thread(target=self._run_process, daemon=True)
        self._thread.start()

    def _run_process(self) -> None:
        try:
            self.outcome = self.process.run()
        except JobError as error:
            self.outcome = error

    def wait_for_end(self) -> Any:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.outcome


def test_the_second_run_uses_the_server_of_the_first(machine: FakeMachine) -> None:
    """The first run starts the server and logs how long that took; the second one uses it."""
    first: list[str] = []
    second: list[str] = []

    machine.run_job("r1", on_line=first.append)
    machine.run_job("r2", on_line=second.append)

    (pid,) = machine.list_starts()
    assert first[0].startswith("starting a shared Spark server (2g of memory, ")
    assert first[1].startswith("the shared Spark server is ready after ")
    assert second[0].startswith(f"using the shared Spark server (pid {pid}, started ")


def test_processes_that_begin_together_start_one_server(machine: FakeMachine) -> None:
    """Of several processes that need a server at the same time, exactly one starts it."""
    command = [sys.executable, "-c", _RUN, str(machine.folder)]
    runs = [subprocess.Popen([*command, f"r{number}"], cwd=ROOT) for number in range(3)]

    assert [run.wait(60) for run in runs] == [0, 0, 0]
    assert len(machine.list_starts()) == 1


def test_threads_that_begin_together_start_one_server(machine: FakeMachine) -> None:
    """Locks also work between threads of one process."""
    with ThreadPoolExecutor(8) as threads:
        outcomes = list(threads.map(machine.run_job, [f"r{number}" for number in range(8)]))

    assert len(outcomes) == 8
    assert len(machine.list_starts()) == 1


def test_settings_of_a_session_do_not_need_another_server(machine: FakeMachine) -> None:
    """Runtime settings go to the session of the run; other settings start another server."""
    machine.run_job("r1")
    outcome = machine.run_job("r2", conf={"spark.sql.shuffle.partitions": "7"})
    assert outcome.report.details["spark.sql.shuffle.partitions"] == "7"
    assert len(machine.list_starts()) == 1

    machine.run_job("r3", conf={"spark.driver.memory": "1g"})

    assert len(machine.list_starts()) == 2


def test_a_run_waits_for_a_slot(machine: FakeMachine) -> None:
    """With all slots in use a run waits, and logs how many are in use."""
    first = Running(machine, "r1", memory="512m", until="is waiting")
    machine.wait_for_job("r1")

    second = Running(machine, "r2", memory="512m")
    wait_until(lambda: any("waiting for a slot" in line for line in second.lines))
    (machine.folder / "is waiting").touch()

    assert isinstance(second.wait_for_end(), JobResult)
    assert isinstance(first.wait_for_end(), JobResult)
    assert "waiting for a slot of the shared Spark server: 1 of 1 are in use" in second.lines


def test_a_killed_client_releases_its_slot(machine: FakeMachine) -> None:
    """The kernel releases the slot of a process that is killed."""
    machine.run_job("r0", memory="512m")
    command = [sys.executable, "-c", _RUN.replace("seconds=0.5", "seconds=60, memory='512m'")]
    killed = subprocess.Popen([*command, str(machine.folder), "r1"], cwd=ROOT)
    machine.wait_for_job("r1")
    killed.kill()
    killed.wait()

    machine.run_job("r2", memory="512m")

    assert len(machine.list_starts()) == 1


@pytest.mark.long
def test_a_killed_server_fails_its_run_with_one_line(machine: FakeMachine) -> None:
    """If the server is killed, its run fails with a retryable error; the next run starts another server."""
    run = Running(machine, "r1", seconds=60)
    machine.wait_for_job("r1")

    os.kill(machine.list_starts()[0], signal.SIGKILL)
    error = run.wait_for_end()

    assert isinstance(error, JobError)
    assert error.retryable
    assert error.message.startswith("The shared Spark server was killed by signal 9")
    assert "\n" not in error.message
    machine.run_job("r1")
    assert len(machine.list_starts()) == 2


@pytest.mark.long
def test_a_server_without_memory_names_the_setting(machine: FakeMachine) -> None:
    """If the server runs out of memory, the error has the setting that determines its memory."""
    run = Running(machine, "r1", seconds=60)
    other = Running(machine, "r2", seconds=60, conf={"spark.driver.memory": "3g"})
    machine.wait_for_job("r1")
    machine.wait_for_job("r2")

    (machine.folder / "exhausted").touch()

    message = run.wait_for_end().message
    assert message.startswith(
        "The shared Spark server ran out of memory: raise [merge] local_spark_memory (now 2g)"
    )
    assert "raise spark.driver.memory (now 3g)" in other.wait_for_end().message
    (machine.folder / "exhausted").unlink()
    machine.run_job("r1")


@pytest.mark.long
def test_a_killed_supervisor_ends_its_server(machine: FakeMachine) -> None:
    """The server ends with its supervisor, its run fails, and the next run starts both."""
    run = Running(machine, "r1", seconds=60)
    machine.wait_for_job("r1")
    (folder,) = machine.list_folders()

    os.kill(folder.read_state().pid, signal.SIGKILL)

    assert run.wait_for_end().message.startswith("The shared Spark server and its supervisor were ended")
    (pid,) = machine.list_starts()
    wait_until(lambda: not is_running(pid))
    machine.run_job("r1")
    assert len(machine.list_starts()) == 2


@pytest.mark.long
def test_a_server_that_does_not_open_a_session_is_replaced(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that does not answer before the run begins is replaced once."""
    monkeypatch.setattr(server_run, "_SESSION_SECONDS", 1.5)
    run = Running(machine, "r1", silent=True, seconds=3)
    wait_until((machine.folder / "answers").exists)

    assert isinstance(run.wait_for_end(), JobResult), run.lines
    assert len(machine.list_starts()) == 2
    assert any("has not opened a session within" in line for line in run.lines)


def test_a_client_that_starts_slowly_does_not_replace_its_server(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time for a session begins when the process asks for one, not when Python starts to import."""
    monkeypatch.setattr(server_run, "_SESSION_SECONDS", 1.0)
    lines: list[str] = []

    machine.run_job("r1", slow=2.5, on_line=lines.append)

    assert len(machine.list_starts()) == 1
    assert not any("has not opened a session" in line for line in lines), lines


def test_a_server_that_does_not_start_is_described(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the server does not start, the error has its exit code and its last line."""
    monkeypatch.setenv("SPARK_FAKE", "broken")

    with pytest.raises(JobError, match=r"has not started: exit code 7: the server is broken"):
        machine.run_job()


def test_a_server_that_hangs_while_it_starts_ends(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start has an end: its run fails with a retryable error, and the next run starts another server."""
    monkeypatch.setattr(server_start, "START_SECONDS", 1.0)
    monkeypatch.setenv("SPARK_FAKE", "hanging")

    with pytest.raises(JobError, match=r"has not started: it was not ready within 1 s") as caught:
        machine.run_job("r1")

    assert caught.value.retryable
    (pid,) = machine.list_starts()
    wait_until(lambda: not is_running(pid))
    assert [folder.is_supervised() for folder in machine.list_folders()] == [False]


def test_a_supervisor_that_hangs_before_it_starts_ends(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that is to start the server has an end, too, for example on a file system that hangs."""
    monkeypatch.setattr(server_start, "START_SECONDS", 1.0)
    (machine.folder / "sitecustomize.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", f"{machine.folder}{os.pathsep}{ROOT}")
    begin = time.monotonic()

    with pytest.raises(JobError, match=r"has not started within 1 s: look into .*server\.log"):
        machine.run_job("r1")

    assert time.monotonic() - begin < 30
    assert [folder.is_supervised() for folder in machine.list_folders()] == [False]


def test_a_server_that_others_use_is_not_replaced(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that gets no session fails, and the run of another task on the same server continues."""
    monkeypatch.setattr(server_run, "_SESSION_SECONDS", 0.5)
    first = Running(machine, "r1", until="has failed")
    machine.wait_for_job("r1")
    (machine.folder / "answers").unlink()
    second = Running(machine, "r2", silent=True, seconds=3)
    wait_until((machine.folder / "answers").exists)
    (machine.folder / "answers").unlink()

    assert isinstance(second.wait_for_end(), JobError)
    (machine.folder / "has failed").touch()
    assert any("is slow: other runs use it" in line for line in second.lines), second.lines
    assert isinstance(first.wait_for_end(), JobResult)
    assert len(machine.list_starts()) == 1


def test_idle_servers_end_when_there_are_too_many(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that starts a server leaves the two others that were used last, and those that runs use."""
    used = Running(machine, "r0", memory="600m", seconds=30)
    machine.wait_for_job("r0")
    for number in range(1, 5):
        machine.run_job(f"r{number}", memory=f"{number}g")

    running = [is_running(pid) for pid in machine.list_starts()]

    assert running == [True, False, True, True, True]
    used.process.kill_process()
    used.wait_for_end()


def test_an_idle_server_ends_and_leaves_nothing(machine: FakeMachine) -> None:
    """After the idle time neither the server nor its supervisor nor a file of them remains."""
    run = Running(machine, "r1", idle_seconds=0.5, seconds=1)
    machine.wait_for_job("r1")
    (folder,) = machine.list_folders()
    pids = [folder.read_state().pid, *machine.list_starts()]
    assert isinstance(run.wait_for_end(), JobResult), "a run longer than the idle time"

    wait_until(lambda: not any(is_running(pid) for pid in pids))

    assert machine.list_folders() == []
    assert list((machine.folder / "tmp").glob("merge-*")) == []


def test_a_stopped_run_ends_while_it_waits(machine: FakeMachine) -> None:
    """A run that waits for a slot ends as soon as its task is stopped."""
    first = Running(machine, "r1", memory="512m", seconds=60)
    machine.wait_for_job("r1")
    second = Running(machine, "r2", memory="512m")
    wait_until(lambda: any("waiting for a slot" in line for line in second.lines))

    second.process.kill_process()
    begin = time.monotonic()
    first.process.kill_process()

    assert second.wait_for_end().message == "The Spark process was stopped on request"
    assert first.wait_for_end().message == "The Spark process was stopped on request"
    assert time.monotonic() - begin < 20
    assert is_running(machine.list_starts()[0])


def test_no_secret_is_readable(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets are neither in arguments nor in the files of the server; folders and files are private."""
    monkeypatch.setenv("AIRFLOW_CONN_DB", "hush-connection")
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "hush-key")
    monkeypatch.setenv("TASK_TOKEN", "hush-token")
    machine.run_job(conf={"spark.hadoop.fs.s3a.secret.key": "hush-conf"})

    (folder,) = machine.list_folders()
    state = folder.read_state()
    for pid in (state.pid, state.server_pid):
        assert b"hush" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        assert b"hush" not in Path(f"/proc/{pid}/environ").read_bytes()
    for path in [folder.path, folder.path.parent, *folder.path.parent.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path
        assert path.is_dir() or b"hush" not in path.read_bytes(), path
    properties = (machine.folder / f"{state.server_pid}.properties").read_text()
    assert "spark.hadoop.fs.s3a.secret.key=hush-conf" in properties
    assert "spark.connect.grpc.binding.address=127.0.0.1" in properties


def test_the_supervisor_keeps_no_file_of_the_task_open(machine: FakeMachine, tmp_path: Path) -> None:
    """The supervisor belongs to its own session, and inherits no pipe and no log of the task."""
    with (tmp_path / "task.log").open("w") as log:
        os.set_inheritable(log.fileno(), True)
        machine.run_job()
        (folder,) = machine.list_folders()
        state = folder.read_state()
        open_files = [str(file.readlink()) for file in Path(f"/proc/{state.pid}/fd").iterdir()]

        assert str(tmp_path / "task.log") not in open_files
        assert os.getsid(state.pid) != os.getsid(0)
        assert os.getpgid(state.pid) != os.getpgid(0)
        assert int(Path(f"/proc/{state.pid}/stat").read_text().split()[3]) != os.getpid()


@pytest.mark.parametrize(
    ("settings", "variables", "kind"),
    [
        (LocalSparkSettings(), {}, SharedSparkProcess),
        (LocalSparkSettings(mode="process"), {}, JobProcess),
        (LocalSparkSettings(), {"AIRFLOW_IS_K8S_EXECUTOR_POD": "True"}, JobProcess),
    ],
)
def test_the_mode_decides_between_server_and_process(
    monkeypatch: pytest.MonkeyPatch, settings: Any, variables: Any, kind: Any
) -> None:
    """Local runs share a server, except in process mode and in a pod of one task."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    process = build_local_process(probe.build_request("s", "t"), settings, conf={}, on_line=print)

    assert type(process) is kind


@pytest.mark.parametrize(("version", "kind"), [("4.1.1", JobProcess), ("4.2.0", SharedSparkProcess)])
def test_an_older_connect_client_has_its_own_process(
    monkeypatch: pytest.MonkeyPatch, version: str, kind: Any
) -> None:
    """Clients before Spark 4.2 do not count the rows of a run."""
    monkeypatch.setattr("airflow_merge_provider.spark_process.launch.metadata.version", lambda _: version)

    request, settings = probe.build_request("s", "t"), LocalSparkSettings()
    assert type(build_local_process(request, settings, conf={}, on_line=print)) is kind


def test_another_master_or_a_remote_server_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line uses the shared server only without --remote and with the default master."""
    monkeypatch.setenv("AIRFLOW__MERGE__LOCAL_SPARK", "shared")
    begun: list[tuple[str, Any]] = []

    def build_run(name: str) -> Any:
        def record_run(self: Any) -> JobResult:
            begun.append((name, self._conf))
            return JobResult(report=build_report())

        return record_run

    monkeypatch.setattr(SharedSparkProcess, "run", build_run("shared"))
    monkeypatch.setattr(JobProcess, "run", build_run("process"))
    options = {"conf": {"spark.x": "1"}, "on_line": print}
    request = probe.build_request("s", "t")

    client.run_job(request, master="local[*]", remote=None, **options)
    client.run_job(request, master="local[2]", remote=None, **options)
    client.run_job(request, master="local[*]", remote="sc://localhost", **options)

    assert begun == [(name, {"spark.x": "1"}) for name in ("shared", "process", "process")]
