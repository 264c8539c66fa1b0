"""Tests of the temporary folders of Spark processes: permissions and cleanup of abandoned folders."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from airflow_merge_provider.core.child_process import make_work_folder

_HOLD = """
import sys, time
from airflow_merge_provider.core.child_process import make_work_folder
with make_work_folder() as folder:
    (folder / "request.json").write_text("secret")
    print(folder, flush=True)
    time.sleep(60)
"""
_COPY = """
import time
from pathlib import Path
from airflow_merge_provider.jobs.merge_record.files.local_copies import LocalCopies
copies = LocalCopies(None)
folder = copies.create_folder()
folder.write_file("a.json", b"secret")
print(Path(folder.location).parent, flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Place temporary folders below the folder of this test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def make_old(folder: Path) -> None:
    """Set the modification time of a folder to an hour ago."""
    hour_ago = time.time() - 3600
    os.utime(folder, (hour_ago, hour_ago))


def start_holder(program: str = _HOLD) -> tuple[subprocess.Popen[str], Path]:
    """Start a process that creates a folder and keeps it."""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as output:
        return process, Path(output.readline().strip())


def test_a_folder_is_private_and_goes_with_its_block() -> None:
    """Only the user can read a folder, and the folder is deleted at the end of its block."""
    with make_work_folder() as folder:
        mode = stat.S_IMODE(folder.stat().st_mode)

    assert mode == 0o700
    assert not folder.exists()


@pytest.mark.parametrize("program", [_HOLD, _COPY], ids=["request", "copies of files"])
def test_what_a_killed_process_left_goes_with_the_next_run(base: Path, program: str) -> None:
    """The next run deletes the folder of a killed process: its requests, and its copies of files.

    The folder of a running process stays, however old, and so does every folder without a lock of this
    package.
    """
    killed_process, killed_folder = start_holder(program)
    running_process, running_folder = start_holder()
    other_folder = base / "merge-of-somebody-else"
    other_folder.mkdir()
    killed_process.send_signal(signal.SIGKILL)
    killed_process.wait()
    for folder in (killed_folder, running_folder, other_folder):
        make_old(folder)
    try:
        with make_work_folder():
            assert [folder.exists() for folder in (killed_folder, running_folder, other_folder)] == [
                False,
                True,
                True,
            ]
    finally:
        running_process.kill()
        running_process.wait()


def test_a_folder_that_is_just_being_made_is_left_alone(base: Path) -> None:
    """A folder that is being created stays, although its lock may not be held yet."""
    young = base / "merge-young"
    young.mkdir()
    (young / "lock").touch()

    with make_work_folder():
        assert young.exists()
