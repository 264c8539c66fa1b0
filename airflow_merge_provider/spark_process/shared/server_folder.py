"""Keep the files of the shared servers of this user, the locks between their processes, and their slots."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from airflow_merge_provider.core.errors import SetupError


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


_FOLDER_NAME = "airflow-merge-spark-{}"
_KEY_FILE, _KEY_BYTES = "key", 32
# A folder whose server is gone is removed after this time: until then it shows why the server ended.
_ABANDONED_SECONDS = 3600.0


@dataclass(frozen=True)
class ServerState:
    """A server that starts or is ready: its ``id`` of this start, and the process of its supervisor.

    Until it is ready, its ``port`` is zero, and ``server_pid`` is zero until it has a process.
    """

    id: str
    pid: int
    server_pid: int
    port: int
    started: float
    memory: str
    cores: int
    slots: int
    idle_seconds: float
    filesystem: str


@dataclass(frozen=True)
class ServerEnd:
    """Why the server with this ``id`` ended."""

    id: str
    reason: str
    detail: str = ""


class ServerFolder:
    """The private folder of one server."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.token_file = path / "token"
        self.log_file = path / "server.log"
        # Held while a process looks for the server, starts it or ends it.
        self._start_lock = path / "start.lock"
        # Held by the supervisor as long as it lives.
        self.server_lock = path / "server.lock"
        self._state_file = path / "state.json"

    def make_folder(self) -> None:
        """Create the folder if it is missing."""
        self.path.mkdir(mode=0o700, exist_ok=True)

    @contextlib.contextmanager
    def try_start_lock(self) -> Iterator[bool]:
        """Hold the start lock inside the block, if no other process holds it; yield whether it is held."""
        descriptor = None
        with contextlib.suppress(FileNotFoundError):
            descriptor = try_lock(self._start_lock)
        try:
            yield descriptor is not None
        finally:
            if descriptor is not None:
                release_lock(descriptor)

    def slot_file(self, number: int) -> Path:
        """Return the lock file of a slot."""
        return self.path / f"slot-{number}.lock"

    def is_supervised(self) -> bool:
        """Return whether the supervisor of this folder lives."""
        return is_locked(self.server_lock)

    def read_state(self) -> ServerState | None:
        """Return the server that is ready; None while it starts, and after it has ended."""
        state = self.read_any_state()
        return state if state is not None and state.port else None

    def read_any_state(self) -> ServerState | None:
        """Return the server that starts or is ready; None after it has ended."""
        values = _read_json(self._state_file)
        return ServerState(**values) if values and self.is_supervised() else None

    def write_state(self, state: ServerState) -> None:
        """Publish that the server starts or is ready."""
        _write_json(self._state_file, asdict(state))

    def read_end(self, server_id: str) -> ServerEnd | None:
        """Return why a server ended, if it did and its supervisor recorded it."""
        values = _read_json(self._end_file(server_id))
        return ServerEnd(**values) if values else None

    def write_end(self, end: ServerEnd) -> None:
        """Record why the server ended, and withdraw its state and its token."""
        _write_json(self._end_file(end.id), asdict(end))
        for file in (self._state_file, self.token_file):
            file.unlink(missing_ok=True)

    def remove_old_ends(self) -> None:
        """Remove the records of servers that ended long ago."""
        for file in self.path.glob("ended-*.json"):
            with contextlib.suppress(OSError):
                if time.time() - file.stat().st_mtime > _ABANDONED_SECONDS:
                    file.unlink()

    def _end_file(self, server_id: str) -> Path:
        return self.path / f"ended-{server_id}.json"

    def remove_folder(self) -> None:
        """Remove the folder with all its files; the caller holds the start lock."""
        shutil.rmtree(self.path, ignore_errors=True)

    def list_slots(self) -> list[Path]:
        """Return the lock files of all slots that have been used."""
        return sorted(self.path.glob("slot-*.lock"))

    def count_held_slots(self) -> int:
        """Return the number of runs that use the server."""
        return sum(is_locked(slot) for slot in self.list_slots())

    def find_last_use(self) -> float:
        """Return when a run last took or released a slot, in seconds since 1970; zero if none did."""
        times = [0.0]
        for slot in self.list_slots():
            with contextlib.suppress(OSError):
                times.append(slot.stat().st_mtime)
        return max(times)

    def read_last_lines(self, count: int = 10) -> list[str]:
        """Return the last lines of the server's log."""
        with contextlib.suppress(OSError):
            return self.log_file.read_text(encoding="utf-8", errors="replace").splitlines()[-count:]
        return []


def find_base_folder() -> Path:
    """Return the folder of all servers of this user, created if it is missing.

    :raises SetupError: if it cannot be created, or is not a private folder of this user.
    """
    folder = Path(tempfile.gettempdir()) / _FOLDER_NAME.format(os.getuid())
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise SetupError(
            f"The folder {folder} cannot be created: remove it, set TMPDIR to another folder, or set [merge] "
            f"local_spark to process ({error.strerror})"
        ) from None
    is_private = stat.S_ISDIR(status.st_mode) and not status.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    if status.st_uid != os.getuid() or not is_private:
        raise SetupError(
            f"The folder {folder} is not a private folder of this user: remove it, set TMPDIR to another "
            "folder, or set [merge] local_spark to process"
        )
    return folder


def read_key(base: Path) -> bytes:
    """Return the key of this user's digests, created on first use."""
    file = base / _KEY_FILE
    with contextlib.suppress(FileNotFoundError):
        return file.read_bytes()
    part = base / f"{_KEY_FILE}-{secrets.token_hex(8)}"
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(secrets.token_bytes(_KEY_BYTES))
    # Of several processes, the first one decides.
    with contextlib.suppress(FileExistsError):
        os.link(part, file)
    part.unlink()
    return file.read_bytes()


def list_folders(base: Path) -> list[ServerFolder]:
    """Return the folders of all servers of this user."""
    return [ServerFolder(path) for path in sorted(base.iterdir()) if path.is_dir() and not path.is_symlink()]


def remove_left_folders(base: Path) -> None:
    """Remove the folders of servers that ended long ago without removing them."""
    for folder in filter(_is_old, list_folders(base)):
        with folder.try_start_lock() as held:
            if held and not folder.is_supervised() and not folder.count_held_slots():
                folder.remove_folder()


def _is_old(folder: ServerFolder) -> bool:
    try:
        return time.time() - folder.path.stat().st_mtime > _ABANDONED_SECONDS
    except FileNotFoundError:
        return False


def _read_json(file: Path) -> dict[str, Any] | None:
    try:
        values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return values


def _write_json(file: Path, values: dict[str, Any]) -> None:
    part = file.with_suffix(f".{os.getpid()}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        json.dump(values, stream)
    part.replace(file)


class Slot:
    """A slot that this process holds; the kernel releases it if the process dies."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        os.utime(descriptor)

    def release(self) -> None:
        """Release the slot. Its time of release is when the server was last used."""
        os.utime(self._descriptor)
        release_lock(self._descriptor)


def try_slot(folder: ServerFolder, count: int) -> Slot | None:
    """Return a free slot of the server, or None if all are held."""
    for number in range(count):
        descriptor = try_lock(folder.slot_file(number))
        if descriptor is not None:
            return Slot(descriptor)
    return None
