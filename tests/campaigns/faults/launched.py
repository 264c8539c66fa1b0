"""Runs from the command line whose launcher or Spark process is killed: no other process may survive."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Literal

import psutil

from airflow_merge_provider.core.protocol import JobRequest

_SECONDS_MAX = 120
# How long processes may live after the process that they work for has ended.
_GRACE = 20


class LaunchedRun:
    """One attempt on the command line, with its own Spark unless ``remote`` is the address of a server."""

    def __init__(self, work: Path, request: JobRequest, remote: str | None) -> None:
        work.mkdir(parents=True)
        file = work / "request.json"
        file.write_text(request.model_dump_json(), encoding="utf-8")
        command = [sys.executable, "-m", "airflow_merge_provider", "run", str(file)]
        self._log = work / "log.txt"
        with self._log.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [*command, *(["--remote", remote] if remote else [])], stdout=log, stderr=subprocess.STDOUT
            )

    def kill_process(self, victim: Literal["launcher", "child"], seconds: float) -> None:
        """Kill the launcher or its child process, a number of seconds after the child has started.

        All processes of the run have to end then, and a surviving launcher has to report what happened.
        """
        launcher = psutil.Process(self._process.pid)
        end = time.monotonic() + _SECONDS_MAX
        while self._process.poll() is None and not launcher.children() and time.monotonic() < end:
            time.sleep(0.01)
        assert self._process.poll() is not None or launcher.children(), "the child process does not start"
        time.sleep(seconds)
        try:
            family = launcher.children(recursive=True)
            for process in [launcher] if victim == "launcher" else family[:1]:
                process.kill()
        except psutil.NoSuchProcess:
            family = []
        code = self._process.wait(_SECONDS_MAX)
        _, survivors = psutil.wait_procs(family, timeout=_GRACE)
        assert not survivors, f"still running {_GRACE} s after its {victim} was killed: {survivors}"
        log = self._log.read_text(encoding="utf-8", errors="replace")
        is_said = "error: " in log and "Traceback" not in log
        assert code == 0 or victim == "launcher" or is_said, f"exit code {code}: {log[-2000:]}"
