"""Folders for the files of one Spark process: private, and gone with the process that made them."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "merge-"
_LOCK = "lock"
# A folder is locked as soon as it is made, but not in one step.
_SETTLED_SECONDS = 60.0


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
        # Folders of other users cannot be opened; others may remove the same one.
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > _SETTLED_SECONDS and not _is_held(folder / _LOCK):
                shutil.rmtree(folder, ignore_errors=True)


def _is_held(lock: Path) -> bool:
    """Tell whether the process that made a lock still runs.

    :raises OSError: if there is no such lock of this user.
    """
    with lock.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
