"""How are files listed, read, written and moved: one folder, on a local disk or an object store."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem
from pyspark.sql import SparkSession

from airflow_merge_provider.core.errors import SetupError

# What Hadoop's S3 client is told, in the words of fsspec's.
_S3 = {"access.key": "key", "secret.key": "secret", "session.token": "token", "endpoint": "endpoint_url"}
# Where file systems of fsspec tell when a file was written.
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "created")
_MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a listing; ``modified`` is in microseconds since 1970 UTC.

    ``version`` is another one once the content is.
    """

    name: str
    size: int
    modified: int
    version: str


class Storage:
    """A folder and what is below it; names are relative to it.

    :raises SetupError: when no library for this kind of location is installed.
    """

    def __init__(self, location: str, options: Mapping[str, Any] | None = None) -> None:
        self.location = location.rstrip("/")
        try:
            self._fs, root = fsspec.core.url_to_fs(location, **(options or {}))
        except (ImportError, ValueError) as error:
            raise SetupError(
                f"{location}: no library for this kind of location is installed ({error})"
            ) from None
        self._root = root.rstrip("/")
        self._local = isinstance(self._fs, LocalFileSystem)

    def uri(self, name: str) -> str:
        """Name a file as Spark and users do."""
        return f"{self.location}/{name}"

    def files(self) -> list[Entry]:
        """List every file below the folder; none when there is no folder."""
        self._fs.invalidate_cache()
        if not self._fs.exists(self._root):
            return []
        found = self._fs.find(self._root, detail=True)
        return [_entry(path[len(self._root) + 1 :], stat) for path, stat in found.items()]

    def read(self, name: str) -> bytes | None:
        """Give a file's content, or None when it is not there."""
        try:
            content: bytes = self._fs.cat_file(self._path(name))
        except FileNotFoundError:
            return None
        return content

    def open(self, name: str, *, unpacked: bool = False) -> Any:
        """Open a file for reading; ``unpacked`` looks through compression that its name tells."""
        return self._fs.open(self._path(name), "rb", compression="infer" if unpacked else None)

    def exists(self, name: str) -> bool:
        """Say whether there is such a file."""
        return bool(self._fs.exists(self._path(name)))

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole, in place of one that may be there."""
        if self._local:
            part = self._part(name, content)
            part.replace(self._path(name))
        else:
            self._fs.pipe_file(self._path(name), content)

    def create(self, name: str, content: bytes) -> bool:
        """Write a file whole if there is none of this name; False when there is."""
        try:
            if not self._local:
                self._fs.pipe_file(self._path(name), content, mode="create")
                return True
            part = self._part(name, content)
            try:
                os.link(part, self._path(name))
            finally:
                part.unlink()
        except FileExistsError:
            return False
        return True

    def delete(self, name: str) -> None:
        """Remove a file or a folder; one that is not there is no error."""
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm(self._path(name), recursive=True)

    def move(self, name: str, target: Storage, target_name: str) -> None:
        """Move a file into another folder; on one file system it is there or here, never in part."""
        here, there = self._path(name), target._path(target_name)
        if self._local and target._local:
            Path(there).parent.mkdir(parents=True, exist_ok=True)
            shutil.move(here, there)
        elif type(self._fs) is type(target._fs):
            self._fs.mv(here, there)
        else:
            with self._fs.open(here, "rb") as source, target._fs.open(there, "wb") as sink:
                shutil.copyfileobj(source, sink)
            self._fs.rm(here)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _part(self, name: str, content: bytes) -> Path:
        """Write the content under a name that nobody looks for."""
        path = Path(self._path(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        part.write_bytes(content)
        return part


def storage_options(spark: SparkSession, location: str) -> dict[str, Any]:
    """Give fsspec what Spark's settings say about an object store; its environment tells it the rest."""
    if not location.startswith(("s3://", "s3a://")):
        return {}
    told = {ours: spark.conf.get(f"spark.hadoop.fs.s3a.{name}", None) for name, ours in _S3.items()}
    options = {name: value for name, value in told.items() if value}
    return {**options, "use_listings_cache": False}


def _entry(name: str, stat: Mapping[str, Any]) -> Entry:
    changed = next((stat[name] for name in _TIMES if stat.get(name)), 0)
    seconds = changed.timestamp() if hasattr(changed, "timestamp") else float(changed)
    size = int(stat.get("size") or 0)
    version = str(stat.get("ETag") or stat.get("etag") or f"{size}-{seconds!r}").strip('"')
    return Entry(name, size, int(seconds * _MICROSECONDS), version)
