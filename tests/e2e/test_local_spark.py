"""Test runs on the shared server with real Spark: reuse, concurrent starts, a killed server, idle end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import deltalake
import psutil
import pyarrow as pa
import pytest

from airflow_merge_provider.core.errors import JobError
from airflow_merge_provider.core.protocol import JobResult
from airflow_merge_provider.jobs.submit import warm_up
from airflow_merge_provider.spark_process.connect_token import TOKEN_VARIABLE, read_token
from airflow_merge_provider.spark_process.shared import administration
from airflow_merge_provider.spark_process.shared.background import build_steps
from airflow_merge_provider.spark_process.shared.client import SharedSparkProcess
from airflow_merge_provider.spark_process.shared.settings import LocalSparkSettings
from tests.jobs import probe
from tests.jobs.delta_log import list_commits

pytestmark = pytest.mark.spark

PROBE = Path(probe.__file__)
# A job that needs more memory than its server has.
_EXHAUST = """
import sys
from airflow_merge_provider.jobs.run.entry import main

def exhaust_memory(spark, request, progress):
    spark.range(1).selectExpr("length(repeat(CAST(id AS STRING), 2000000000)) AS n").collect()

sys.exit(main(sys.argv[1:], jobs={"merge_source": exhaust_memory}))
"""
_SECONDS_MAX = 300


class Running:
    """A run in a thread, and its lines."""

    def __init__(self, tables: tuple[str, str], run_id: str = "r1", **config: Any) -> None:
        self.lines: list[str] = []
        self.process = build_process(tables, run_id, self.lines.append, **config)
        self.outcome: Any = None
        self._thread = threading.Thread(target=self._run_process, daemon=True)
        self._thread.start()

    def _run_process(self) -> None:
        try:
            self.outcome = self.process.run()
        except JobError as error:
            self.outcome = error

    def wait_until_printed(self, text: str) -> None:
        wait_until(lambda: not self._thread.is_alive() or any(text in line for line in self.lines))
        assert self._thread.is_alive(), (self.outcome, self.lines)

    def wait_for_end(self) -> Any:
        self._thread.join(_SECONDS_MAX)
        assert not self._thread.is_alive()
        return self.outcome


def build_process(
    tables: tuple[str, str], run_id: str, on_line: Callable[[str], object], **config: Any
) -> SharedSparkProcess:
    settings = LocalSparkSettings(
        memory=config.pop("memory", "1g"), idle_seconds=config.pop("idle_seconds", 600.0), warm_up=False
    )
    request = probe.build_request(*tables, run_id, **config)
    return SharedSparkProcess(request, settings=settings, script=PROBE, on_line=on_line)


def find_server(memory: str = "1g") -> administration.ServerStatus:
    """Return the server with this memory; tests run in any order, and each amount is another server."""
    (server,) = [server for server in administration.list_servers() if server.state.memory == memory]
    return server


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + _SECONDS_MAX
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture(scope="module", autouse=True)
def temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep the servers of this module in a folder of their own, and stop them at the end."""
    folder, previous = tmp_path_factory.mktemp("local"), os.environ.get("TMPDIR")
    os.environ["TMPDIR"], tempfile.tempdir = str(folder), None
    yield folder
    stopped = administration.stop_servers()
    wait_until(lambda: not any(psutil.pid_exists(server.state.pid) for server in stopped))
    if previous is None:
        del os.environ["TMPDIR"]
    else:
        os.environ["TMPDIR"] = previous
    tempfile.tempdir = None


@pytest.fixture
def tables(tmp_path: Path) -> tuple[str, str]:
    """Create a source of three rows, and return its location and that of the target."""
    rows = pa.table({"id": pa.array([0, 1, 2], pa.int64()), "amount": pa.array([1, 2, 3], pa.int64())})
    deltalake.write_deltalake(str(tmp_path / "source"), rows)
    return str(tmp_path / "source"), str(tmp_path / "target")


def sum_target(tables: tuple[str, str]) -> int:
    table = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(tables[1]))
    return int(table.execute("SELECT sum(amount) AS total FROM t").read_all()["total"][0].as_py())


# May take more than 20 seconds: a server starts.
def test_concurrent_first_runs_and_later_runs_share_one_server(tables: Any, tmp_path: Path) -> None:
    """Two first runs at the same time start one server, and later runs use it, with the same results."""
    other = (tables[0], str(tmp_path / "other"))
    with ThreadPoolExecutor(2) as threads:
        outcomes = list(threads.map(lambda pair: build_process(pair, "r1", print).run(), [tables, other]))
    again = build_process(tables, "r1", print).run()
    second = build_process(tables, "r2", print).run()

    assert [outcome.report.changed for outcome in [*outcomes, again, second]] == [True, True, False, True]
    assert [commit["txn"][1] for commit in list_commits(Path(tables[1]))] == [1, 2]
    assert (sum_target(tables), sum_target(other)) == (12, 6)
    server = find_server()
    assert server.runs == 0
    assert psutil.Process(server.state.server_pid).name() == "java"
    listening = [
        item.laddr
        for item in psutil.Process(server.state.server_pid).net_connections()
        if item.status == "LISTEN"
    ]
    assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}


