"""Start the shared server, end it after its idle time, and record why it ended.

This is a process of its own session: neither the end of the task that started it nor a signal to the task's
process group ends it. The server's JVM ends with this process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from airflow_merge_provider.core.child_process import get_filesystem_id, make_work_folder
from airflow_merge_provider.core.errors import MergeError
from airflow_merge_provider.core.spark_conf import merge_settings
from airflow_merge_provider.spark_process.connect_server import START_SECONDS, ConnectServer
from airflow_merge_provider.spark_process.connect_token import LOOPBACK, format_address, offer_token
from airflow_merge_provider.spark_process.jvm.class_archive import COMPILER_OPTIONS, OPTIONS_SETTING
from airflow_merge_provider.spark_process.launch import find_archive
from airflow_merge_provider.spark_process.shared.background import BackgroundWork, Step, build_steps
from airflow_merge_provider.spark_process.shared.identity import ServerSpec, parse_spec
from airflow_merge_provider.spark_process.shared.server_end import FAILED, STOPPED, classify_exit
from airflow_merge_provider.spark_process.shared.server_folder import ServerEnd, ServerFolder, ServerState
from airflow_merge_provider.spark_process.shared.server_run import ServerLog

HOST = LOOPBACK[0]
MODULE = "airflow_merge_provider.spark_process.shared.supervisor"

_SUPERVISOR_POLL_SECONDS = 0.2
_SERVER_STOP_SECONDS = 10.0
# Programs that clean temporary folders remove files that nobody has touched for days.
_TOUCH_SECONDS = 3600.0

# A client that was killed leaves its operations and its session on the server: Spark's defaults keep them for
# 5 and 60 minutes. A run may compute for minutes without a call, so its session must not end earlier.
_SERVER_CONF = {
    "spark.connect.execute.manager.detachedTimeout": "20s",
    "spark.connect.execute.manager.maintenanceInterval": "5s",
    "spark.connect.session.manager.defaultSessionTimeout": "30m",
    "spark.app.name": "Shared Spark server",
}


class Server(Protocol):
    """What the supervisor needs of a server."""

    @property
    def pid(self) -> int: ...

    @property
    def exit_code(self) -> int | None: ...

    def stop(self, grace_seconds: float = 0.0) -> None: ...


class Supervisor:
    """The life of one server; ``request_stop`` ends it from a signal handler."""

    def __init__(
        self,
        folder: ServerFolder,
        spec: ServerSpec,
        *,
        server_id: str,
        idle_seconds: float,
        warm_up: bool,
        start_seconds: float = START_SECONDS,
    ) -> None:
        self._folder = folder
        self._spec = spec
        self._id = server_id
        self._idle_seconds = idle_seconds
        self._warm_up = warm_up
        self._start_seconds = start_seconds
        self._log = ServerLog(folder.log_file)
        self._stop_requested = threading.Event()

    def request_stop(self) -> None:
        """Let the server end; runs that use it fail."""
        self._stop_requested.set()

    def run(self) -> None:
        """Start the server, wait until it ends, and leave no process and no file of an orderly end."""
        token_file = self._folder.token_file
        token_file.unlink(missing_ok=True)
        self._publish_state()
        with make_work_folder() as work, offer_token(0, token_file) as (token, _):
            server = ConnectServer(host=HOST, master=self._spec.master, conf=build_conf(self._spec))
            server.start(work, token)
            self._publish_state(server.pid)
            reader = threading.Thread(target=self._log.copy_lines, args=(server.read_lines(),), daemon=True)
            reader.start()
            try:
                self._supervise_server(server, work)
            finally:
                server.stop(_SERVER_STOP_SECONDS)
                reader.join(_SERVER_STOP_SECONDS)

    def _supervise_server(self, server: ConnectServer, work: Path) -> None:
        """Wait until the server ends, also if it never becomes ready."""
        begin = time.monotonic()
        while not server.is_ready():
            is_late = time.monotonic() - begin > self._start_seconds
            if is_late or server.exit_code is not None or self._stop_requested.is_set():
                self._record_end(server, is_late=is_late)
                return
            time.sleep(_SUPERVISOR_POLL_SECONDS)
        state = self._publish_state(server.pid, server.port)
        background = BackgroundWork(self._build_steps(work / "warm_up", server.port) if self._warm_up else [])
        try:
            self.wait_for_end(server, state.started, background.continue_work)
        finally:
            background.stop()
        self._record_end(server)

    def wait_for_end(self, server: Server, started: float, on_poll: Callable[[float], object]) -> None:
        """Return when the server has ended, is idle for too long, or is to stop.

        ``on_poll`` is called with the seconds since a run used the server, which are zero during a run.
        """
        touched = last_use = started
        while server.exit_code is None and not self._stop_requested.is_set():
            now = time.time()
            in_use = self._folder.count_held_slots() > 0
            last_use = now if in_use else max(last_use, self._folder.find_last_use())
            on_poll(now - last_use)
            if now - last_use >= self._idle_seconds and self._end_idle_server():
                return
            if now - touched > _TOUCH_SECONDS:
                touched = now
                self._touch_files()
            time.sleep(_SUPERVISOR_POLL_SECONDS)

    def _end_idle_server(self) -> bool:
        """Withdraw the server, unless a run is looking for it right now; return whether it is withdrawn."""
        if not self._folder.path.exists():
            # A program that cleans temporary folders has removed it: no run can find the server.
            return True
        with self._folder.try_start_lock() as held:
            if held and not self._folder.count_held_slots():
                self._folder.remove_folder()
                return True
        return False

    def _record_end(self, server: Server, *, is_late: bool = False) -> None:
        """Record why the server ended, if runs may ask why."""
        code = server.exit_code
        # The exit code arrives before the last lines of the output do.
        time.sleep(_SUPERVISOR_POLL_SECONDS)
        if code is not None:
            self._folder.write_end(ServerEnd(self._id, *classify_exit(code, self._log.last_lines)))
        elif self._stop_requested.is_set():
            self._folder.write_end(ServerEnd(self._id, STOPPED))
        elif is_late:
            detail = f"it was not ready within {self._start_seconds:.0f} s"
            self._folder.write_end(ServerEnd(self._id, FAILED, detail))

    def _publish_state(self, server_pid: int = 0, port: int = 0) -> ServerState:
        """Write the state of the server, which is ready once it has a port; return it."""
        state = ServerState(
            id=self._id,
            pid=os.getpid(),
            server_pid=server_pid,
            port=port,
            started=time.time(),
            memory=self._spec.memory,
            cores=self._spec.cores,
            slots=self._spec.slots,
            idle_seconds=self._idle_seconds,
            filesystem=get_filesystem_id() or "",
        )
        self._folder.write_state(state)
        return state

    def _build_steps(self, work: Path, port: int) -> list[Step]:
        archive = find_archive(self._spec.conf)
        return build_steps(f"sc://{format_address(HOST, port)}", self._folder.token_file, work, archive)

    def _touch_files(self) -> None:
        for file in [
            self._folder.path.parent,
            *self._folder.path.parent.glob("*"),
            *self._folder.path.iterdir(),
        ]:
            # The times of slots are those of their last use.
            if not file.name.startswith("slot-"):
                with suppress(OSError):
                    os.utime(file)


def build_conf(spec: ServerSpec) -> dict[str, str]:
    """Return the settings of the server that differ from those of this package."""
    conf = {**_SERVER_CONF, "spark.sql.shuffle.partitions": str(2 * spec.cores)}
    return merge_settings({**conf, OPTIONS_SETTING: COMPILER_OPTIONS}, spec.conf)


def main(argv: Sequence[str]) -> int:
    """Supervise the server of the folder ``argv[0]``, whose specification is on standard input.

    The server lock is an open file that this process inherits and keeps open until it ends.
    """
    values = json.loads(sys.stdin.read())
    if os.fork():
        # The parent waits for this process, and the child belongs to the init process.
        os._exit(0)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    folder = ServerFolder(Path(argv[0]))
    supervisor = Supervisor(
        folder,
        parse_spec(values["spec"]),
        server_id=values["id"],
        idle_seconds=values["idle_seconds"],
        warm_up=values["warm_up"],
        start_seconds=values["start_seconds"],
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: supervisor.request_stop())
    try:
        supervisor.run()
    except MergeError as error:
        folder.write_end(ServerEnd(values["id"], FAILED, error.message))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
