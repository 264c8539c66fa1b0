"""Find the server of a specification, or start its supervisor, exactly once for all tasks of this user."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from operator import itemgetter

from airflow_merge_provider.core.child_process import get_filesystem_id
from airflow_merge_provider.core.errors import JobError
from airflow_merge_provider.spark_process.connect_server import START_SECONDS
from airflow_merge_provider.spark_process.shared.identity import ServerSpec, build_environment
from airflow_merge_provider.spark_process.shared.server_folder import (
    ServerFolder,
    ServerState,
    Slot,
    find_base_folder,
    list_folders,
    read_key,
    release_lock,
    remove_left_folders,
    try_lock,
    try_slot,
)
from airflow_merge_provider.spark_process.shared.settings import LocalSparkSettings
from airflow_merge_provider.spark_process.shared.supervisor import HOST, MODULE

_START_POLL_SECONDS = 0.1
_WAIT_SECONDS = 0.5
# A supervisor ends a server that is not ready in time; one that does not is ended.
_END_SECONDS = 60.0
_ANSWER_SECONDS = 10.0
_START_STOP_SECONDS = 30.0
_LOG_SECONDS = 60.0
# A run that starts a server leaves this many others that no run uses.
IDLE_SERVERS_MAX = 2


class ServerStart:
    """The way of one run to a ready server and a slot on it.

    :param check_stop: raises an error if the run is to be stopped.
    """

    def __init__(
        self,
        spec: ServerSpec,
        settings: LocalSparkSettings,
        *,
        on_line: Callable[[str], object],
        check_stop: Callable[[], object],
    ) -> None:
        self._spec = spec
        self._settings = settings
        self._on_line = on_line
        self._check_stop = check_stop
        self._logged = -_LOG_SECONDS
        self._start_seconds = START_SECONDS
        base = find_base_folder()
        remove_left_folders(base)
        self.folder = ServerFolder(base / spec.compute_digest(read_key(base)))

    def acquire_slot(self) -> tuple[ServerState, Slot]:
        """Return a ready server and a slot on it, after waiting for both if necessary.

        :raises JobError: if the server cannot be started.
        """
        attempts = 0
        while True:
            self._check_stop()
            self.folder.make_folder()
            state, slot = None, None
            with self.folder.try_start_lock() as held:
                if held:
                    state = self._find_server() or self._start_server()
                    slot = try_slot(self.folder, state.slots)
            if state is not None and slot is not None:
                age = format_duration(time.time() - state.started)
                self._on_line(f"using the shared Spark server (pid {state.server_pid}, started {age} ago)")
                return state, slot
            # The first failed attempt may have met a process that counts the slots.
            attempts += held
            if not held and self._is_starting():
                self._log_once_per_minute("waiting for the shared Spark server, which another run starts")
            elif attempts > 1:
                in_use = f"{self.folder.count_held_slots()} of {self._spec.slots} are in use"
                self._log_once_per_minute(f"waiting for a slot of the shared Spark server: {in_use}")
            time.sleep(_START_POLL_SECONDS if attempts <= 1 else _WAIT_SECONDS)

    def replace_server(self, state: ServerState) -> None:
        """End a server that does not answer, unless other runs use it.

        The next call of ``acquire_slot`` starts another one.
        """
        with self.folder.try_start_lock() as held:
            if held:
                self._replace_unused(state)

    def _replace_unused(self, state: ServerState) -> bool:
        """End a server that no run uses, while no run can begin to use it; return whether it has ended."""
        if self.folder.count_held_slots():
            self._on_line(f"the shared Spark server (pid {state.server_pid}) is slow: other runs use it")
            return False
        self._on_line(f"the shared Spark server (pid {state.server_pid}) does not answer: it is replaced")
        stop_server(self.folder, state)
        return True

    def _find_server(self) -> ServerState | None:
        """Return the server if it is ready and its port answers."""
        state = self.folder.read_state()
        if state is None:
            return None
        try:
            socket.create_connection((HOST, state.port), timeout=_ANSWER_SECONDS).close()
        except OSError:
            return None if self._replace_unused(state) else state
        return state

    def _start_server(self) -> ServerState:
        """Start a supervisor unless there is one already, and wait until the server is ready."""
        begin, server_id = time.monotonic(), ""
        while True:
            self._check_stop()
            is_supervised = self.folder.is_supervised()
            if state := self.folder.read_state():
                break
            if not is_supervised and server_id:
                raise JobError(self._describe_failed_start(server_id))
            # Another process may check the lock at this moment: then the next round starts the supervisor.
            if not is_supervised and (lock := try_lock(self.folder.server_lock)) is not None:
                cores = f"{self._spec.cores} core{'s' if self._spec.cores > 1 else ''}"
                end_idle_servers(self.folder)
                self._on_line(f"starting a shared Spark server ({self._spec.memory} of memory, {cores})")
                server_id = self._launch_supervisor(lock)
            if time.monotonic() - begin > self._start_seconds + _END_SECONDS:
                self._end_start()
            time.sleep(_START_POLL_SECONDS)
        seconds = time.monotonic() - begin
        self._on_line(f"the shared Spark server is ready after {seconds:.1f} s")
        return state

    def _end_start(self) -> None:
        """End a supervisor that has neither started its server nor ended.

        :raises JobError: always.
        """
        if (state := self.folder.read_any_state()) is not None:
            stop_server(self.folder, state)
        raise JobError(
            f"The shared Spark server has not started within {self._start_seconds:.0f} s: look into "
            f"{self.folder.log_file}, or set [merge] local_spark to process"
        )

    def _launch_supervisor(self, lock: int) -> str:
        """Start the supervisor, which inherits the server lock and no other file; return the server's ID."""
        self.folder.remove_old_ends()
        values = {
            "id": secrets.token_hex(8),
            "spec": self._spec.as_object(),
            "idle_seconds": self._settings.idle_seconds,
            "warm_up": self._settings.warm_up,
            "start_seconds": self._start_seconds,
        }
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        log = os.open(self.folder.log_file, flags, 0o600)
        try:
            supervisor = subprocess.Popen(  # noqa: S603 - our own command, no shell
                [sys.executable, "-P", "-m", MODULE, str(self.folder.path)],
                env=build_environment(self._spec),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                # Spark writes into its working folder; this one is removed with the server.
                cwd=self.folder.path,
                start_new_session=True,
                pass_fds=(lock,),
            )
        finally:
            os.close(log)
            release_lock(lock)
        try:
            # It reads the values, and its first process ends.
            supervisor.communicate(json.dumps(values).encode(), timeout=self._start_seconds)
        except BrokenPipeError:
            supervisor.wait()
        except subprocess.TimeoutExpired:
            supervisor.kill()
            supervisor.wait()
            self._end_start()
        return str(values["id"])

    def _is_starting(self) -> bool:
        return self.folder.is_supervised() and self.folder.read_state() is None

    def _describe_failed_start(self, server_id: str) -> str:
        end = self.folder.read_end(server_id)
        lines = self.folder.read_last_lines()
        reason = end.detail or end.reason if end else (lines[-1] if lines else "no output")
        text = "".join(f"\n{line}" for line in lines)
        return f"The shared Spark server has not started: {reason}{text}"

    def _log_once_per_minute(self, line: str) -> None:
        if time.monotonic() - self._logged > _LOG_SECONDS:
            self._logged = time.monotonic()
            self._on_line(line)