# May take more than 20 seconds: two servers start.
def test_the_retry_after_a_killed_server_has_the_exact_result(tables: Any) -> None:
    """If the server is killed during a run, one line says so, and the retry commits once."""
    run = Running(tables, slow=True)
    wait_until(lambda: any(Path(tables[1]).glob("*.parquet")))
    server = find_server()
    begin = time.monotonic()

    os.kill(server.state.server_pid, signal.SIGKILL)
    error = run.wait_for_end()

    assert time.monotonic() - begin < 30
    assert isinstance(error, JobError)
    assert error.message.startswith("The shared Spark server was killed by signal 9")
    assert "\n" not in error.message
    outcome = build_process(tables, "r1", print).run()
    assert isinstance(outcome, JobResult)
    assert sum_target(tables) == 6
    assert [commit["txn"][1] for commit in list_commits(Path(tables[1]))] == [1]


# May take more than 20 seconds: two servers start.
def test_a_server_without_memory_names_its_setting(tables: Any, tmp_path: Path) -> None:
    """If the heap is exhausted, the server ends, and its run fails with the setting to raise."""
    script = tmp_path / "exhaust.py"
    script.write_text(_EXHAUST)
    settings = LocalSparkSettings(memory="600m", warm_up=False)
    request = probe.build_request(*tables)
    lines: list[str] = []

    with pytest.raises(JobError) as caught:
        SharedSparkProcess(request, settings=settings, script=script, on_line=lines.append).run()

    assert caught.value.message.startswith(
        "The shared Spark server ran out of memory: raise [merge] local_spark_memory (now 600m)"
    ), lines
    assert caught.value.retryable
    assert isinstance(build_process(tables, "r1", print, memory="600m").run(), JobResult)


# May take more than 20 seconds: a statement has to run, and the test checks that it does not commit.
def test_a_stopped_run_interrupts_its_statements(tables: Any) -> None:
    """SIGTERM ends the run; its statement does not commit, and the server continues."""
    build_process((tables[0], f"{tables[1]}-first"), "r1", print).run()
    run = Running(tables, slow=True)
    wait_until(lambda: any(Path(tables[1]).glob("*.parquet")))

    run.process.kill_process()

    assert run.wait_for_end().message == "The Spark process was stopped on request"
    # No event shows that a statement will never commit: this wait is longer than the statement takes.
    time.sleep(7)
    assert not list(Path(tables[1]).glob("_delta_log/*.json"))
    server = find_server()
    assert server.runs == 0


# May take more than 20 seconds: a server starts, and Spark ends the statement after its own timeout.
def test_a_killed_client_does_not_keep_its_statement(tables: Any, tmp_path: Path) -> None:
    """If the task is killed with SIGKILL, the kernel releases its slot and the next run begins."""
    code = (
        "import sys\n"
        "sys.path.insert(0, sys.argv[3])\n"
        "import tests.e2e.test_local_spark as module\n"
        "module.build_process((sys.argv[1], sys.argv[2]), 'r1', print, slow=True).run()"
    )
    # PYTHONPATH is part of a server's identity: the client would start another one.
    process = subprocess.Popen([sys.executable, "-c", code, *tables, str(Path.cwd())])
    wait_until(lambda: any(Path(tables[1]).glob("*.parquet")))
    process.kill()
    process.wait()

    outcome = build_process(tables, "r2", print).run()

    assert isinstance(outcome, JobResult)
    assert all(server.runs == 0 for server in administration.list_servers())


# May take more than 20 seconds: eight runs.
def test_the_warm_up_runs_every_kind_of_plan(tables: Any, tmp_path: Path) -> None:
    """Each kind of plan of the warm-up succeeds, and a warm-up that is started again continues."""
    build_process(tables, "r1", print).run()
    server = find_server()
    url = f"sc://localhost:{server.state.port}"
    archive = tmp_path / "archive.jsa"
    archive.touch()
    ((command, variables),) = build_steps(url, server.folder.token_file, tmp_path / "warm_up", archive)

    for _ in range(2):
        process = subprocess.run(
            command, env={**os.environ, **variables}, capture_output=True, text=True, check=True
        )
        assert process.stderr == ""

    names = {marker.stem for marker in (tmp_path / "warm_up").glob("*-*.done")}
    assert names >= {f"{name}-0" for name in warm_up.RUNS}


def test_sessions_share_the_generated_code(tables: Any) -> None:
    """Sessions are not isolated: each one would have class loaders of its own, and compile all code again."""
    build_process(tables, "r1", print).run()
    server = find_server()
    name = "spark.sql.artifact.isolation.enabled"
    code = (
        f"from pyspark.sql import SparkSession; print(SparkSession.builder.getOrCreate().conf.get({name!r}))"
    )
    variables = {
        "SPARK_REMOTE": f"sc://localhost:{server.state.port}",
        TOKEN_VARIABLE: read_token(server.folder.token_file),
    }

    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.strip() == "false"


# May take more than 20 seconds: a server starts.
def test_an_idle_server_leaves_no_process_and_no_file(tables: Any, temporary_folder: Path) -> None:
    """After the idle time, processes, folder and token of the server are gone."""
    run = Running(tables, memory="900m", idle_seconds=2.0)
    assert isinstance(run.wait_for_end(), JobResult)
    server = find_server("900m")
    processes = [psutil.Process(pid) for pid in (server.state.pid, server.state.server_pid)]
    processes += processes[1].children(recursive=True)

    _, survivors = psutil.wait_procs(processes, timeout=60)

    assert survivors == []
    assert not server.folder.path.exists()
