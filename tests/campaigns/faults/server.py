"""The Spark Connect server of a campaign, started like a user's server and restarted if necessary."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from airflow_merge_provider.core.child_process import die_with_parent
from tests.conformance.lean import COMPILERS

# Few rows: the Spark UI is not used, and Delta must not cache a thousand tables.
_CONF = {
    "spark.driver.extraJavaOptions": f"{COMPILERS} -XX:+UseSerialGC -Xmn512m",
    "spark.databricks.delta.delta.log.cacheSize": "50",
    "spark.driver.memory": "3g",
    "spark.buffer.pageSize": "256k",
    "spark.ui.enabled": "false",
    # Killed drivers do not close their sessions.
    "spark.connect.session.manager.defaultSessionTimeout": "3m",
}
# After this number of runs, the sessions and tables of killed drivers would fill the heap.
_RUNS_MAX = 1500


class ConnectServer:
    """Server that starts on first use; ``remote`` may be the address of a running one."""

    def __init__(self, remote: str | None = None, conf: Mapping[str, str] | None = None) -> None:
        self._existing_url = remote
        self._conf = {**_CONF, **(conf or {})}
        self._process: subprocess.Popen[str] | None = None
        self._remote = ""
        self._runs = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_server()

    def get_url(self) -> str:
        """Return the address for one more run, after starting a server if none runs."""
        if self._existing_url:
            return self._existing_url
        self._runs += 1
        if self._runs > _RUNS_MAX:
            self.stop_server()
        if self._process is None or self._process.poll() is not None:
            self._start_server()
        return self._remote

    def stop_server(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Kill the server with SIGKILL."""
        if self._process is None or self._process.poll() is not None:
            return
        if number == signal.SIGKILL:
            os.kill(self.find_java(), number)
        else:
            self._process.terminate()
        self._process.wait(60)

    def find_java(self) -> int:
        """Return the ID of the process with Spark."""
        assert self._process is not None
        pid = self._process.pid
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:  # noqa: PTH123 - no path
            (java,) = file.read().split()
        return int(java)

    def _start_server(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        settings = [word for name, value in self._conf.items() for word in ("--conf", f"{name}={value}")]
        command = [sys.executable, "-m", "airflow_merge_provider", "connect-server", "--port", str(port)]
        self._process = subprocess.Popen(
            [*command, "--master", "local[2]", *settings],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - only one system call
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if match := re.search(r"sc://\S+", line):
                self._remote, self._runs = match[0], 0
                break
        else:
            raise RuntimeError("the Spark Connect server has not started")
        threading.Thread(target=self._process.stdout.read, daemon=True).start()
