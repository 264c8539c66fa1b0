"""Gives Airflow a temporary home; imported by conftests before anything imports Airflow."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

HOME = tempfile.mkdtemp(prefix="merge-airflow-")
os.environ.update(
    AIRFLOW_HOME=HOME,
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__CORE__UNIT_TEST_MODE="True",
    AIRFLOW__CORE__DAGS_FOLDER=f"{HOME}/dags",
    AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{HOME}/tests.db",
)
_OWNER = os.getpid()


def _remove() -> None:
    if os.getpid() == _OWNER:
        shutil.rmtree(HOME, ignore_errors=True)


atexit.register(_remove)
