"""What a child process gets of the one that starts it: its environment, and word of its end."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None

# What a worker of Airflow knows and Spark does not need: connections, variables, the keys of its servers.
_OF_AIRFLOW = ("AIRFLOW_CONN_", "AIRFLOW_VAR_", "AIRFLOW__", "_AIRFLOW_")
# Which server a session is on is said anew for each child.
_REMOTE = "SPARK_REMOTE"


def build_child_environment(**more: str) -> dict[str, str]:
    """Return the environment of a Spark process: this one's, without what only Airflow needs."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_OF_AIRFLOW) and name != _REMOTE
    }
    return kept | more


def die_with_parent() -> None:
    """Ask Linux to end this process when its parent ends; elsewhere do nothing.

    Given to ``Popen`` as ``preexec_fn`` for the Spark JVM, and called first thing by the Python driver below
    it: each has a parent of its own, and one without the other would go on alone.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
