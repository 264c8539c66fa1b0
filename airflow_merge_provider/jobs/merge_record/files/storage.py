"""How are files listed, read, written and moved: one folder, on a local disk or an object store."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import os
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import fsspec
from pyspark.sql import SparkSession

from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.core.merge_record.landing import Entry
from airflow_merge_provider.jobs.spark.storage import build_storage_options

_UNPACKERS: dict[str, Callable[[BinaryIO], Any]] = {".gz": gzip.open, ".bz2": bz2.open}
PACKED = tuple(_UNPACKERS)
_THREADS = 16
Thing = TypeVar("Thing")
Result = TypeVar("Result")


class Storage(ABC):
    """A folder and what is below it; names are relative to it."""

    def __init__(self, location: str) -> None:
        self.location = location.rstrip("/")

    @abstractmethod
    def files(self) -> list[Entry]:
        """List every file below the folder; none when there is no folder."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """Give a file's content, or None when it is not there."""

    @abstractmethod
    def open(self, name: str) -> BinaryIO:
        """Open a file for reading."""

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Say whether there is such a file."""

    @abstractmethod
    def write(self, name: str, content: bytes) -> None:
        """Write a file whole, in place of one that may be there: never is half of it seen."""

    @abstractmethod
    def create(self, name: str, content: bytes) -> bool:
        """Write a file whole if there is none of this name; False when there is."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove a file or a folder; one that is not there is no error."""

    @abstractmethod
    def move(self, name: str, target: Storage, target_name: str) -> None:
        """Move a file into another folder; on one file system it is there or here, never in part."""

    @abstractmethod
    def receive(self, name: str, content: BinaryIO) -> None:
        """Write a file whole, of any size, in place of one that may be there."""

    def uri(self, name: str) -> str:
        """Name a file as Spark and users do."""
        return f"{self.location}/{name}"

    def for_each(self, do: Callable[[Thing], Result], things: Iterable[Thing]) -> list[Result]:
        """Do something for each of several files, in any order; gives the results in theirs."""
        return [do(thing) for thing in things]

    def put_beside(self, name: str, content: bytes) -> None:
        """Write a file that nobody reads until another one is there; until then it is written again."""
        self.write(name, content)

    @contextlib.contextmanager
    def unpacked(self, name: str) -> Iterator[BinaryIO]:
        """Open a file for reading, through the compression that its name tells."""
        with self.open(name) as file:
            unpacker = _UNPACKERS.get(Path(name).suffix)
            yield file if unpacker is None else cast("BinaryIO", unpacker(file))


class LocalStorage(Storage):
    """A folder of this machine."""

    def files(self) -> list[Entry]:
        return list(_walked(self.location, "")) if Path(self.location).is_dir() else []

    def read(self, name: str) -> bytes | None:
        try:
            return Path(self.path(name)).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def open(self, name: str) -> BinaryIO:
        return Path(self.path(name)).open("rb")

    def exists(self, name: str) -> bool:
        return Path(self.path(name)).exists()

    def write(self, name: str, content: bytes) -> None:
        self._part(name, content).replace(self.path(name))

    def create(self, name: str, content: bytes) -> bool:
        part = self._part(name, content)
        try:
            os.link(part, self.path(name))
        except FileExistsError:
            return False
        finally:
            part.unlink()
        return True

    def put_beside(self, name: str, content: bytes) -> None:
        self._written(Path(self.path(name)), content)

    def delete(self, name: str) -> None:
        path = Path(self.path(name))
        try:
            path.unlink(missing_ok=True)
        except (IsADirectoryError, PermissionError):
            shutil.rmtree(path)

    def move(self, name: str, target: Storage, target_name: str) -> None:
        if not isinstance(target, LocalStorage):
            _copied(self, name, target, target_name)
            return
        here, there = Path(self.path(name)), Path(target.path(target_name))
        try:
            here.replace(there)
        except OSError:
            # No such folder yet, or one on another disk.
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(here, there)

    def receive(self, name: str, content: BinaryIO) -> None:
        part = self._part(name, b"")
        with part.open("wb") as sink:
            shutil.copyfileobj(content, sink)
        part.replace(self.path(name))

    def path(self, name: str) -> str:
        """Give the whole path of a file."""
        return f"{self.location}/{name}"

    def _part(self, name: str, content: bytes) -> Path:
        """Write the content under a name that nobody looks for."""
        path = Path(self.path(name))
        part = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        self._written(part, content)
        return part

    def _written(self, path: Path, content: bytes) -> None:
        try:
            path.write_bytes(content)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


