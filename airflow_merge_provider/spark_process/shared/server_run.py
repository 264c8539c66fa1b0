"""Run a job on one shared server, and explain it if the server ends or does not answer meanwhile.

The output of a server goes to a file of bounded size.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

from airflow_merge_provider.core.errors import JobError, SetupError
from airflow_merge_provider.core.protocol import JobFailure, JobResult
from airflow_merge_provider.spark_process.connect_token import LOOPBACK, read_token
from airflow_merge_provider.spark_process.launch import STOPPED_ON_REQUEST, JobProcess
from airflow_merge_provider.spark_process.shared.server_end import OUT_OF_MEMORY, build_end_error
from airflow_merge_provider.spark_process.shared.server_folder import ServerEnd, ServerFolder, ServerState

BuildJob = Callable[[str, Callable[[str], object]], JobProcess]

# The line with which a run reports that it has a session (jobs/run/entry.py).
_SESSION_OPEN = re.compile(r"\[merge .*\] session: ")
# The line before it, with which the process begins to open one.
_SESSION_BEGUN = re.compile(r"\[merge .*\] import: ")
# Opening a session takes seconds, on a busy machine up to half a minute.
_SESSION_SECONDS = 120.0
_RUN_POLL_SECONDS = 0.5
# The time in which a run whose server has ended may still write the result that it has.
_RESULT_SECONDS = 3.0
# A supervisor records the end of its server within this time.
_RECORD_SECONDS = 2.0
# Failures that a lost server can cause; all others are about the data.
_SERVER_FAILURES = (SetupError.code, JobError.code)
_MEMORY_FAILURE = "Spark ran out of memory"


class ServerLostError(JobError):
    """Raised if the server ended or did not answer before the run began, so that another attempt is safe."""


class ServerRun:
    """One attempt of a run on one server.

    :param build_job: builds the process for the address of the server and a function that receives its lines.
    :param memory_setting: the setting that determines the memory of the server.
    """

    def __init__(
        self,
        folder: ServerFolder,
        state: ServerState,
        build_job: BuildJob,
        on_line: Callable[[str], object],
        memory_setting: str,
    ) -> None:
        self._folder = folder
        self._state = state
        self._build_job = build_job
        self._on_line = on_line
        self._memory_setting = memory_setting
        self._has_session = threading.Event()
        self._session_begun: float | None = None
        self._ended = threading.Event()
        self._is_server_lost = False
        self.is_unresponsive = False

    def run_job(self) -> JobResult | JobFailure:
        """Run the job until it ends.

        :raises ServerLostError: if the server ended or did not answer before the run began.
        :raises JobError: if the server or the process ended without a result.
        """
        try:
            token = read_token(self._folder.token_file)
        except OSError:
            raise self._build_lost_error() from None
        # In the environment of the child only, and never in a message: the address contains the token.
        url = f"sc://{LOOPBACK[0]}:{self._state.port}/;token={token}"
        job = self._build_job(url, self._observe_line)
        watcher = threading.Thread(target=self._watch_server, args=(job,), daemon=True)
        watcher.start()
        try:
            outcome = job.run()
        except (JobError, SetupError) as error:
            if self._is_server_lost or (error.message != STOPPED_ON_REQUEST and self._wait_for_loss()):
                raise self._build_lost_error() from None
            raise
        finally:
            self._ended.set()
            watcher.join()
        return self._check_outcome(outcome)

    def _check_outcome(self, outcome: JobResult | JobFailure) -> JobResult | JobFailure:
        """Return the outcome, unless the loss of the server is its reason."""
        if isinstance(outcome, JobResult) or outcome.code not in _SERVER_FAILURES:
            return outcome
        if self._is_server_lost or self._wait_for_loss():
            raise self._build_lost_error()
        if outcome.message.startswith(_MEMORY_FAILURE):
            end = ServerEnd(self._state.id, OUT_OF_MEMORY)
            error = build_end_error(end, self._state.memory, self._memory_setting)
            return outcome.model_copy(update={"message": f"{error.message}\n{outcome.message}"})
        return outcome

    def _observe_line(self, line: str) -> None:
        if _SESSION_OPEN.match(line):
            self._has_session.set()
        elif _SESSION_BEGUN.match(line):
            self._session_begun = time.monotonic()
        self._on_line(line)

    def _watch_server(self, job: JobProcess) -> None:
        """Kill the process when its server ends or does not answer: the process would retry for minutes."""
        while not self._ended.wait(_RUN_POLL_SECONDS):
            if not self._is_server_present():
                self._is_server_lost = True
                self._ended.wait(_RESULT_SECONDS)
            elif self._is_session_late():
                self._is_server_lost = self.is_unresponsive = True
            if self._is_server_lost and not self._ended.is_set():
                job.kill_process(grace_seconds=0)
                return

    def _is_session_late(self) -> bool:
        """Return whether the server has not opened the session in time, once the process has asked for it."""
        begun = self._session_begun
        is_waiting = begun is not None and not self._has_session.is_set()
        return is_waiting and time.monotonic() - (begun or 0.0) > _SESSION_SECONDS

    def _is_server_present(self) -> bool:
        state = self._folder.read_state()
        return state is not None and state.id == self._state.id

    def _wait_for_loss(self) -> bool:
        """Return whether the server has ended; a supervisor needs a moment to notice that."""
        end = time.monotonic() + _RECORD_SECONDS
        while time.monotonic() < end:
            if not self._is_server_present():
                return True
            time.sleep(_RUN_POLL_SECONDS / 5)
        return False

    def _build_lost_error(self) -> JobError:
        if self.is_unresponsive:
            seconds = f"{_SESSION_SECONDS:.0f} s"
            return ServerLostError(
                f"The shared Spark server (pid {self._state.server_pid}) has not opened a session within "
                f"{seconds}: it is replaced, unless other runs use it"
            )
        end = self._folder.read_end(self._state.id)
        error = build_end_error(end, self._state.memory, self._memory_setting)
        return error if self._has_session.is_set() else ServerLostError(error.message)


_FILE_MAX_BYTES = 1 << 20
_LAST_LINES_MAX = 50
_LINE_MAX_CHARACTERS = 2000


class ServerLog:
    """A log file and its last lines; beyond its maximum size the file is renamed and a new one begins."""

    def __init__(self, file: Path, max_bytes: int = _FILE_MAX_BYTES) -> None:
        self._file = file
        self._max_bytes = max_bytes
        self.last_lines: deque[str] = deque(maxlen=_LAST_LINES_MAX)

    def copy_lines(self, lines: Iterable[str]) -> None:
        """Write all lines until there are no more."""
        for line in lines:
            self.write_line(line)

    def write_line(self, line: str) -> None:
        """Write one line, shortened if it is too long."""
        line = line[:_LINE_MAX_CHARACTERS]
        self.last_lines.append(line)
        # The folder is removed when the server ends, possibly before its last lines arrive.
        try:
            descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except FileNotFoundError:
            return
        with os.fdopen(descriptor, "a", encoding="utf-8", errors="replace") as stream:
            stream.write(f"{line}\n")
            is_full = stream.tell() > self._max_bytes
        if is_full:
            self._file.replace(self._file.with_suffix(".log.1"))
