"""Run a complete Airflow below one folder: start its processes, call its REST API, and stop it."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import psutil

from airflow_merge_provider.core.child_process import die_with_parent
from airflow_merge_provider.core.errors import JobError, SetupError

Say = Callable[[str], object]

HOST = "127.0.0.1"
DAGS = Path(__file__).resolve().parents[1]
# The first are needed for a DAG run without deferred tasks, all of them for a complete Airflow.
NEEDED = ("api-server", "scheduler", "dag-processor")
ALL = (*NEEDED, "triggerer")

# The pool in which the tasks of the example pipeline run.
POOL = {"name": "merge_spark", "slots": 4, "description": "merges at the same time"}

_PORTS = range(20_000, 32_000)
_START_SECONDS = 180.0
_STOP_SECONDS = 10.0
_POLL_SECONDS = 0.5
_PAUSES = (0.5, 1.0, 2.0, 0.0)
_OVER = ("success", "failed")
# What is about this machine, not about an Airflow.
_OF_THE_MACHINE = ("AIRFLOW_MERGE_PROVIDER_CACHE", "AIRFLOW__MERGE__LOCAL_SPARK")
# The log servers listen on every address; here the logs are local files, so they are not needed.
_OPTIONS = {"scheduler": ("--skip-serve-logs",), "triggerer": ("--skip-serve-logs",)}


class LocalAirflow:
    """An Airflow with SQLite in ``home``, reachable only from this machine, running inside a ``with`` block.

    :param home: the folder of its database, its logs and the output of its processes.
    :param warehouse: the folder or the URI of the datasets of its DAGs.
    :param parts: the processes to start.
    :param port: the port of its UI; any free port by default.
    :param dags: the folder of its DAGs.
    :param settings: additional environment variables, which override those set here.
    """

    def __init__(
        self,
        home: Path,
        warehouse: Path | str,
        *,
        parts: tuple[str, ...] = NEEDED,
        port: int | None = None,
        dags: Path = DAGS,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.home = home
        self.url = f"http://{HOST}:{port or free_port()}"
        self._warehouse = warehouse
        self._parts = parts
        self._dags = dags
        self._settings = settings or {}
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._started = 0.0
        # Ignore proxy settings: all requests stay on this machine.
        self._client = httpx.Client(base_url=f"{self.url}/api/v2", trust_env=False, timeout=30)

    def make_database(self) -> None:
        """Create the database in ``home``, once for each version of Airflow.

        :raises JobError: when Airflow cannot create it.
        """
        self.home.mkdir(parents=True, exist_ok=True)
        self._migrate_database(self._build_environment())

    def __enter__(self) -> Self:
        self.make_database()
        env = self._build_environment()
        self._started = time.time()
        try:
            for part in self._parts:
                self._children[part] = self._start_process([part, *_OPTIONS.get(part, ())], part, env)
        except BaseException:
            self.stop_processes()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_processes()

    def wait_until_ready(self, dag_ids: tuple[str, ...]) -> None:
        """Wait until every process is healthy and has read these DAGs since it started.

        :raises JobError: when a process ends, or nothing happens for three minutes.
        :raises SetupError: when a DAG file cannot be imported.
        """
        end = time.monotonic() + _START_SECONDS
        while not (self._is_healthy() and all(map(self._is_parsed, dag_ids))):
            self._check_children()
            if time.monotonic() > end:
                raise JobError(f"Airflow was not ready after {_START_SECONDS:.0f} s, see {self.home}/*.log")
            time.sleep(_POLL_SECONDS)
        self._create_pool()

    def trigger_run(self, dag_id: str, params: Mapping[str, Any] | None = None) -> str:
        """Start a run of a DAG with values for its params, and return its id.

        :raises JobError: when Airflow refuses.
        """
        content = {"logical_date": None, "conf": dict(params or {})}
        return str(self.send_request("POST", f"/dags/{dag_id}/dagRuns", content)["dag_run_id"])

    def send_request(self, method: str, path: str, content: Mapping[str, Any]) -> dict[str, Any]:
        """Send a modifying request to the REST API and return its response.

        :raises JobError: when Airflow refuses.
        """
        response = self._client.request(method, path, json=dict(content))
        if not response.is_success:
            raise JobError(f"Airflow rejects {method} {path}: {response.text}")
        result: dict[str, Any] = response.json() if response.content else {}
        return result

    def follow_run(self, dag_id: str, run_id: str, say: Say) -> str:
        """Report the progress of a run's tasks until it ends, and return its final state."""
        reported_count = 0
        while True:
            self._check_children()
            state = str(self.get_json(f"/dags/{dag_id}/dagRuns/{run_id}")["state"])
            lines = [line for line in self.log_lines(dag_id, run_id) if line.startswith("[merge")]
            for line in lines[reported_count:]:
                say(line)
            reported_count = len(lines)
            if state in _OVER:
                return state
            time.sleep(_POLL_SECONDS)

    def watch_processes(self) -> None:
        """Block until a process ends, or this one is interrupted.

        :raises JobError: when a process ends.
        """
        while True:
            self._check_children()
            time.sleep(_POLL_SECONDS)

    def log_lines(self, dag_id: str, run_id: str) -> Iterator[str]:
        """Yield the lines that the tasks of a run have logged so far."""
        for entry in self._read_log(dag_id, run_id):
            yield str(entry.get("event", ""))

    def read_reason(self, dag_id: str, run_id: str) -> str:
        """Return the first line of the error that a task of a failed run ended with."""
        for entry in self._read_log(dag_id, run_id):
            for error in entry.get("error_detail") or ():
                return str(error["exc_value"]).split("\n", 1)[0]
        return "no task has logged an error"

    def log_files(self, dag_id: str, run_id: str) -> list[Path]:
        """Return the log files of a run's tasks."""
        return sorted((self.home / "logs" / f"dag_id={dag_id}" / f"run_id={run_id}").rglob("attempt=*.log"))

    def read_xcom(self, dag_id: str, run_id: str, task_id: str, key: str) -> Any:
        """Return the XCom value of a task under a key."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/{key}"
        return self.get_json(path)["value"]

    def list_addresses(self) -> set[str]:
        """Return the addresses that processes of this Airflow listen on."""
        pids = set(_processes_of({child.pid for child in self._children.values()}))
        listening = (
            connection
            for connection in psutil.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        )
        return {connection.laddr.ip for connection in listening if connection.pid in pids}

    def stop_processes(self) -> None:
        """End every process of this Airflow: SIGTERM first, SIGKILL after ten seconds."""
        self._client.close()
        sessions = {child.pid for child in self._children.values()}
        for child in self._children.values():
            if child.poll() is None:
                child.terminate()
        end = time.monotonic() + _STOP_SECONDS
        while (remaining_pids := _processes_of(sessions)) and time.monotonic() < end:
            for child in self._children.values():
                child.poll()  # an ended child is listed until it is polled
            time.sleep(0.1)
        for pid in remaining_pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for child in self._children.values():
            child.wait()
        self._children.clear()

    def _read_log(self, dag_id: str, run_id: str) -> Iterator[dict[str, Any]]:
        for file in self.log_files(dag_id, run_id):
            # The last line may be incomplete because it is still being written.
            yield from map(json.loads, file.read_text(encoding="utf-8").split("\n")[:-1])

    def _build_environment(self) -> dict[str, str]:
        """Return the environment of this Airflow, without the settings of another Airflow on this machine."""
        env = {name: value for name, value in os.environ.items() if not _is_of_another(name)}
        settings = {
            "CORE__DAGS_FOLDER": self._dags,
            "CORE__LOAD_EXAMPLES": False,
            "CORE__PARALLELISM": 4,
            "CORE__DAGS_ARE_PAUSED_AT_CREATION": False,
            "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": True,
            "CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "API__HOST": HOST,
            "API__PORT": self.url.rpartition(":")[2],
            "API__BASE_URL": self.url,
            "API__WORKERS": 1,
            "API_AUTH__JWT_SECRET": secrets.token_hex(32),
            "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.home}/airflow.db",
            "DATABASE__LOAD_DEFAULT_CONNECTIONS": False,
            # Airflow writes these paths into airflow.cfg only once; they would be wrong if the folder moved.
            "CORE__PLUGINS_FOLDER": self.home / "plugins",
            "LOGGING__BASE_LOG_FOLDER": self.home / "logs",
            "LOGGING__DAG_PROCESSOR_CHILD_PROCESS_LOG_DIRECTORY": self.home / "logs" / "dag_processor",
            "MERGE__WAREHOUSE": self._warehouse,
            # The rows of the demo and of the tests are invented.
            "MERGE__SHOW_ROWS": "all",
            # The shared Spark server of the runs outlives this Airflow by this time.
            "MERGE__LOCAL_SPARK_IDLE": "2m",
            "MERGE__LOCAL_SPARK_WARM_UP": "False",
            "OPENLINEAGE__DISABLED": True,
            "USAGE_DATA_COLLECTION__ENABLED": False,
        }
        env |= {f"AIRFLOW__{name}": str(value) for name, value in settings.items()}
        env |= self._settings
        env["AIRFLOW_HOME"] = str(self.home)
        env["no_proxy"] = env["NO_PROXY"] = f"{HOST},localhost"
        return env

    def _migrate_database(self, env: Mapping[str, str]) -> None:
        """Create the database once for each version of Airflow."""
        stamp, version = self.home / "migrated", importlib.metadata.version("apache-airflow-core")
        if stamp.is_file() and stamp.read_text() == version:
            return
        child = self._start_process(["db", "migrate"], "db-migrate", env)
        if child.wait():
            raise JobError(f"Airflow's database cannot be created: {self._last_line('db-migrate')}")
        stamp.write_text(version)

    def _start_process(
        self, arguments: list[str], part: str, env: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        with (self.home / f"{part}.log").open("wb") as log:
            return subprocess.Popen(  # noqa: S603 - our own command, no shell
                [sys.executable, "-P", "-m", "airflow", *arguments],
                env=dict(env),
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - runs only one system call
            )

    def _create_pool(self) -> None:
        """Create the pool of the examples, unless an earlier process has."""
        if any(pool["name"] == POOL["name"] for pool in self.get_json("/pools")["pools"]):
            return
        self.send_request("POST", "/pools", POOL)

    def _is_healthy(self) -> bool:
        try:
            health = self._client.get("/monitor/health").json()
        except (httpx.HTTPError, ValueError):
            return False
        components = ["metadatabase", *(part.replace("-", "_") for part in self._parts[1:])]
        return all((health.get(part) or {}).get("status") == "healthy" for part in components)

    def _is_parsed(self, dag_id: str) -> bool:
        response = self._client.get(f"/dags/{dag_id}")
        if response.is_success:
            parsed = response.json()["last_parsed_time"]
            return parsed is not None and datetime.fromisoformat(parsed).timestamp() >= self._started
        for error in self.get_json("/importErrors")["import_errors"]:
            if dag_id in str(error["filename"]):
                raise SetupError(f"{error['filename']} cannot be imported: {error['stack_trace']}")
        return False

    def get_json(self, path: str) -> dict[str, Any]:
        """Return the response of a GET request to the REST API; retry, because a busy machine may fail.

        :raises JobError: when there is no response.
        """
        reason = ""
        for pause in _PAUSES:
            try:
                response = self._client.get(path)
                response.raise_for_status()
                content: dict[str, Any] = response.json()
            except httpx.HTTPError as error:
                reason = str(error)
                time.sleep(pause)
            else:
                return content
        raise JobError(f"Airflow does not respond: {reason}")

    def _check_children(self) -> None:
        for part, child in self._children.items():
            if child.poll() is not None:
                raise JobError(f"airflow {part} ended: {self._last_line(part)} (see {self.home}/{part}.log)")

    def _last_line(self, part: str) -> str:
        lines = (self.home / f"{part}.log").read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "it has no output")


def free_port(preferred_port: int | None = None) -> int:
    """Return a free port of this machine: the preferred one if it is free.

    Other ports are chosen below the ephemeral range of the system: a port in this range may be taken by a
    connection of another process before the caller listens on it.
    """
    candidates = [] if preferred_port is None else [preferred_port]
    for port in (*candidates, *random.sample(_PORTS, len(_PORTS))):
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                listener.bind((HOST, port))
                return port
    raise JobError(f"No port from {_PORTS.start} to {_PORTS.stop - 1} is free")


def _is_of_another(name: str) -> bool:
    return name.startswith(("AIRFLOW_", "_AIRFLOW_")) and not name.startswith(_OF_THE_MACHINE)


def _processes_of(sessions: set[int]) -> list[int]:
    """Return the remaining processes of sessions: a task has its own process group, but the same session."""
    pids = []
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) in sessions:
                pids.append(pid)
    return pids
