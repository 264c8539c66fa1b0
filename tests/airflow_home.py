"""Gives Airflow a temporary home; imported by conftests before anything imports Airflow."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

HOME = tempfile.mkdtemp(prefix="merge-airflow-")
# No more than this: what starts an Airflow of its own inherits it, and only has to name another home.
os.environ.update(AIRFLOW_HOME=HOME, AIRFLOW__CORE__LOAD_EXAMPLES="False")
_OWNER = os.getpid()


def _remove_home() -> None:
    if os.getpid() == _OWNER:
        shutil.rmtree(HOME, ignore_errors=True)


atexit.register(_remove_home)
