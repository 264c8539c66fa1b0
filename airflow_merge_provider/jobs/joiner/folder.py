"""A folder of files with a ledger, so that each run replaces or appends files atomically and exactly once.

A run writes its files to a hidden staging folder. It commits by creating its ledger entry, whose number is
the number of the last entry plus one; only one run can create it. Then the files are moved into place and the
files that they replace are removed. If a run crashes after its commit, the next run completes these moves
before it reads the folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem
from pyspark.sql import SparkSession

from airflow_merge_provider.core.object_store.clients import refuse_location
from airflow_merge_provider.jobs.spark.storage import build_arguments, remove_busy_folder

# Spark and most other readers of folders skip names with these prefixes.
_HIDDEN = ("_", ".")
_OURS = "_merge"
_LEDGER = f"{_OURS}/ledger"
_ENTRY, _DONE, _SUCCESS = ".json", ".done", "_SUCCESS"
_KEPT = 20


@dataclass(frozen=True, slots=True)
class FolderRun:
    """The ledger entry of a run: the files that it staged, added and removed, and all files after it."""

    number: int
    stage: str
    added: tuple[str, ...]
    removed: tuple[str, ...]
    files: tuple[str, ...]
    state: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FolderContent:
    """The content of a folder at one time: the last run (None before the first) and the visible files."""

    last: FolderRun | None
    files: frozenset[str]


class Folder:
    """A folder on a local disk or an object store; file names are relative to it.

    :raises SetupError: when no library for this kind of location is installed.
    """

    def __init__(self, location: str, options: Mapping[str, Any] | None = None) -> None:
        self.location = location.rstrip("/")
        try:
            self._fs, root = fsspec.core.url_to_fs(location, **(options or {}))
        except (ImportError, ValueError) as error:
            raise refuse_location(location, error) from None
        self._root = root.rstrip("/")

    def build_uri(self, name: str) -> str:
        """Return the URI that Spark uses for a file or a subfolder."""
        return f"{self.location}/{name}"

    def read_content(self) -> FolderContent:
        """Return the last run and the visible files, after completing a commit that a run left unfinished."""
        while True:
            last = self._read_last_entry()
            if last is not None and not self._has_file(self._name_done_file(last.number)):
                self.settle_run(last)
            files = frozenset(name for name in self._list_names() if not _is_hidden(name))
            if self._find_newest_number() == (last.number if last else 0):
                return FolderContent(last, files)

    def list_entries(self) -> Iterator[FolderRun]:
        """Yield the entries that the ledger still holds, newest first."""
        for number in sorted(self._list_numbers(), reverse=True):
            with contextlib.suppress(FileNotFoundError):
                yield self._read_entry(number)

    def holds_table(self) -> bool:
        """Return whether the folder contains a Delta table."""
        return self._has_file("_delta_log")

    def name_stage(self, number: int) -> str:
        """Return a new name for the hidden staging folder of a run."""
        return f"{_OURS}/{number}-{uuid.uuid4().hex}"

    def list_staged_files(self, stage: str) -> list[str]:
        """Return the sorted names of the files that Spark wrote to a staging folder."""
        names = (name.removeprefix(f"{stage}/") for name in self._list_names(stage))
        return sorted(name for name in names if not _is_hidden(name))

    def record_run(self, entry: FolderRun) -> bool:
        """Commit a run by creating its ledger entry.

        Return False if another run has used its number, even if the entry of that run has been removed.
        """
        content = json.dumps(asdict(entry), ensure_ascii=False).encode()
        name = self._name_entry(entry.number)
        try:
            if isinstance(self._fs, LocalFileSystem):
                self._link_entry(entry.stage, name, content)
            else:
                self._fs.pipe_file(self._resolve_path(name), content, mode="create")
        except FileExistsError:
            return False
        except FileNotFoundError:
            # A later run has removed the staging folder of this one.
            if self._find_newest_number() < entry.number:
                raise
            return False
        if self._find_newest_number() > entry.number and not self._has_file(
            self._name_done_file(entry.number)
        ):
            # Every run is settled before the next one commits. A newer entry without a ".done" file for this
            # number means that another run used the number, and that its entry has been removed since.
            self.remove_path(name)
            return False
        return True

    def _link_entry(self, stage: str, name: str, content: bytes) -> None:
        part = Path(self._resolve_path(f"{stage}/{_ENTRY}"))
        part.write_bytes(content)
        Path(self._resolve_path(_LEDGER)).mkdir(parents=True, exist_ok=True)
        # Unlike a rename, a hard link fails if the name already exists.
        os.link(part, self._resolve_path(name))

    def settle_run(self, entry: FolderRun) -> None:
        """Move a run's files into place and remove the files that they replace; this is idempotent.

        ``_SUCCESS`` does not exist meanwhile, so that readers can wait for it.
        """
        self.remove_path(_SUCCESS)
        for name in entry.added:
            # If the file does not exist, another run has already moved it.
            with contextlib.suppress(FileNotFoundError):
                self._fs.mv(self._resolve_path(f"{entry.stage}/{name}"), self._resolve_path(name))
        for name in entry.removed:
            self.remove_path(name)
        self._fs.pipe_file(self._resolve_path(_SUCCESS), b"")
        self._fs.pipe_file(self._resolve_path(self._name_done_file(entry.number)), b"")
        self._remove_old_runs(entry.number)

    def remove_path(self, name: str) -> None:
        """Remove a file or a folder; do nothing if it does not exist."""
        remove_busy_folder(partial(self._fs.rm, self._resolve_path(name), recursive=True))

    def _read_last_entry(self) -> FolderRun | None:
        number = self._find_newest_number()
        return self._read_entry(number) if number else None

    def _read_entry(self, number: int) -> FolderRun:
        raw = json.loads(self._fs.cat_file(self._resolve_path(self._name_entry(number))))
        lists = {name: tuple(raw[name]) for name in ("added", "removed", "files")}
        return FolderRun(raw["number"], raw["stage"], state=raw["state"], **lists)

    def _find_newest_number(self) -> int:
        return max(self._list_numbers(), default=0)

    def _list_numbers(self) -> list[int]:
        names = (name.rpartition("/")[2] for name in self._list_names(_LEDGER))
        return [int(name.removesuffix(_ENTRY)) for name in names if name.endswith(_ENTRY)]

    def _remove_old_runs(self, number: int) -> None:
        """Remove the staging folders of all runs up to a number, and old ledger entries.

        A run with such a number that is still active can no longer commit.
        """
        self._fs.invalidate_cache()
        for path in self._fs.ls(self._resolve_path(_OURS), detail=False):
            name = path.rstrip("/").rpartition("/")[2]
            if name.partition("-")[0].isdigit() and int(name.partition("-")[0]) <= number:
                self.remove_path(f"{_OURS}/{name}")
        for old in self._list_numbers():
            if old <= number - _KEPT:
                self.remove_path(self._name_done_file(old))
                self.remove_path(self._name_entry(old))

    def _list_names(self, below: str = "") -> list[str]:
        self._fs.invalidate_cache()
        paths = self._fs.find(self._resolve_path(below) if below else self._root)
        return [path[len(self._root) + 1 :] for path in paths]

    def _has_file(self, name: str) -> bool:
        self._fs.invalidate_cache()
        return bool(self._fs.exists(self._resolve_path(name)))

    def _name_entry(self, number: int) -> str:
        return f"{_LEDGER}/{number:08d}{_ENTRY}"

    def _name_done_file(self, number: int) -> str:
        return f"{_LEDGER}/{number:08d}{_DONE}"

    def _resolve_path(self, name: str) -> str:
        return f"{self._root}/{name}"


def open_folder(spark: SparkSession, location: str) -> Folder:
    """Return a folder that uses the credentials in Spark's settings.

    Options that these settings lack come from the environment.
    """
    return Folder(location, build_arguments(spark, location))


def _is_hidden(name: str) -> bool:
    return any(part.startswith(_HIDDEN) for part in name.split("/"))
