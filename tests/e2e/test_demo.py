"""Test ``make demo`` and ``make ui`` with a real Airflow that leaves no process behind.

A test may take more than 20 seconds: a whole Airflow starts, and each of its tasks starts Spark.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from demo import worked_example
from demo.local_airflow import free_port

from tests.e2e.test_pages import CHROMIUM, read_page

ROOT = Path(__file__).parents[2]
SECONDS = 400

pytestmark = pytest.mark.spark


def build_command(command: str, home: Path) -> list[str]:
    return [sys.executable, "-m", "demo", command, "--home", str(home)]


def run_demo(command: str, home: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        build_command(command, home),
        cwd=ROOT / "dags",
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def list_orphans(home: Path) -> list[str]:
    """Return the processes whose Airflow home is in this folder."""

    def is_ours(process: psutil.Process) -> bool:
        try:
            return bool(process.environ().get("AIRFLOW_HOME", "").startswith(str(home)))
        except psutil.Error:
            return False

    return [" ".join(process.cmdline()) for process in psutil.process_iter() if is_ours(process)]


def read_versions(home: Path) -> dict[str, int]:
    return {path.name: DeltaTable(str(path)).version() for path in (home / "warehouse").iterdir()}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Run the demo once in an empty folder, with settings of another Airflow that it must not change."""
    home = Path(os.environ.get("DEMO_HOME") or tmp_path_factory.mktemp("demo"))
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    return home, run_demo(
        "run", home, AIRFLOW_HOME=str(elsewhere), AIRFLOW__DATABASE__SQL_ALCHEMY_CONN="postgresql://nowhere/x"
    )


def test_the_first_run_shows_what_two_dags_merged(first: Any) -> None:
    """Seven entities become the five of the worked example, and airports become golden airports."""
    home, process = first

    assert process.returncode == 0, process.stdout + process.stderr
    lines = process.stdout.splitlines()
    start = lines.index(worked_example.EXPECTED[0])
    assert lines[start : start + 5] == worked_example.EXPECTED
    assert re.search(r"^33,132 entities in, 28,532 golden airports out", process.stdout, re.MULTILINE)
    assert "Nothing has changed" not in process.stdout
    assert set(read_versions(home).values()) == {0}


def test_no_process_is_left_behind(first: Any) -> None:
    """Airflow, its workers and Spark end with the demo."""
    home, _ = first

    assert list_orphans(home) == []


def test_a_second_run_changes_nothing(first: Any) -> None:
    """A second run shows the same results, reports that nothing changed, and commits no table version."""
    home, process = first

    again = run_demo("run", home)

    assert again.returncode == 0, again.stdout + again.stderr
    assert "Nothing has changed since the previous run" in again.stdout
    results = re.compile(r"^A, B and C merged.*?(?=^Seconds)", re.MULTILINE | re.DOTALL)
    assert results.findall(again.stdout) == results.findall(process.stdout) != []
    assert set(read_versions(home).values()) == {0}
    assert list_orphans(home) == []


def test_a_run_that_fails_says_why(first: Any, tmp_path: Path) -> None:
    """The first line is the task's error with its remedy, the second one has the location of its log."""
    home = shutil.copytree(first[0], tmp_path / "demo")
    target = home / "warehouse" / "seed_merged"
    shutil.rmtree(target)
    write_deltalake(str(target), pa.table({"precious": [1]}))

    process = run_demo("run", home)

    assert process.returncode == 1
    reason, log = process.stderr.splitlines()
    assert reason.startswith("example_merge_source failed: seed_merged: ")
    assert "was written by another writer" in reason
    assert "choose another target" in reason
    assert Path(log.removeprefix("Its log is ").partition("; make clean")[0]).is_file()
    assert list_orphans(home) == []


@pytest.fixture
def running() -> Iterator[Callable[[str, Path], subprocess.Popen[str]]]:
    """Start the demo and keep it running; stop it at the end of the test, also after a failure."""
    started: list[subprocess.Popen[str]] = []

    def start_demo(command: str, home: Path) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            build_command(command, home),
            cwd=ROOT / "dags",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(child)
        return child

    yield start_demo
    for child in started:
        child.kill()
        child.communicate()


