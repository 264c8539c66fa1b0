"""Create the class archive: record the classes that the JVM of a server loads for each kind of plan."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from airflow_merge_provider.core.child_process import (
    build_child_environment,
    die_with_parent,
    make_work_folder,
)
from airflow_merge_provider.spark_process.connect_server import START_SECONDS, ConnectServer
from airflow_merge_provider.spark_process.connect_token import LOOPBACK, TOKEN_VARIABLE, generate_token
from airflow_merge_provider.spark_process.jvm.class_archive import replace_when_complete
from airflow_merge_provider.spark_process.launch import SCRIPT, find_archive, supports_connect

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