def end_idle_servers(own: ServerFolder) -> None:
    """End the servers that no run uses, except those that were used last: each holds its memory."""
    servers = [(folder.find_last_use(), folder) for folder in list_folders(own.path.parent)]
    for _, folder in sorted(servers, key=itemgetter(0), reverse=True)[IDLE_SERVERS_MAX:]:
        if folder.path == own.path:
            continue
        with folder.try_start_lock() as held:
            state = folder.read_state()
            is_foreign = state is None or state.filesystem != (get_filesystem_id() or "")
            if held and state is not None and not is_foreign and not folder.count_held_slots():
                stop_server(folder, state)


def stop_server(folder: ServerFolder, state: ServerState) -> None:
    """End a server and its supervisor, and wait until both are gone."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        # As long as the lock is held, the process ID belongs to the supervisor.
        if folder.is_supervised():
            with contextlib.suppress(ProcessLookupError):
                os.kill(state.pid, number)
        end = time.monotonic() + _START_STOP_SECONDS
        while folder.is_supervised() and time.monotonic() < end:
            time.sleep(_START_POLL_SECONDS)


def format_duration(seconds: float) -> str:
    """Return a duration for people, in its largest unit.

    >>> format_duration(1), format_duration(200), format_duration(7300)
    ('1 second', '3 minutes', '2 hours')
    """
    for size, unit in ((3600, "hour"), (60, "minute"), (1, "second")):
        number = int(seconds) // size
        if number or size == 1:
            return f"{number} {unit}" if number == 1 else f"{number} {unit}s"
    return ""
