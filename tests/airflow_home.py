"""Create a temporary home for Airflow.

The conftest of all tests imports it: pytest imports modules in the order of their names, and one that imports
Airflow first would have all tests use the home of the user, and the rows of earlier tests.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

HOME = tempfile.mkdtemp(prefix="merge-airflow-")
# Set only this variable: tests that start their own Airflow inherit it and only have to set another home.
os.environ.update(AIRFLOW_HOME=HOME, AIRFLOW__CORE__LOAD_EXAMPLES="False")
_OWNER = os.getpid()


def _remove_home() -> None:
    if os.getpid() == _OWNER:
        shutil.rmtree(HOME, ignore_errors=True)


atexit.register(_remove_home)
