"""Test that the Spark server that tests share runs as long as one of their processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil

from tests.conformance import server

_HOLD = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_SH)
print("held", flush=True)
sys.stdin.read()
"""
_SERVE = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"


def test_a_server_ends_with_its_last_process(tmp_path: Path) -> None:
    """A killed process does not leave a server, and one that ends leaves it to the others."""
    users, address = tmp_path / "users", tmp_path / "address"
    address.touch()
    hold = [sys.executable, "-c", _HOLD, str(users)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(hold, **pipes) as first, subprocess.Popen(hold, **pipes) as second:
        assert [process.stdout.readline() for process in (first, second)] == [b"held\n"] * 2
        command = [sys.executable, server.__file__, str(users), str(address), sys.executable, "-c", _SERVE]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as keeper:
            assert keeper.stdout is not None
            served = psutil.Process(int(keeper.stdout.readline()))

            first.communicate()
            assert served.is_running()
            assert address.exists()
            second.kill()

            assert keeper.wait(60) == 0
            assert not served.is_running()
            assert not address.exists()
