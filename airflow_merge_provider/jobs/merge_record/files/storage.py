"""Operations on the files of a folder on a local disk or an object store: list, read, write and move."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import io
import os
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from stat import S_IMODE
from types import TracebackType
from typing import Any, BinaryIO, Self, TypeVar, cast

from airflow_merge_provider.core.change_plan.shown_rows import mask_error
from airflow_merge_provider.core.errors import JobError
from airflow_merge_provider.core.merge_record.landing import FileEntry, walk_folder
from airflow_merge_provider.file_store.folder import open_folder, remove_path
from airflow_merge_provider.jobs.spark.storage import remove_busy_folder

# Only Linux has this flag, and not all of its file systems support it.
_UNNAMED = getattr(os, "O_TMPFILE", 0)


class StoreReadError(JobError):
    """Raised if a store fails while a file is read, which says nothing about the file."""


def _describe_failed_store(uri: str, error: Exception) -> StoreReadError:
    return StoreReadError(
        f"{uri} cannot be read now: {type(error).__name__}: {mask_error(str(error), error)}"
    )


class _StoredFile(io.RawIOBase):
    """A file that remembers with which error its store has failed: readers take it for a damaged file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: Exception | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            content = self._file.read(len(buffer))
        except Exception as error:
            self.error = error
            raise
        buffer[: len(content)] = content
        return len(content)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()
        super().close()


