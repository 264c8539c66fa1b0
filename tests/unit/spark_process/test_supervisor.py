"""Tests of the supervisor and its background work, in this process and with real child processes."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_merge_provider.spark_process.connect_server import START_SECONDS
from airflow_merge_provider.spark_process.connect_token import TOKEN_VARIABLE
from airflow_merge_provider.spark_process.shared import (
    server_folder,
    server_run,
    server_start,
    supervisor as module,
)
from airflow_merge_provider.spark_process.shared.background import BackgroundWork, build_steps
from airflow_merge_provider.spark_process.shared.identity import build_spec, parse_spec
from airflow_merge_provider.spark_process.shared.server_folder import (
    ServerFolder,
    find_base_folder,
    release_lock,
    try_lock,
    try_slot,
)
from airflow_merge_provider.spark_process.shared.settings import LocalSparkSettings
from airflow_merge_provider.spark_process.shared.supervisor import Supervisor, build_conf
from tests.unit.spark_process.conftest import FakeMachine, is_running, wait_until

DEFAULTS = {"idle_seconds": 600.0, "warm_up": False}


class SupervisorThread:
    """A supervisor in a thread of this process, which holds the server lock meanwhile."""

    def __init__(self, machine: FakeMachine, *, start_seconds: float = 60.0, **options: Any) -> None:
        self.folder = ServerFolder(find_base_folder() / "a")
        self.folder.make_folder()
        self._lock = try_lock(self.folder.server_lock)
        spec = build_spec({}, LocalSparkSettings())
        self.supervisor = Supervisor(
            self.folder, spec, server_id="a", start_seconds=start_seconds, **DEFAULTS | options
        )
        self._thread = threading.Thread(target=self.supervisor.run)
        self._thread.start()

    def wait_for_end(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()
        release_lock(self._lock)


@pytest.fixture
def script(tmp_path: Path) -> Any:
    """Return the command line of a step that records its start and runs for some seconds."""

    def build_step(name: str, seconds: float) -> tuple[list[str], dict[str, str]]:
        code = f"import os, time; open({str(tmp_path / name)!r}, 'a').write('x'); time.sleep({seconds})"
        return [sys.executable, "-c", code], {"NAME": name}

    return build_step


def test_an_idle_server_is_withdrawn(machine: FakeMachine) -> None:
    """The server ends after the idle time, but not while a slot is held."""
    running = SupervisorThread(machine, idle_seconds=0.2)
    wait_until(running.folder.read_state)
    slot = try_slot(running.folder, 1)
    time.sleep(0.8)
    assert running.folder.read_state() is not None

    slot.release()
    running.wait_for_end()

    assert not running.folder.path.exists()
    assert not any(is_running(pid) for pid in machine.list_starts())


def test_a_run_that_looks_for_the_server_keeps_it(machine: FakeMachine) -> None:
    """While a run holds the start lock, the idle server does not end."""
    running = SupervisorThread(machine, idle_seconds=0.2)
    with running.folder.try_start_lock() as held:
        assert held
        wait_until(running.folder.read_state)
        time.sleep(0.8)
        assert running.folder.read_state() is not None

    running.wait_for_end()


def test_a_server_whose_folder_was_removed_ends(machine: FakeMachine) -> None:
    """No run finds a server without its folder, so it ends after the idle time, too."""
    running = SupervisorThread(machine, idle_seconds=0.2)
    wait_until(running.folder.read_state)

    shutil.rmtree(running.folder.path)
    running.wait_for_end()

    assert not any(is_running(pid) for pid in machine.list_starts())


def test_a_stopped_supervisor_records_the_end(machine: FakeMachine) -> None:
    """A server that is to stop ends, and its record says why."""
    running = SupervisorThread(machine)
    wait_until(running.folder.read_state)
    assert running.folder.token_file.exists()

    running.supervisor.request_stop()
    running.wait_for_end()

    assert running.folder.read_end("a").reason == "stopped"
    assert not running.folder.token_file.exists()


def test_a_server_that_runs_out_of_memory_is_recorded(machine: FakeMachine) -> None:
    """The record of a server without memory has this reason."""
    running = SupervisorThread(machine)
    wait_until(running.folder.read_state)

    (machine.folder / "exhausted").touch()
    running.wait_for_end()

    assert running.folder.read_end("a").reason == "out-of-memory"


def test_a_server_is_ready_when_it_says_so(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the server itself has answered, its state has no port, and it ends when its time is over."""
    monkeypatch.setenv("SPARK_FAKE", "hanging")
    running = SupervisorThread(machine, start_seconds=1.0)

    wait_until(machine.list_starts)
    assert running.folder.read_state() is None
    assert running.folder.read_any_state().port == 0
    running.wait_for_end()

    end = running.folder.read_end("a")
    assert (end.reason, end.detail) == ("failed", "it was not ready within 1 s")
    assert not any(is_running(pid) for pid in machine.list_starts())


