"""Fixtures: Airflow homes, copied from one database per process, and DAG runs in this process."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from demo.local_airflow import LocalAirflow

from tests.dags.conftest import airflow_db, asset_events, run_dag  # noqa: F401 - fixtures

MakeHome = Callable[[Path], Path]
# The time in seconds since 1970 after which no test begins; a build that takes too long is lost as a whole.
_UNTIL = float(os.environ.get("TESTS_E2E_UNTIL", "inf"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that the time of the build is not enough for; the summary counts them."""
    if time.time() > _UNTIL:
        pytest.skip("the time of the build is over: run make test-e2e")


@pytest.fixture(scope="session")
def airflow_home(tmp_path_factory: pytest.TempPathFactory) -> MakeHome:
    """Return a function that creates an Airflow home with an empty database below a folder."""
    template = tmp_path_factory.mktemp("template") / "airflow"
    LocalAirflow(template, template / "warehouse").make_database()

    def make_home(folder: Path) -> Path:
        return Path(shutil.copytree(template, folder / "airflow"))

    return make_home