class NewFile:
    """A file that gets its name after it is written; until then it has no name, or a hidden one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part: Path | None = None

    def __enter__(self) -> Self:
        try:
            self.file = self._open_file()
        except FileNotFoundError:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self.file = self._open_file()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.file.close()
        if self._part is not None:
            self._part.unlink(missing_ok=True)

    def link_new(self) -> bool:
        """Link the file to its name; return False if a file with this name exists."""
        self.file.flush()
        try:
            self._link_file(self._path)
        except FileExistsError:
            return False
        return True

    def link_replacing(self) -> None:
        """Link the file to its name, and replace an existing file with this name."""
        if self._part is None and self.link_new():
            return
        self.file.flush()
        part = self._part or self._name_part()
        if self._part is None:
            self._link_file(part)
            self._part = part
        part.replace(self._path)

    def _open_file(self) -> BinaryIO:
        if _UNNAMED:
            with contextlib.suppress(OSError):
                return os.fdopen(os.open(self._path.parent, os.O_WRONLY | _UNNAMED, 0o666), "wb")
        part = self._name_part()
        file = part.open("xb")
        self._part = part
        return file

    def _link_file(self, path: Path) -> None:
        if self._part is not None:
            os.link(self._part, path)
            return
        number = self.file.fileno()
        # Python follows the symbolic link only if a directory descriptor is given; linkat ignores it here,
        # because the path is absolute.
        os.link(f"/proc/self/fd/{number}", path, src_dir_fd=number, follow_symlinks=True)

    def _name_part(self) -> Path:
        # This name does not include the final name, which may already have the maximum length.
        return self._path.with_name(f".part-{uuid.uuid4().hex}")


_UNPACKERS: dict[str, Callable[[BinaryIO], Any]] = {".gz": gzip.open, ".bz2": bz2.open}
PACKED = tuple(_UNPACKERS)
_THREADS_MAX = 16
_CHUNK_BYTES = 1 << 20
_CLAIMED = ".claimed-"
_MARK_LENGTH = 32
# Keeps a name with a mark within the maximum length, even if its characters take several bytes.
_STEM_LENGTH = 40
Item = TypeVar("Item")
Result = TypeVar("Result")


class Storage(ABC):
    """A folder with its files and subfolders; file names are relative to it."""

    def __init__(self, location: str) -> None:
        self.location = location.rstrip("/")

    def is_missing(self) -> bool:
        """Whether there is no such folder; in an object store, a folder without files is like none."""
        return False

    @abstractmethod
    def list_files(self) -> list[FileEntry]:
        """Return all files below the folder; an empty list if the folder does not exist."""

    @abstractmethod
    def read_file(self, name: str) -> bytes | None:
        """Return the content of a file, or None if it does not exist."""

    @abstractmethod
    def open_file(self, name: str) -> BinaryIO:
        """Open a file for reading."""

    @abstractmethod
    def find_entry(self, name: str) -> FileEntry | None:
        """Return the current entry of a file, or None if it does not exist."""

    @abstractmethod
    def list_prefixed(self, prefix: str) -> list[str]:
        """Return the names of files and folders directly in the folder that start with a prefix."""

    @abstractmethod
    def claim_file(self, name: str, version: str) -> str | None:
        """Claim a certain version of a file, and return its name after the claim.

        A local file is renamed, so that a writer of its name cannot change it. Return None if the file does
        not exist or has another version; a file of another version is kept. A claim may be repeated until the
        file is deleted or moved, also after a crash.
        """

    @abstractmethod
    def write_file(self, name: str, content: bytes) -> None:
        """Write a file atomically and replace an existing one; readers never see partial content."""

    @abstractmethod
    def create_file(self, name: str, content: bytes) -> bool:
        """Write a file atomically if the name is not in use; return False if it is."""

    @abstractmethod
    def delete_path(self, name: str) -> None:
        """Remove a file or a folder; do nothing if it does not exist."""

    @abstractmethod
    def move_file(self, name: str, target: Storage, target_name: str) -> None:
        """Move a file to another folder, and replace an existing one; readers never see partial content.

        The move is atomic within one file system. Elsewhere an attempt that was killed leaves the file, or a
        copy and the file, and may be repeated.

        :raises FileNotFoundError: when there is no such file.
        """

    @abstractmethod
    def write_stream(self, name: str, content: BinaryIO) -> None:
        """Write a complete file of any size from a stream, and replace an existing one."""

    def build_uri(self, name: str) -> str:
        """Return the URI that Spark and users use for a file."""
        return f"{self.location}/{name}"

    def for_each(self, call: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Call a function for each item, in any order, and return the results in the order of the items."""
        return [call(item) for item in items]

    def copy_new(self, name: str, target: Storage, target_name: str) -> bool:
        """Copy a file to a name that is not in use, and return whether the name has its content then.

        The version of a copy may differ from that of the file, and that of another file may be the same. So
        the copy of an attempt that was killed is recognized by its content.

        :raises FileNotFoundError: when there is no such file.
        """
        is_free = target.find_entry(target_name) is None
        return (is_free and self._copy_file(name, target, target_name)) or self._has_content_of(
            name, target, target_name
        )

    def _copy_file(self, name: str, target: Storage, target_name: str) -> bool:
        """Copy a file; return False if the name was taken meanwhile and the target could tell."""
        with self.open_file(name) as content:
            target.write_stream(target_name, content)
        return True

    def _has_content_of(self, name: str, target: Storage, target_name: str) -> bool:
        with self.open_file(name) as file, target.open_file(target_name) as other_file:
            while chunk := file.read(_CHUNK_BYTES):
                if other_file.read(len(chunk)) != chunk:
                    return False
            return not other_file.read(1)

    def write_sidecar(self, name: str, content: bytes) -> None:
        """Write a sidecar, not necessarily atomically.

        No reader uses it before the file that it belongs to exists; a retry until then writes it again.
        """
        self.write_file(name, content)

    @contextlib.contextmanager
    def open_unpacked(self, name: str) -> Iterator[BinaryIO]:
        """Open a file for reading, and decompress it according to the suffix of its name.

        :raises StoreReadError: if the store fails, whatever a reader of the file makes of that.
        """
        unpack = _UNPACKERS.get(Path(name).suffix)
        try:
            file = _StoredFile(self.open_file(name))
        except (FileNotFoundError, PermissionError):
            raise
        except OSError as error:
            raise _describe_failed_store(self.build_uri(name), error) from error
        with file:
            try:
                stored = cast("BinaryIO", file)
                yield stored if unpack is None else cast("BinaryIO", unpack(stored))
            except Exception:
                if file.error is not None:
                    raise _describe_failed_store(self.build_uri(name), file.error) from file.error
                raise


