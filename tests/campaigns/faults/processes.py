"""Runs in separate processes that are forked from one with all imports and can be killed at any time."""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from airflow_merge_provider.core.capabilities import CAPABILITIES
from airflow_merge_provider.core.protocol import JobFailure, JobRequest, JobResult, parse_result
from airflow_merge_provider.jobs.run import entry
from airflow_merge_provider.jobs.spark.session import get_session
from airflow_merge_provider.spark_process.connect_token import add_token
from tests.campaigns.faults.steps import Fault, StepCounter
from tests.conformance.lean import FEW_ROWS

# Longer than any run of a few rows takes on a busy machine.
_SECONDS_MAX = 120


@dataclass(frozen=True, slots=True)
class RunEnd:
    """End of a process: its answer, or that it was killed, and its number of steps if it was not."""

    answer: JobResult | JobFailure | None
    steps: int
    seconds: float
    log: str

    @property
    def is_killed(self) -> bool:
        """Return whether the process ended without a result."""
        return self.answer is None


class RunProcess:
    """One attempt of a run in a process that is forked from this one.

    This process must not have used Spark or delta-rs, because their threads are not copied by a fork.
    """

    def __init__(self, work: Path, request: JobRequest, remote: str, fault: Fault | None = None) -> None:
        self._work = work
        work.mkdir(parents=True)
        (work / "request.json").write_text(request.model_dump_json(), encoding="utf-8")
        (work / "session.json").write_text(json.dumps(FEW_ROWS), encoding="utf-8")
        self._began = time.monotonic()
        self.pid = fork_process(
            lambda: self._run_request(str(request.warehouse), remote, fault), work / "log.txt"
        )

    def wait_for_end(self) -> RunEnd:
        """Wait until the process has ended."""
        status = self._wait_for(0)
        seconds = time.monotonic() - self._began
        log = (self._work / "log.txt").read_text(encoding="utf-8", errors="replace")
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            return RunEnd(None, 0, seconds, log)
        assert os.WIFEXITED(status), (status, log)
        assert os.WEXITSTATUS(status) in {0, 1}, log
        steps = int((self._work / "steps.txt").read_text(encoding="utf-8"))
        return RunEnd(parse_result((self._work / "result.json").read_text(), seconds), steps, seconds, log)

    def wait_for_stop(self) -> bool:
        """Wait until the process is stopped; return False if it has ended, and ``wait`` still returns it."""
        options = os.WSTOPPED | os.WEXITED | os.WNOWAIT
        end = time.monotonic() + _SECONDS_MAX
        while time.monotonic() < end:
            status = os.waitid(os.P_PID, self.pid, options | os.WNOHANG)
            if status is not None:
                return status.si_code == os.CLD_STOPPED
            time.sleep(0.01)
        raise TimeoutError(self._work)

    def resume_process(self) -> None:
        """Resume a stopped process."""
        os.kill(self.pid, signal.SIGCONT)

    def _wait_for(self, options: int) -> int:
        end = time.monotonic() + _SECONDS_MAX
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, options | os.WNOHANG)
            if pid:
                return status
            time.sleep(0.01)
        os.kill(self.pid, signal.SIGABRT)
        time.sleep(1)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        raise TimeoutError((self._work / "log.txt").read_text(encoding="utf-8"))

    def _run_request(self, folder: str, remote: str, fault: Fault | None) -> int:
        url, token = add_token(remote)
        os.environ.update(token, SPARK_REMOTE=url)
        counter = StepCounter(folder, fault)
        counter.start_counting()
        names = ("request.json", "result.json", "session.json")
        code = entry.main([str(self._work / name) for name in names])
        (self._work / "steps.txt").write_text(str(counter.count), encoding="utf-8")
        return code


def import_jobs(remote: str) -> None:
    """Import what runs need, so that forked processes do not have to import it."""
    # PySpark decides by this variable what it imports.
    os.environ["SPARK_REMOTE"] = remote
    for name in (*CAPABILITIES, "undo"):
        importlib.import_module(f"airflow_merge_provider.jobs.{name}.job")
    importlib.import_module("pyspark.sql.connect.session")


def open_session(remote: str) -> SparkSession:
    """Return a session of a server in this process, with the settings of all runs.

    Automatic garbage collection ends: it would call the server from any thread, also from one of gRPC.
    """
    gc.disable()
    url, token = add_token(remote)
    os.environ.update(token, SPARK_REMOTE=url)
    return get_session(FEW_ROWS)


def fork_process(run: Callable[[], int], log: Path) -> int:
    """Start a process that runs a function and ends with the returned exit code."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        faulthandler.enable(file=sys.__stderr__, all_threads=True)
        code = run()
    except BaseException:  # noqa: BLE001 - the process ends here, after any error
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Do not close resources that this process inherited and does not own.
        os._exit(code)


def call_in_process(function: Callable[..., Any], folder: Path, *arguments: Any) -> Any:
    """Return the result of a function in a separate process, converted to JSON and back."""
    answer, log = folder / "answer.json", folder / "answer.txt"
    answer.unlink(missing_ok=True)

    def run_function() -> int:
        answer.write_text(json.dumps(function(*arguments)), encoding="utf-8")
        return 0

    _, status = os.waitpid(fork_process(run_function, log), 0)
    assert status == 0, log.read_text(encoding="utf-8")
    return json.loads(answer.read_text(encoding="utf-8"))
