"""One Spark session per test process, markers by folder, and what to do where there is no Java."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.jars import java
from airflow_merge_provider.launch import submit_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Files for a scheduler of its own: they put a stand-in where operators reach Spark as soon as they are read.
collect_ignore = ["e2e/signalling_dags"]

_TESTS = Path(__file__).parent
_FORGET_AFTER = 10
_turns = count(1)
_MARKERS = {"jobs": "spark", "conformance": "spark", "dags": "airflow", "e2e": "e2e"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_TESTS):
            folder = item.path.relative_to(_TESTS).parts[0]
            if folder in _MARKERS:
                item.add_marker(_MARKERS[folder])


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs Java where there is none, with the reason; a build machine has to have it."""
    if "spark" not in item.keywords:
        return
    try:
        java()
    except SetupError as error:
        if os.environ.get("CI"):
            pytest.fail(error.message, pytrace=False)
        pytest.skip(error.message)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Give the one session of this process, with the settings of a local run."""
    from airflow_merge_provider.jobs.session import local_session
    from tests.conformance.lean import awake

    place = tmp_path_factory.mktemp("spark")
    user = {
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.local.dir": str(place / "scratch"),
        "spark.app.name": "tests",
        # Many short statements: the time that the second compiler takes never comes back.
        "spark.driver.extraJavaOptions": (
            "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
        ),
    }
    session = awake(local_session(submit_conf(user, local=True)))
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _forgetful(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let Delta forget tables now and then: it remembers each for an hour, and a thousand fill the heap."""
    yield
    if "spark" in request.fixturenames and next(_turns) % _FORGET_AFTER == 0:
        session: SparkSession = request.getfixturevalue("spark")
        session.sparkContext._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
