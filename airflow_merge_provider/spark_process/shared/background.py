"""Warm up a new server and record its class archive, with low priority and while no run uses the server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from airflow_merge_provider.core.child_process import (
    build_child_environment,
    die_with_parent,
    make_work_folder,
)
from airflow_merge_provider.spark_process.connect_server import START_SECONDS, ConnectServer
from airflow_merge_provider.spark_process.connect_token import (
    LOOPBACK,
    TOKEN_VARIABLE,
    generate_token,
    read_token,
)
from airflow_merge_provider.spark_process.jvm.class_archive import replace_when_complete
from airflow_merge_provider.spark_process.launch import SCRIPT, find_archive, signal_group, supports_connect

WARM_UP_SCRIPT = SCRIPT.with_name("warm_up.py")

# The JVM writes the archive, of some hundred megabytes, after it has received SIGTERM.
_WRITE_SECONDS = 300.0


def record_archive(on_line: Callable[[str], object] = print) -> Path | None:
    """Create the class archive of this Java, Spark and Delta, unless it exists; None if they cannot.

    :param on_line: called with each output line of Spark.
    :raises SetupError: when Java, Spark or a jar is missing.
    """
    archive = find_archive({})
    if archive.is_file():
        return archive
    # The classes are recorded with a Connect server.
    if not supports_connect():
        return None
    with make_work_folder() as work, replace_when_complete(archive) as part:
        server, token = ConnectServer(host=LOOPBACK[0], recording=part), generate_token()
        server.start(work, token)
        reader = threading.Thread(target=_forward_lines, args=(server, on_line), daemon=True)
        reader.start()
        try:
            server.call_when_ready(
                lambda: _warm_up_server(
                    work / "warm_up", {"SPARK_REMOTE": server.url, TOKEN_VARIABLE: token}
                ),
                START_SECONDS,
            )
        finally:
            server.stop(_WRITE_SECONDS)
            reader.join()
    return archive if archive.is_file() else None


def _warm_up_server(warehouse: Path, client: dict[str, str]) -> None:
    subprocess.run(  # noqa: S603 - our own command, no shell
        [sys.executable, str(WARM_UP_SCRIPT), str(warehouse)],
        env=build_child_environment(**client),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        preexec_fn=die_with_parent,
        check=False,
    )


def _forward_lines(server: ConnectServer, on_line: Callable[[str], object]) -> None:
    for line in server.read_lines():
        on_line(line)


_NICENESS = 15
# The task that has started the server is about to use it.
_QUIET_SECONDS = 2.0
# A step that runs interrupted this often is left out.
_ATTEMPTS_MAX = 3
# The command line of a child process, and its additional environment variables.
Step = tuple[list[str], dict[str, str]]


class BackgroundWork:
    """Steps of low priority, each a child process, which end as soon as a run begins.

    :param steps: the child processes, in their order.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = list(steps)
        self._attempts = 0
        self._child: subprocess.Popen[bytes] | None = None

    def continue_work(self, idle_seconds: float) -> None:
        """Stop the current step if a run uses the server; start the next one if none has for a while."""
        if idle_seconds <= 0:
            self.stop()
            return
        if self._child is not None:
            if self._child.poll() is None:
                return
            self._child = None
            self._end_step()
        if self._steps and idle_seconds >= _QUIET_SECONDS:
            self._attempts += 1
            self._child = _start_step(*self._steps[0])

    def stop(self) -> None:
        """End the current step; it starts again later, unless it has been interrupted too often."""
        child, self._child = self._child, None
        if child is None:
            return
        # The step interrupts its statements on the server when it receives SIGTERM.
        signal_group(child.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            child.wait(2)
        signal_group(child.pid, signal.SIGKILL)
        child.wait()
        if self._attempts >= _ATTEMPTS_MAX:
            self._end_step()

    def _end_step(self) -> None:
        self._steps.pop(0)
        self._attempts = 0


def build_steps(url: str, token_file: Path, work: Path, archive: Path) -> list[Step]:
    """Return the steps of a new server: the warm-up, and the class archive if there is none.

    :param work: a private folder for the tables of the warm-up.
    """
    client = {"SPARK_REMOTE": url, TOKEN_VARIABLE: read_token(token_file)}
    steps: list[Step] = [([sys.executable, str(WARM_UP_SCRIPT), str(work)], client)]
    if not archive.is_file():
        steps.append(([sys.executable, "-P", "-m", "airflow_merge_provider", "prepare"], {}))
    return steps


def _start_step(command: list[str], variables: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - our own command, no shell
        command,
        env=build_child_environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_lower_priority,  # noqa: PLW1509 - two system calls
    )


def _lower_priority() -> None:
    die_with_parent()
    os.nice(_NICENESS)
