"""List the shared servers of this user on this machine, and stop them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from airflow_merge_provider.core.child_process import get_filesystem_id
from airflow_merge_provider.spark_process.shared.server_folder import (
    ServerFolder,
    ServerState,
    find_base_folder,
    list_folders,
)
from airflow_merge_provider.spark_process.shared.server_start import format_duration, stop_server


@dataclass(frozen=True)
class ServerStatus:
    """A server that starts or is ready, and its use at one moment."""

    folder: ServerFolder
    state: ServerState
    runs: int
    idle_seconds: float

    @property
    def pid(self) -> int:
        """The process of the server, or of its supervisor until it has one."""
        return self.state.server_pid or self.state.pid

    def format_line(self) -> str:
        """Return the line of ``local-spark status``."""
        state = self.state
        age = format_duration(time.time() - state.started)
        if not state.port:
            return f"pid {self.pid}  {state.memory} of memory  starting, since {age}"
        if self.runs:
            use = f"{self.runs} of {state.slots} slots in use"
        else:
            limit = format_duration(state.idle_seconds)
            use = f"idle for {format_duration(self.idle_seconds)}, ends after {limit}"
        cores = f"{state.cores} core{'s' if state.cores > 1 else ''}"
        return (
            f"pid {state.server_pid}  port {state.port}  {state.memory} of memory  {cores}  "
            f"started {age} ago  {use}"
        )


def list_servers() -> list[ServerStatus]:
    """Return the servers of this user that use the same file system as this process.

    :raises SetupError: if the folder of all servers is not a private folder of this user.
    """
    return list(_iterate_servers())


def stop_servers() -> list[ServerStatus]:
    """Stop all servers, and return them as they were; their runs fail with a retryable error.

    The folders of servers that have ended before are removed, too.

    :raises SetupError: if the folder of all servers is not a private folder of this user.
    """
    servers = list_servers()
    for server in servers:
        stop_server(server.folder, server.state)
    used_paths = {server.folder.path for server in servers if server.runs}
    for folder in list_folders(find_base_folder()):
        with folder.try_start_lock() as held:
            is_used = folder.path in used_paths or folder.is_supervised() or folder.count_held_slots()
            if held and not is_used:
                folder.remove_folder()
    return servers


def _iterate_servers() -> Iterator[ServerStatus]:
    for folder in list_folders(find_base_folder()):
        state = folder.read_any_state()
        # Process IDs of another container mean other processes here.
        if state is not None and state.filesystem == (get_filesystem_id() or ""):
            last_use = max(state.started, folder.find_last_use())
            yield ServerStatus(folder, state, folder.count_held_slots(), max(time.time() - last_use, 0.0))
