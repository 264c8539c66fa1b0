"""Shared pytest setup: an Airflow home, a Spark session per process, markers by folder, skips for Java."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tests.airflow_home  # noqa: F401 - before anything imports Airflow
from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.spark_process.jvm.jars import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Tests are Spark Connect clients and start processes. A forked child would inherit the threads of gRPC, which
# abort the child when its files are closed. Each child immediately executes another program, so it needs none
# of these threads.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"

# No test leaves a shared Spark server behind: the tests of that server set another mode and folder.
os.environ["AIRFLOW__MERGE__LOCAL_SPARK"] = "process"

# DAG files for a separate scheduler; some replace the Spark hook of the operators as soon as they are
# imported.
collect_ignore_glob = ["e2e/*_dags"]

_TESTS = Path(__file__).parent
_COLLECT_AFTER_SECONDS = 30
_collections = [time.monotonic()]

# Python collects in any thread. A Spark Connect client that is collected in a thread of gRPC waits for ever,
# as in the drivers of jobs; so garbage is collected only between tests, in the main thread.
gc.disable()
_MARKERS = {"jobs": "spark", "conformance": "spark", "dags": "airflow", "e2e": "e2e"}
# Long test files run first: at the end, many short files keep every worker busy.
_RANKS = {"e2e": 0, "jobs": 1, "conformance": 2, "dags": 3, "architecture": 4}


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark each test by its folder, and each that needs the session of Spark."""
    if (folder := _find_folder(item.path)) in _MARKERS:
        item.add_marker(_MARKERS[folder])
    if "spark" in getattr(item, "fixturenames", ()):
        item.add_marker("spark")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort tests by folder; inside a folder the order stays random.

    Tests of a Spark session inside the process run only if the tests use one.
    """
    classic = os.environ.get("TESTS_SPARK", "connect") != "connect"
    items[:] = [item for item in items if classic or "classic" not in item.keywords]
    items.sort(key=lambda item: _RANKS.get(_find_folder(item.path), len(_RANKS)))


def pytest_collection_finish() -> None:
    """Keep the tests and modules out of garbage collections, which take half a second with them."""
    gc.collect()
    gc.freeze()


@cache
def _find_folder(path: Path) -> str:
    """Return the folder below ``tests`` that contains a test; return nothing for doctests of the package."""
    return path.relative_to(_TESTS).parts[0] if path.is_relative_to(_TESTS) else ""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests for which Java is missing; the summary counts them. On a build machine Java is required."""
    if "spark" not in item.keywords:
        return
    try:
        find_java()
    except SetupError as error:
        if os.environ.get("CI"):
            pytest.fail(error.message, pytrace=False)
        pytest.skip(error.message)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Return the only Spark session of this process, with settings for tiny inputs.

    The workers of one run share a server; a Spark inside the process has a folder of its own.
    """
    from tests.conformance.lean import OVER_CONNECT, lean_session, start_session

    folder = tmp_path_factory.getbasetemp()
    is_shared = OVER_CONNECT and "PYTEST_XDIST_WORKER" in os.environ
    session = lean_session(start_session((folder.parent if is_shared else folder) / "spark"))
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _forget_tables(request: pytest.FixtureRequest) -> Iterator[None]:
    """Collect DataFrame plans in cycles between tests, and let Delta forget tables, from time to time.

    Time stands for garbage: tests of many cells look at one run, and leave none.
    """
    yield
    if time.monotonic() - _collections[-1] < _COLLECT_AFTER_SECONDS:
        return
    gc.collect()
    if "spark" in request.fixturenames:
        from tests.conformance.lean import forget_tables

        forget_tables(request.getfixturevalue("spark"))
    _collections[-1] = time.monotonic()
