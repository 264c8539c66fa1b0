"""A Spark child process: its environment, work folder, answer, parent-death signal, and file system."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import hmac
import os
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None

# What only an Airflow worker needs and Spark does not: connections, variables and the keys of its servers.
_OF_AIRFLOW = ("AIRFLOW_CONN_", "AIRFLOW_VAR_", "AIRFLOW__", "_AIRFLOW_")
# Each child sets its Spark Connect server itself. A process with a Spark Connect session passes these
# variables on to its children, and a child with its own Spark would look for a server.
_SESSION_VARIABLES = ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
_FOLDER_PREFIX = "merge-"
_LOCK = "lock"
# A new folder is locked in a second step, so a folder younger than this may not be locked yet.
_SETTLED_SECONDS = 60.0


def build_child_environment(**variables: str) -> dict[str, str]:
    """Return the environment of a Spark process: the current environment without what only Airflow needs."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_OF_AIRFLOW) and name not in _SESSION_VARIABLES
    }
    return environment | variables


def die_with_parent() -> None:
    """Make Linux end this process when its parent ends; do nothing on other systems.

    Passed to ``Popen`` as ``preexec_fn`` for the Spark JVM, and called first by the Python driver below it:
    each of the two has its own parent, and would otherwise keep running when the other ends.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@contextmanager
def make_work_folder() -> Iterator[Path]:
    """Create a folder that only this user can enter, and remove it at the end.

    A killed process does not remove its folder, which may hold keys. So this function also removes folders
    whose lock is not held. The kernel tracks who holds a lock, whatever the process ID or container.
    """
    _remove_left_folders(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX))
    try:
        with (folder / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_server_answer(file: Path, token: str, port: int) -> None:
    """Answer the process that started a server: it listens on ``port``, as one who has the token says."""
    part = file.with_suffix(".part")
    part.write_text(f"{port} {_prove_token(token, port)}", encoding="ascii")
    part.replace(file)


def read_server_answer(file: Path, token: str) -> int | None:
    """Return the port on which a server listens; None as long as it has not answered.

    Whoever listens on a port may be another process than the server that was to listen there.
    """
    with suppress(OSError, ValueError):
        port, proof = file.read_text(encoding="ascii").split()
        if hmac.compare_digest(proof, _prove_token(token, int(port))):
            return int(port)
    return None


def _prove_token(token: str, port: int) -> str:
    return hmac.new(token.encode(), str(port).encode(), hashlib.sha256).hexdigest()


def _remove_left_folders(base: Path) -> None:
    for folder in base.glob(f"{_FOLDER_PREFIX}*"):
        # Another process may remove the same folder.
        with suppress(OSError):
            stat_result = folder.lstat()
            is_settled = time.time() - stat_result.st_mtime > _SETTLED_SECONDS
            # Even a run as root does not touch files of other users or the targets of links.
            is_own = stat_result.st_uid == os.getuid() and stat.S_ISDIR(stat_result.st_mode)
            if is_own and is_settled and not _is_held(folder / _LOCK):
                shutil.rmtree(folder, ignore_errors=True)


def _is_held(lock: Path) -> bool:
    """Return whether the process that created a lock is still running.

    :raises OSError: if there is no such lock of this user.
    """
    with lock.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


# The setting of a Spark server that holds the ID of the file system that it uses.
FILESYSTEM_SETTING = "spark.airflow.merge.filesystem"


@cache
def get_filesystem_id() -> str | None:
    """Return an ID that is equal for processes that use the same files; None if the system has no such ID.

    It combines the boot ID of the machine and the mount namespace, which differs between containers.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = Path("/proc/self/ns/mnt").stat().st_ino
    except OSError:
        return None
    return f"{boot}/{namespace}"