class LocalStorage(Storage):
    """A folder on a local disk."""

    def is_missing(self) -> bool:
        return not Path(self.location).is_dir()

    def list_files(self) -> list[FileEntry]:
        return list(walk_folder(self.location))

    def read_file(self, name: str) -> bytes | None:
        try:
            return Path(self.resolve_path(name)).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def open_file(self, name: str) -> BinaryIO:
        return Path(self.resolve_path(name)).open("rb")

    def find_entry(self, name: str) -> FileEntry | None:
        try:
            return FileEntry.of_file(name, os.lstat(self.resolve_path(name)))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def list_prefixed(self, prefix: str) -> list[str]:
        try:
            with os.scandir(self.location) as entries:
                return sorted(entry.name for entry in entries if entry.name.startswith(prefix))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def claim_file(self, name: str, version: str) -> str | None:
        # File systems cannot delete or move a file on the condition that it has a certain version. After the
        # rename, no other process uses the file.
        folder, slash, _ = name.rpartition("/")
        digest = hashlib.sha256(os.fsencode(f"{name}\n{version}")).hexdigest()[:_MARK_LENGTH]
        claimed_name = f"{folder}{slash}{_CLAIMED}{digest}"
        if self.find_entry(claimed_name) is None:
            entry = self.find_entry(name)
            if entry is None or entry.version != version:
                return None
            with contextlib.suppress(FileNotFoundError):
                Path(self.resolve_path(name)).rename(self.resolve_path(claimed_name))
        claimed_entry = self.find_entry(claimed_name)
        if claimed_entry is not None and claimed_entry.version != version:
            # The file was replaced between check and rename, in this run or in one that crashed here.
            self._give_back(claimed_name, name, digest)
            return None
        return None if claimed_entry is None else claimed_name

    def write_file(self, name: str, content: bytes) -> None:
        with NewFile(Path(self.resolve_path(name))) as new:
            new.file.write(content)
            new.link_replacing()

    def create_file(self, name: str, content: bytes) -> bool:
        with NewFile(Path(self.resolve_path(name))) as new:
            new.file.write(content)
            return new.link_new()

    def write_sidecar(self, name: str, content: bytes) -> None:
        self._write_content(Path(self.resolve_path(name)), content)

    def delete_path(self, name: str) -> None:
        path = Path(self.resolve_path(name))
        try:
            path.unlink(missing_ok=True)
        except (IsADirectoryError, PermissionError):
            if not path.is_dir():
                raise
            remove_busy_folder(partial(shutil.rmtree, path))

    def move_file(self, name: str, target: Storage, target_name: str) -> None:
        if not isinstance(target, LocalStorage):
            super()._copy_file(name, target, target_name)
            self.delete_path(name)
            return
        source_path, target_path = Path(self.resolve_path(name)), Path(target.resolve_path(target_name))
        target_path.parent.mkdir(parents=True, exist_ok=True)
        try:
            source_path.replace(target_path)
        except OSError:
            # The target folder is on another disk.
            with self._copy_contents(name, target_path) as new:
                new.link_replacing()
            source_path.unlink()

    def _copy_file(self, name: str, target: Storage, target_name: str) -> bool:
        if not isinstance(target, LocalStorage):
            return super()._copy_file(name, target, target_name)
        target_path = Path(target.resolve_path(target_name))
        target_path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(self.resolve_path(name), target_path, follow_symlinks=False)
        except FileExistsError:
            return False
        except OSError:
            # The target is on another disk, or has no hard links.
            with self._copy_contents(name, target_path) as new:
                return new.link_new()
        return True

    @contextlib.contextmanager
    def _copy_contents(self, name: str, target_path: Path) -> Iterator[NewFile]:
        """Copy a file with its time, which is a part of its version, to a file that has no name yet."""
        with self.open_file(name) as content, NewFile(target_path) as new:
            shutil.copyfileobj(content, new.file)
            new.file.flush()
            stat = os.fstat(content.fileno())
            os.fchmod(new.file.fileno(), S_IMODE(stat.st_mode))
            os.utime(new.file.fileno(), ns=(stat.st_atime_ns, stat.st_mtime_ns))
            yield new

    def write_stream(self, name: str, content: BinaryIO) -> None:
        with NewFile(Path(self.resolve_path(name))) as new:
            shutil.copyfileobj(content, new.file)
            new.link_replacing()

    def resolve_path(self, name: str) -> str:
        """Return the full path of a file."""
        return f"{self.location}/{name}"

    def _give_back(self, claimed_name: str, name: str, digest: str) -> None:
        """Move a claimed file back to its name, or to a new name next to it if the name is in use again."""
        folder, slash, last = name.rpartition("/")
        stem, dot, ending = last.partition(".")
        for free_name in (name, f"{folder}{slash}{stem[:_STEM_LENGTH]}-{digest}{dot}{ending}"):
            with contextlib.suppress(FileExistsError):
                os.link(self.resolve_path(claimed_name), self.resolve_path(free_name), follow_symlinks=False)
                break
        Path(self.resolve_path(claimed_name)).unlink()

    def _write_content(self, path: Path, content: bytes) -> None:
        try:
            path.write_bytes(content)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


