"""Tests of the files of shared servers: locks of real processes, private folders, and what is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.spark_process.shared.server_end import build_end_error, classify_exit
from airflow_merge_provider.spark_process.shared.server_folder import (
    ServerEnd,
    ServerFolder,
    find_base_folder,
    is_locked,
    list_folders,
    release_lock,
    remove_left_folders,
    try_lock,
    try_slot,
)
from airflow_merge_provider.spark_process.shared.server_run import ServerLog
from airflow_merge_provider.spark_process.shared.server_start import format_duration
from tests.unit.spark_process.conftest import FakeMachine

_HOLD = """
import sys, pathlib
from airflow_merge_provider.spark_process.shared.server_folder import try_lock
print(try_lock(pathlib.Path(sys.argv[1])), flush=True)
sys.stdin.read()
"""


def hold_lock(path: Path) -> subprocess.Popen[str]:
    """Hold a lock in another process, until that is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline().strip() != "None"
    return process


def kill_process(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_the_kernel_releases_the_lock_of_a_killed_process(tmp_path: Path) -> None:
    """A lock is held as long as its process lives, and free as soon as it is killed."""
    path = tmp_path / "lock"
    assert not is_locked(path)
    process = hold_lock(path)
    assert is_locked(path)
    assert try_lock(path) is None

    kill_process(process)

    assert not is_locked(path)
    lock = try_lock(path)
    assert lock is not None
    release_lock(lock)


def test_a_lock_on_a_removed_file_does_not_count(tmp_path: Path) -> None:
    """Whoever locks a file after it was replaced holds no lock, because others lock the new file."""
    path = tmp_path / "lock"
    first = try_lock(path)
    path.unlink()
    second = try_lock(path)

    assert first is not None
    assert second is not None
    release_lock(first)
    assert is_locked(path)
    release_lock(second)


def test_slots_are_limited(tmp_path: Path) -> None:
    """As many slots can be held as there are; a released one can be held again."""
    folder = ServerFolder(tmp_path)
    slots = [try_slot(folder, 2) for _ in range(3)]
    assert [slot is not None for slot in slots] == [True, True, False]
    assert folder.count_held_slots() == 2

    slots[0].release()

    assert folder.count_held_slots() == 1
    again = try_slot(folder, 2)
    assert again is not None
    again.release()
    slots[1].release()
    assert folder.find_last_use() > 0


def test_the_folder_is_private(machine: FakeMachine) -> None:
    """The folder of all servers is private; one that others can enter, or a link, is rejected."""
    base = find_base_folder()
    assert base.name == f"airflow-merge-spark-{os.getuid()}"
    assert base.stat().st_mode & 0o777 == 0o700
    base.chmod(0o755)
    with pytest.raises(SetupError, match="is not a private folder of this user: remove it, set TMPDIR"):
        find_base_folder()
    base.rmdir()
    base.symlink_to(machine.folder)

    with pytest.raises(SetupError, match="is not a private folder"):
        find_base_folder()
    base.unlink()


def test_a_file_in_place_of_the_folder_is_an_error(machine: FakeMachine) -> None:
    """A file with the name of the folder is an error with what to do."""
    base = find_base_folder()
    base.rmdir()
    base.touch(0o600)

    with pytest.raises(SetupError, match=r"cannot be created: remove it, .* set \[merge\] local_spark"):
        find_base_folder()
    base.unlink()


def test_folders_of_servers_that_are_gone_are_removed(machine: FakeMachine) -> None:
    """The folder of a killed server is removed later, that of a living one is not."""
    base = find_base_folder()
    folders = [ServerFolder(base / name) for name in ("gone", "new", "alive")]
    for folder in folders:
        folder.make_folder()
        if folder.path.name != "new":
            os.utime(folder.path, (0, 0))
    holder = hold_lock(folders[2].server_lock)
    os.utime(folders[2].path, (0, 0))

    remove_left_folders(base)

    assert [folder.path.name for folder in list_folders(base)] == ["alive", "new"]
    kill_process(holder)


def test_an_end_is_recorded_for_its_server(tmp_path: Path) -> None:
    """Runs find the end of their own server, also after another one has started and ended."""
    folder = ServerFolder(tmp_path)
    folder.write_end(ServerEnd("a", "killed"))
    folder.write_end(ServerEnd("b", "failed", "exit code 1: no"))

    assert folder.read_end("a") == ServerEnd("a", "killed")
    assert folder.read_end("c") is None
    for file in tmp_path.glob("ended-a*"):
        os.utime(file, (0, 0))
    folder.remove_old_ends()
    assert folder.read_end("a") is None
    assert folder.read_end("b") is not None


def test_the_log_of_a_server_is_bounded(tmp_path: Path) -> None:
    """The log has at most two files of the maximum size, and lines are shortened."""
    log = ServerLog(tmp_path / "server.log", max_bytes=5000)
    log.copy_lines(f"{number} {'x' * 3000}" for number in range(20))

    sizes = [file.stat().st_size for file in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert max(sizes) < 8000
    assert log.last_lines[-1].startswith("19 x")


@pytest.mark.parametrize(
    ("code", "lines", "reason"),
    [
        (3, ["Terminating due to java.lang.OutOfMemoryError: Java heap space"], "out-of-memory"),
        (52, [], "out-of-memory"),
        (1, ["java.lang.OutOfMemoryError: Metaspace"], "out-of-memory"),
        (-9, [], "killed"),
        (137, [], "killed"),
        (143, ["", "bye"], "failed"),
    ],
)
def test_the_reason_of_an_end_is_its_exit_code(code: Any, lines: Any, reason: Any) -> None:
    """Out of memory and a kill are recognized; any other end has its exit code and last line."""
    assert classify_exit(code, lines)[0] == reason


def test_every_end_is_one_retryable_line() -> None:
    """The error of every end has one line with what to do, and a retry can succeed."""
    ends = [None, *(ServerEnd("a", reason, "exit code 1: no") for reason in ("stopped", "killed", "failed"))]
    errors = [build_end_error(end, "2g", "[merge] local_spark_memory") for end in ends]

    assert all(error.retryable and "\n" not in error.message for error in errors)
    assert all(error.message.endswith("a retry starts a new server") for error in errors)


def test_durations_are_readable() -> None:
    """Durations are in their largest unit."""
    texts = [format_duration(seconds) for seconds in (0, 1, 59, 60, 150, 3600, 9000)]
    assert texts == ["0 seconds", "1 second", "59 seconds", "1 minute", "2 minutes", "1 hour", "2 hours"]