class RemoteStorage(Storage):
    """A folder of whatever fsspec has a library for.

    :raises SetupError: when no library for this kind of location is installed.
    """

    def __init__(self, location: str, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(location)
        try:
            self.fs, root = fsspec.core.url_to_fs(location, **(options or {}))
        except (ImportError, ValueError) as error:
            raise SetupError(
                f"{location}: no library for this kind of location is installed ({error})"
            ) from None
        self._root = root.rstrip("/")

    def for_each(self, do: Callable[[Thing], Result], things: Iterable[Thing]) -> list[Result]:
        """Do it side by side: every answer of a store takes its time, which one of a disk does not."""
        with ThreadPoolExecutor(_THREADS) as pool:
            return list(pool.map(do, things))

    def files(self) -> list[Entry]:
        self.fs.invalidate_cache()
        if not self.fs.exists(self._root):
            return []
        found = self.fs.find(self._root, detail=True)
        return [Entry.of(path[len(self._root) + 1 :], stat) for path, stat in found.items()]

    def read(self, name: str) -> bytes | None:
        try:
            return cast("bytes", self.fs.cat_file(self.path(name)))
        except FileNotFoundError:
            return None

    def open(self, name: str) -> BinaryIO:
        return cast("BinaryIO", self.fs.open(self.path(name), "rb"))

    def exists(self, name: str) -> bool:
        return bool(self.fs.exists(self.path(name)))

    def write(self, name: str, content: bytes) -> None:
        self.fs.pipe_file(self.path(name), content)

    def create(self, name: str, content: bytes) -> bool:
        try:
            self.fs.pipe_file(self.path(name), content, mode="create")
        except FileExistsError:
            return False
        return True

    def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm(self.path(name), recursive=True)

    def move(self, name: str, target: Storage, target_name: str) -> None:
        if isinstance(target, RemoteStorage) and self.fs is target.fs:
            self.fs.mv(self.path(name), target.path(target_name))
        else:
            _copied(self, name, target, target_name)

    def receive(self, name: str, content: BinaryIO) -> None:
        with self.fs.open(self.path(name), "wb") as sink:
            shutil.copyfileobj(content, sink)

    def path(self, name: str) -> str:
        """Give the name of a file as its file system knows it."""
        return f"{self._root}/{name}"


def open_storage(location: str, options: Mapping[str, Any] | None = None) -> Storage:
    """Give the folder at a location.

    :raises SetupError: when no library for this kind of location is installed.
    """
    return LocalStorage(location) if location.startswith("/") else RemoteStorage(location, options)


def find_storage_options(spark: SparkSession, location: str) -> dict[str, Any]:
    """Give fsspec what Spark's settings say about an object store; its environment tells it the rest."""
    is_s3 = location.startswith(("s3://", "s3a://"))
    return {**build_storage_options(spark, location), **({"use_listings_cache": False} if is_s3 else {})}


def _walked(folder: str, prefix: str) -> Iterator[Entry]:
    with os.scandir(folder) as found:
        for each in found:
            if each.is_dir():
                yield from _walked(each.path, f"{prefix}{each.name}/")
            elif each.is_file():
                stat = each.stat()
                yield Entry.of(f"{prefix}{each.name}", {"size": stat.st_size, "mtime": stat.st_mtime})


def _copied(source: Storage, name: str, target: Storage, target_name: str) -> None:
    """Move a file between stores that do not know each other: whole there before it is gone here."""
    with source.open(name) as content:
        target.receive(target_name, content)
    source.delete(name)
