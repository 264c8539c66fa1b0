"""Fixtures: Airflow homes, copied from one database per process, and DAG runs in this process."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from demo.local_airflow import LocalAirflow

from tests.dags.conftest import airflow_db, asset_events, run_dag, store_dag  # noqa: F401 - fixtures

MakeHome = Callable[[Path], Path]


@pytest.fixture(scope="session")
def airflow_home(tmp_path_factory: pytest.TempPathFactory) -> MakeHome:
    """Return a function that creates an Airflow home with an empty database below a folder."""
    template = tmp_path_factory.mktemp("template") / "airflow"
    LocalAirflow(template, template / "warehouse").make_database()

    def make_home(folder: Path) -> Path:
        return Path(shutil.copytree(template, folder / "airflow"))

    return make_home
