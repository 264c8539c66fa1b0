"""What a Spark process gets of the one that starts it: an environment, a folder, and word of its end."""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None

# What a worker of Airflow knows and Spark does not need: connections, variables, the keys of its servers.
_OF_AIRFLOW = ("AIRFLOW_CONN_", "AIRFLOW_VAR_", "AIRFLOW__", "_AIRFLOW_")
# Which server a session is on is said anew for each child: a process that has a session of Spark Connect says
# so to its children, and a child with a Spark of its own would look for a server.
_OF_THE_SESSION = ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
_PREFIX = "merge-"
_LOCK = "lock"
# A folder is locked as soon as it is made, but not in one step.
_SETTLED_SECONDS = 60.0


def build_child_environment(**more: str) -> dict[str, str]:
    """Return the environment of a Spark process: this one's, without what only Airflow needs."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_OF_AIRFLOW) and name not in _OF_THE_SESSION
    }
    return kept | more


def die_with_parent() -> None:
    """Ask Linux to end this process when its parent ends; elsewhere do nothing.

    Given to ``Popen`` as ``preexec_fn`` for the Spark JVM, and called first thing by the Python driver below
    it: each has a parent of its own, and one without the other would go on alone.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@contextmanager
def make_work_folder() -> Iterator[Path]:
    """Make a folder that only this user can enter, and remove it at the end.

    A process that is killed removes nothing, and what it leaves may hold keys. So those that nobody holds any
    more are removed here: the kernel knows who holds a lock, whichever process id or container that has.
    """
    _remove_left_folders(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        with (folder / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_left_folders(base: Path) -> None:
    for folder in base.glob(f"{_PREFIX}*"):
        # Another process may remove the same one.
        with suppress(OSError):
            found = folder.lstat()
            is_settled = time.time() - found.st_mtime > _SETTLED_SECONDS
            # Not even an administrator's run touches what other users have made, or what links point to.
            is_own = found.st_uid == os.getuid() and stat.S_ISDIR(found.st_mode)
            if is_own and is_settled and not _is_held(folder / _LOCK):
                shutil.rmtree(folder, ignore_errors=True)


def _is_held(lock: Path) -> bool:
    """Return whether the process that made a lock still runs.

    :raises OSError: if there is no such lock of this user.
    """
    with lock.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