def line_with(child: subprocess.Popen[str], text: str) -> str:
    return next(line for line in child.stdout or () if text in line)


def take_pictures(url: str, run: str, folder: Path) -> None:
    """Take the pictures of the documentation: the report of a run, and the search for one of its airports."""
    dag, quoted_run = "example_golden_airports", run.replace("+", "%2B")
    task = f"dag_id={dag}&task_id=merge"
    pages = {
        "merge_report": f"dags/{dag}/runs/{quoted_run}/tasks/merge/plugin/merge-report",
        "dataset_page": f"merge/dataset.html?{task}&key=airports_us/HXD#find",
    }
    report = read_page(f"{url}/merge/report.html?{task}&run_id={quoted_run}&map_index=-1")
    assert "28,532 golden records" in report
    assert "airports_world/KHXD" in read_page(f"{url}/{pages['dataset_page']}")
    for name, page in pages.items():
        options = ["--hide-scrollbars", "--window-size=1280,760", "--virtual-time-budget=20000"]
        picture = folder / f"{name}.png"
        command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", *options]
        subprocess.run(
            [*command, f"--screenshot={picture}", f"{url}/{page}"],
            capture_output=True,
            check=True,
            timeout=SECONDS,
        )
        assert picture.stat().st_size > 20_000


def test_the_ui_shows_the_runs_until_it_is_interrupted(first: Any, running: Any, tmp_path: Path) -> None:
    """The page opens without a login, shows the run and its report, and stops on Ctrl-C.

    With the variable ``PICTURES`` it writes the pictures of the documentation into that folder, and with
    ``DEMO_HOME`` they show another home than a temporary folder.
    """
    home, _ = first
    ui = running("ui", home)
    url = re.search(r"http://\S+", line_with(ui, "Airflow: "))[0]
    dag = f"{url}/api/v2/dags/example_golden_airports"

    with httpx.Client(trust_env=False) as client:
        runs = client.get(f"{dag}/dagRuns").json()["dag_runs"]
        task = f"{dag}/dagRuns/{runs[0]['dag_run_id']}/taskInstances/merge"
        report = client.get(f"{task}/xcomEntries/merge_report").json()["value"]
        page = client.get(f"{url}/merge/report.html")
    if CHROMIUM is not None:
        take_pictures(url, runs[0]["dag_run_id"], Path(os.environ.get("PICTURES", tmp_path)))
    second = run_demo("run", home)
    ui.send_signal(signal.SIGINT)

    assert {run["state"] for run in runs} == {"success"}
    assert report["counts"]["live_rows"] == 28_532
    assert page.status_code == 200
    assert second.returncode == 1
    assert "runs in" in second.stderr.splitlines()[0]
    assert ui.wait(60) == 0
    assert list_orphans(home) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_takes_its_airflow_with_it(tmp_path: Path, running: Any, number: Any) -> None:
    """An interrupt ends every process of the demo, and the exit code shows that it did not finish."""
    child = running("run", tmp_path)
    line_with(child, "Airflow starts")

    child.send_signal(number)

    assert child.wait(60) == 130
    assert list_orphans(tmp_path) == []


def test_without_java_the_first_line_says_so(tmp_path: Path) -> None:
    """Without Java the demo fails before any work, with one line that has the remedy."""
    process = run_demo("run", tmp_path / "demo", JAVA_HOME=str(tmp_path))

    assert process.returncode == 1
    assert process.stderr.startswith("Java is missing: install Java 17 or 21")
    assert process.stdout == ""
    assert not (tmp_path / "demo").exists()


def test_a_free_port_is_one_that_nobody_listens_on() -> None:
    """The preferred port is returned if it is free, another one if it is in use."""
    import socket

    with socket.socket() as busy_socket:
        busy_socket.bind(("127.0.0.1", 0))
        busy_socket.listen()
        port = busy_socket.getsockname()[1]

        assert free_port(port) != port
    assert free_port(port) == port