def test_old_files_are_touched(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor touches its files from time to time, but not those that show the last use."""
    monkeypatch.setattr(module, "_TOUCH_SECONDS", 0.1)
    running = SupervisorThread(machine)
    wait_until(running.folder.read_state)
    slot = running.folder.slot_file(0)
    slot.touch(0o600)
    for file in (slot, running.folder.server_lock):
        os.utime(file, (0, 0))

    wait_until(lambda: running.folder.server_lock.stat().st_mtime > 0)

    assert slot.stat().st_mtime == 0
    running.supervisor.request_stop()
    running.wait_for_end()


def test_clients_that_vanish_do_not_keep_their_statements() -> None:
    """The server ends the statements of a killed client soon; settings of the user take precedence."""
    spec = parse_spec(
        {
            "conf": {"spark.connect.execute.manager.detachedTimeout": "7s", "spark.driver.memory": "2g"},
            "cores": 3,
            "environment": {},
            "facts": {},
        }
    )
    conf = build_conf(spec)

    assert conf["spark.connect.execute.manager.detachedTimeout"] == "7s"
    assert conf["spark.connect.session.manager.defaultSessionTimeout"] == "30m"
    assert conf["spark.sql.shuffle.partitions"] == "6"
    assert spec.master == "local[3]"


def test_times_are_those_of_the_page() -> None:
    """The page names how long clients and servers have, and how many idle servers stay."""
    times: list[Any] = [server_run._SESSION_SECONDS, START_SECONDS, server_folder._ABANDONED_SECONDS]
    spec = parse_spec({"conf": {"spark.driver.memory": "2g"}, "cores": 2, "environment": {}, "facts": {}})

    assert times == [120, 180, 3600]
    assert [server_start.IDLE_SERVERS_MAX] == [2]
    assert build_conf(spec)["spark.connect.execute.manager.detachedTimeout"] == "20s"
    assert "-XX:TieredStopAtLevel=1" in build_conf(spec)["spark.driver.extraJavaOptions"]


def test_background_work_stops_for_a_run(tmp_path: Path, script: Any) -> None:
    """A step begins when the server is idle, ends as soon as a run begins, and starts again at most twice."""
    work = BackgroundWork([script("long", 60), script("short", 0)])
    work.continue_work(1.0)
    assert not (tmp_path / "long").exists()

    for _ in range(3):
        (tmp_path / "long").unlink(missing_ok=True)
        work.continue_work(5.0)
        wait_until((tmp_path / "long").exists)
        work.continue_work(0.0)

    def is_done() -> bool:
        work.continue_work(5.0)
        return (tmp_path / "short").exists()

    wait_until(is_done)
    work.stop()


def test_the_archive_is_made_only_if_it_is_missing(tmp_path: Path) -> None:
    """The steps are the warm-up and, without a class archive, its creation."""
    token_file, archive = tmp_path / "token", tmp_path / "a.jsa"
    token_file.touch(0o600)
    token_file.write_text("hush")

    both = build_steps("sc://localhost:1", token_file, tmp_path, archive)
    archive.touch()
    (warm_up,) = build_steps("sc://localhost:1", token_file, tmp_path, archive)

    assert len(both) == 2
    assert "hush" not in " ".join(warm_up[0])
    assert warm_up[1][TOKEN_VARIABLE] == "hush"
