"""Tests of the command that lists and stops the shared servers."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest

from airflow_merge_provider.cli import main as cli
from airflow_merge_provider.core.errors import JobError
from airflow_merge_provider.spark_process.shared import server_run
from tests.unit.spark_process.conftest import FakeMachine, is_running, wait_until


def test_servers_are_listed_and_stopped(machine: FakeMachine, capsys: pytest.CaptureFixture[str]) -> None:
    """Status lists each server, and stop leaves neither a process nor a file."""
    assert cli.main(["local-spark", "status"]) == 0
    assert capsys.readouterr().out == "no shared Spark server is running\n"
    machine.run_job()
    (pid,) = machine.list_starts()
    capsys.readouterr()

    assert cli.main(["local-spark", "status"]) == 0
    line = capsys.readouterr().out
    assert line.startswith(f"pid {pid}  port ")
    assert "2g of memory" in line
    assert " core" in line
    assert "ends after 10 minutes" in line

    assert cli.main(["local-spark", "stop"]) == 0
    assert capsys.readouterr().out == f"stopped pid {pid}\n"
    assert not is_running(pid)
    assert machine.list_folders() == []


def test_a_run_of_a_stopped_server_says_so(
    machine: FakeMachine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run whose server is stopped fails with a retryable error."""
    monkeypatch.setattr(server_run, "_RESULT_SECONDS", 0.3)
    errors: list[Any] = []

    def run_job() -> None:
        try:
            machine.run_job(seconds=60)
        except JobError as error:
            errors.append(error)

    thread = threading.Thread(target=run_job)
    thread.start()
    machine.wait_for_job("r1")
    assert cli.main(["local-spark", "status"]) == 0
    assert "1 of " in capsys.readouterr().out

    cli.main(["local-spark", "stop"])
    thread.join(60)

    assert errors[0].message.startswith("The shared Spark server was stopped during the run")
    wait_until(lambda: not is_running(machine.list_starts()[0]))


def test_a_server_that_starts_is_listed_and_stopped(
    machine: FakeMachine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status lists a server that is not ready, stop ends it, and the run that waits for it says so."""
    monkeypatch.setenv("SPARK_FAKE", "hanging")
    errors: list[Any] = []

    def run_job() -> None:
        try:
            machine.run_job()
        except JobError as error:
            errors.append(error)

    thread = threading.Thread(target=run_job)
    thread.start()
    wait_until(machine.list_starts)
    (pid,) = machine.list_starts()

    assert cli.main(["local-spark", "status"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith(f"pid {pid}  2g of memory  starting, since ")
    assert cli.main(["local-spark", "stop"]) == 0
    assert f"stopped pid {pid}" in capsys.readouterr().out
    thread.join(60)

    assert errors[0].message.startswith("The shared Spark server has not started: stopped")
    assert not is_running(pid)


def test_stop_removes_the_folders_of_killed_servers(machine: FakeMachine) -> None:
    """The folder of a server that was killed with its supervisor stays until the next start, or stop."""
    machine.run_job()
    (folder,) = machine.list_folders()
    state = folder.read_state()
    for pid in (state.pid, state.server_pid):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not folder.is_supervised())

    assert cli.main(["local-spark", "stop"]) == 0

    assert machine.list_folders() == []


def test_help_names_the_actions(capsys: pytest.CaptureFixture[str]) -> None:
    """The help text describes both actions."""
    with pytest.raises(SystemExit):
        cli.main(["local-spark", "--help"])

    text = " ".join(capsys.readouterr().out.split())
    assert "status lists the servers; stop ends them" in text
