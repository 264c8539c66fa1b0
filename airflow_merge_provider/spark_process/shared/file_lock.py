"""Lock files between processes; the kernel releases a lock when the last process that holds it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path


def try_lock(path: Path) -> int | None:
    """Return the descriptor of a lock that this process now holds, or None if another process holds it.

    The file is created if it is missing; its folder must exist.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    # The previous holder may have removed the file meanwhile: a lock on a file without a name is no lock.
    if not _is_same_file(descriptor, path):
        os.close(descriptor)
        return None
    return descriptor


def is_locked(path: Path) -> bool:
    """Return whether a process holds a lock; False if there is no such file."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        # A shared lock, so that two processes that check at the same time do not find each other.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def release_lock(descriptor: int) -> None:
    """Close a lock file, which releases the lock if no other process holds it."""
    with contextlib.suppress(OSError):
        os.close(descriptor)


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False
