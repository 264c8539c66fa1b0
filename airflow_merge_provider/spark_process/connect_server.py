"""Run a Spark Connect server in a child process: for a user in the foreground, or for all local runs."""

from __future__ import annotations

import contextlib
import errno
import math
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from airflow_merge_provider.core.child_process import (
    FILESYSTEM_SETTING,
    get_filesystem_id,
    make_work_folder,
    read_server_answer,
)
from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.core.spark_conf import (
    format_settings,
    inherit_settings,
    merge_settings,
    session_conf,
)
from airflow_merge_provider.spark_process.connect_token import (
    LOCALHOST,
    LOOPBACK,
    TOKEN_SETTING,
    find_loopback,
    format_address,
    offer_token,
)
from airflow_merge_provider.spark_process.jvm.class_archive import (
    add_recording_settings,
    archive_file,
    long_lived,
)
from airflow_merge_provider.spark_process.jvm.jars import find_java, spark_home
from airflow_merge_provider.spark_process.jvm.spark_defaults import has_local_paths, read_spark_defaults
from airflow_merge_provider.spark_process.launch import (
    LOCAL,
    NO_CONNECT,
    SCRIPT,
    build_submit_command,
    is_local,
    list_jars,
    read_lines,
    signal_group,
    start_child,
    supports_connect,
)

# Spark's own server class compiles the generated code of a plan again for each session, because it forces
# isolated class loaders on every session. As a plug-in of an application, the service follows the setting.
_APPLICATION = SCRIPT.with_name("serve.py")
_PLUGIN = {"spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin"}
_SHARED_CLASSES = {"spark.sql.artifact.isolation.enabled": "false"}
# By default, the heap of a server fills up in some hundred runs. Delta keeps the logs of 10,000 tables for an
# hour, each with the session that read it first, and nobody looks at the executions of a server without a UI.
_BOUNDED_MEMORY = {
    "spark.databricks.delta.delta.log.cacheSize": "64",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.ui.retainedJobs": "100",
    "spark.ui.retainedStages": "100",
    "spark.ui.retainedTasks": "1000",
}
_READY_POLL_SECONDS = 0.1
# The time in which a server has to be ready, also on a busy machine.
START_SECONDS = 180.0
_PROBE_SECONDS = 1.0


class ConnectServer:
    """A Spark Connect server in a child process.

    :param port: zero for a free one.
    :param conf: Spark settings, which override those of this package.
    :param recording: the class archive that the JVM writes when it ends; None if it writes none.
    :raises SetupError: when Java, Spark or a jar is missing, or the port is taken.
    """

    def __init__(
        self,
        *,
        host: str,
        port: int = 0,
        master: str = LOCAL,
        conf: Mapping[str, str] | None = None,
        recording: Path | None = None,
    ) -> None:
        host = find_loopback(host) or host
        self._held_port = _hold_port(host, port)
        self._host, self._port, self._master = host, port, master
        self._settings = build_server_conf(format_settings(conf), master=master, recording=recording) | {
            "spark.connect.grpc.binding.address": host,
            "spark.connect.grpc.binding.port": str(port),
        }
        self._child: subprocess.Popen[str] | None = None
        self._answer_file, self._token = Path(), ""

    @property
    def url(self) -> str:
        """The address for clients on this machine; PySpark itself sends a token to a name only."""
        host = LOCALHOST if self._host == LOOPBACK[0] else self._host
        return f"sc://{format_address(host, self._port)}"

    @property
    def port(self) -> int:
        """The port on which the server listens, once it is ready."""
        return self._port

    @property
    def pid(self) -> int:
        """The ID of the server's process; zero before it is started."""
        return self._child.pid if self._child else 0

    @property
    def exit_code(self) -> int | None:
        """The exit code, or None while the server runs."""
        return self._child.poll() if self._child else None

    def start(self, work: Path, token: str) -> None:
        """Start the process; ``work`` is a private folder, which must exist while the server runs."""
        settings = {**self._settings, TOKEN_SETTING: token}
        self._answer_file, self._token = work / "answer", token
        application = [str(_APPLICATION), str(self._answer_file)]
        command, env = build_submit_command(application, settings, work, master=self._master)
        self._child = start_child(command, env)

    def read_lines(self) -> Iterator[str]:
        """Yield the output lines until the server ends."""
        if self._child is not None:
            yield from read_lines(self._child)
            self._child.wait()

    def is_ready(self) -> bool:
        """Return whether the server runs and has answered that it listens."""
        port = read_server_answer(self._answer_file, self._token)
        if port is None or self.exit_code is not None:
            return False
        self._port = port
        return True

    def call_when_ready(self, on_ready: Callable[[], object], seconds: float = math.inf) -> None:
        """Wait until the server is ready and call ``on_ready``.

        Return without a call if the server ends, or is not ready after some seconds.
        """
        end = time.monotonic() + seconds
        while self.exit_code is None and time.monotonic() < end:
            if self.is_ready():
                on_ready()
                return
            time.sleep(_READY_POLL_SECONDS)

    def stop(self, grace_seconds: float = 0.0) -> None:
        """End the server with SIGTERM, and with SIGKILL after the grace period unless that is zero."""
        if self._held_port is not None:
            self._held_port.close()
        if self._child is None:
            return
        signal_group(self._child.pid, signal.SIGTERM)
        if grace_seconds:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(grace_seconds)
            signal_group(self._child.pid, signal.SIGKILL)
            self._child.wait()