class RemoteStorage(Storage):
    """A folder in any store that fsspec has a library for.

    :raises SetupError: when no library for this kind of location is installed.
    """

    def __init__(self, location: str, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(location)
        self.fs, self._root = open_folder(location, options)

    def for_each(self, call: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Call the function in parallel threads, because requests to a store have a high latency."""
        with ThreadPoolExecutor(_THREADS_MAX) as pool:
            return list(pool.map(call, items))

    def list_files(self) -> list[FileEntry]:
        self.fs.invalidate_cache()
        if not self.fs.exists(self._root):
            return []
        file_stats = self.fs.find(self._root, detail=True)
        return [FileEntry.from_stat(path[len(self._root) + 1 :], stat) for path, stat in file_stats.items()]

    def read_file(self, name: str) -> bytes | None:
        try:
            return cast("bytes", self.fs.cat_file(self.resolve_path(name)))
        except FileNotFoundError:
            return None

    def open_file(self, name: str) -> BinaryIO:
        return cast("BinaryIO", self.fs.open(self.resolve_path(name), "rb"))

    def find_entry(self, name: str) -> FileEntry | None:
        path = self.resolve_path(name)
        self.fs.invalidate_cache(self.fs._parent(path))  # noqa: SLF001 - fsspec has no public equivalent
        try:
            return FileEntry.from_stat(name, self.fs.info(path))
        except FileNotFoundError:
            return None

    def list_prefixed(self, prefix: str) -> list[str]:
        self.fs.invalidate_cache(self._root)
        # Methods of fsspec that take patterns take a bracket or a star in a name as one.
        with contextlib.suppress(FileNotFoundError):
            paths = map(str, self.fs.ls(self._root, detail=False))
            names = (path.rstrip("/").rpartition("/")[2] for path in paths)
            return sorted(name for name in names if name.startswith(prefix))
        return []

    def claim_file(self, name: str, version: str) -> str | None:
        # Object stores have no rename: the file keeps its name, and the caller deletes or moves it at once.
        entry = self.find_entry(name)
        return name if entry is not None and entry.version == version else None

    def write_file(self, name: str, content: bytes) -> None:
        self.fs.pipe_file(self.resolve_path(name), content)

    def create_file(self, name: str, content: bytes) -> bool:
        try:
            self.fs.pipe_file(self.resolve_path(name), content, mode="create")
        except FileExistsError:
            # If the answer of the store is lost, the client writes again, and its own file has the name.
            return self.read_file(name) == content
        return True

    def delete_path(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            remove_path(self.fs, self.resolve_path(name))

    def move_file(self, name: str, target: Storage, target_name: str) -> None:
        self._copy_file(name, target, target_name)
        self.fs.rm_file(self.resolve_path(name))

    def _copy_file(self, name: str, target: Storage, target_name: str) -> bool:
        # adlfs does not wait until Azure has copied a file, so that a reader may see none of its content.
        is_copied_later = "abfs" in self.fs.protocol
        if is_copied_later or not isinstance(target, RemoteStorage) or not self._is_same_store(target):
            return super()._copy_file(name, target, target_name)
        self.fs.cp_file(self.resolve_path(name), target.resolve_path(target_name))
        return True

    def _is_same_store(self, other: RemoteStorage) -> bool:
        # fsspec has another client for each thread.
        own, options = type(self.fs), self.fs.storage_options
        return own is type(other.fs) and options == other.fs.storage_options

    def write_stream(self, name: str, content: BinaryIO) -> None:
        sink = self.fs.open(self.resolve_path(name), "wb")
        try:
            shutil.copyfileobj(content, sink)
        except BaseException:
            sink.discard()
            # Else the file would be completed with a part of its content.
            with contextlib.suppress(AttributeError):
                sink.closed = True
            raise
        sink.close()

    def resolve_path(self, name: str) -> str:
        """Return the path of a file within its file system."""
        return f"{self._root}/{name}"


# Opens the folder at a location.
Open = Callable[[str], Storage]


def open_storage(location: str, options: Mapping[str, Any] | None = None) -> Storage:
    """Return the folder at a location.

    :raises SetupError: when no library for this kind of location is installed.
    """
    return LocalStorage(location) if location.startswith("/") else RemoteStorage(location, options)