def run_connect_server(
    *,
    host: str,
    port: int,
    master: str = LOCAL,
    conf: Mapping[str, str] | None = None,
    token_file: Path | None = None,
    on_ready: Callable[[str, Path], object],
    on_line: Callable[[str], object] = print,
) -> int:
    """Run a Spark Connect server until it ends, and return its exit code.

    Clients need the server's token. It is in ``token_file``, or by default in a file for this port that is
    removed when the server ends. ``on_ready`` is called with the address and the token file.

    :raises SetupError: when Java, Spark or a jar is missing, Spark is older than 4.2, the port is taken, or
        others can read the file.
    """
    if not supports_connect():
        raise SetupError(f"Spark Connect: {NO_CONNECT} (install pyspark 4.2)")
    server = ConnectServer(host=host, port=port, master=master, conf=conf)
    with make_work_folder() as work, offer_token(port, token_file) as (token, file):
        server.start(work, token)
        try:
            arguments = (lambda: on_ready(server.url, file),)
            threading.Thread(target=server.call_when_ready, args=arguments, daemon=True).start()
            for line in server.read_lines():
                on_line(line)
            return server.exit_code or 0
        finally:
            server.stop()


def build_server_conf(
    conf: Mapping[str, str], *, master: str, recording: Path | None = None
) -> dict[str, str]:
    """Return the settings of a server; those of ``conf`` override those of this package.

    :param recording: the class archive that the JVM writes when it ends; None if it writes none.

    :raises SetupError: when Java, Spark or a jar is missing.
    """
    local = is_local(master)
    jars = list_jars(conf, local=local)
    own = {**_SHARED_CLASSES, **_PLUGIN, **_BOUNDED_MEMORY}
    user = inherit_settings(read_spark_defaults(), conf)
    settings = session_conf(local=local, jars=jars, user=merge_settings(own, user))
    if recording is not None:
        settings = add_recording_settings(settings, recording)
    else:
        settings = long_lived(settings, archive_file(find_java(), spark_home(), jars) if local else None)
    settings.setdefault("spark.app.name", "Spark Connect server")
    # With another default file system, paths do not name files that clients on this machine see.
    if local and has_local_paths(conf) and (filesystem := get_filesystem_id()) is not None:
        settings[FILESYSTEM_SETTING] = filesystem
    return settings


def _hold_port(host: str, port: int) -> socket.socket | None:
    """Check that a port is free, and hold it on the other loopback address; return None if there is none.

    Clients of PySpark dial ``localhost``, which is both addresses: the token is for one of them only.

    :raises SetupError: if another process uses the port on one of the addresses.
    """
    if port == 0:
        return None
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=_PROBE_SECONDS):
        raise _build_taken_error(host, port)
    if host not in LOOPBACK:
        return None
    (other,) = set(LOOPBACK) - {host}
    held = socket.socket(socket.AF_INET6 if ":" in other else socket.AF_INET)
    try:
        held.bind((other, port))
    except OSError as error:
        held.close()
        if error.errno == errno.EADDRINUSE:
            raise _build_taken_error(other, port) from None
        # This machine has one loopback address only.
        return None
    return held


def _build_taken_error(host: str, port: int) -> SetupError:
    return SetupError(
        f"Port {port} on {host} is already in use: stop the process that uses it, or set another --port"
    )
