"""Explain a file of a merge record: which bin and reason made an output, and what became of a source file.

Open bins and the bins that ended last are listed, too. Neither Spark nor Airflow is needed: the ledger and
the state in the state_path of the task are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from airflow_merge_provider.core.dataset import Dataset, resolve_dataset
from airflow_merge_provider.core.errors import ConfigError, DataError, Problem, suggest_name
from airflow_merge_provider.core.merge_record.bins import Bin
from airflow_merge_provider.core.merge_record.journal import JournalReader, find_state_file, state_file
from airflow_merge_provider.core.merge_record.state import State
from airflow_merge_provider.core.value_text import format_time
from airflow_merge_provider.explain.model.commits import CommitRef
from airflow_merge_provider.explain.model.files import (
    FileEvent,
    FileExplanation,
    explain_file,
    list_file_names,
)
from airflow_merge_provider.explain.reading import Folder

_LEDGER, _LINES = "ledger", ".jsonl"


def explain_merged_file(
    target: str, key: str, *, warehouse: str | None = None, version: int | None = None
) -> FileExplanation:
    """Return what the runs of a merge record did with a file.

    ``target`` is the state_path of the task, or its merged folder if both have the same parent. ``key`` is
    the name of a source file or an output, its URI, or the ID of a merge. ``version`` is the number of the
    last state whose ledger is read.

    :raises ConfigError: if the target has no location.
    :raises DataError: if the target is not a folder of a merge record, or none of its runs has seen the file.
    """
    dataset = resolve_dataset(target, warehouse, at="target")
    folders = require_state_folders(dataset)
    names: list[str] = []
    for folder in folders:
        ledger = [event for event in folder.read_events() if version is None or event.generation <= version]
        state = folder.read_state()[0] if version is None else State()
        explanation = explain_file(key, ledger, state)
        if explanation is not None:
            return explanation
        names += list_file_names(ledger, state)
    searched = ", ".join(folder.location for folder in folders)
    message = f"no run with the state_path {searched} has read or written a file {key!r}"
    raise DataError.from_problems([Problem("key", "unknown", message, suggest_name(key, names, "files"))])


class StateFolder(JournalReader):
    """The state_path of a merge record, whose names are listed once."""

    def __init__(self, location: str) -> None:
        self.folder = Folder(location)
        self.names = self.folder.list_names()
        super().__init__(self.folder.location, lambda: self.names, self._find_content)

    def has_state(self) -> bool:
        """Return whether the folder holds the state of a merge record."""
        return find_state_file(self.names) is not None

    def list_states(self) -> Iterator[CommitRef]:
        """Yield the states that still exist like the commits of a table, newest first."""
        for commit in self.list_commits():
            time = self.folder.get_modification_time(state_file(commit.version))
            yield CommitRef(commit.version, time, "MERGE RECORD", {**commit.state, "number": commit.version})

    def read_events(self) -> Iterator[FileEvent]:
        """Yield the lines of the ledger, oldest first."""
        for generation in self._list_ledgers():
            yield from self._read_events(generation)

    def read_newest_events(self) -> Iterator[FileEvent]:
        """Yield the lines of the ledger, newest first; older files are read only if they are needed."""
        for generation in reversed(self._list_ledgers()):
            yield from reversed(self._read_events(generation))

    def _find_content(self, name: str) -> bytes | None:
        is_missing = "/" not in name and name not in self.names
        with suppress(FileNotFoundError):
            return None if is_missing else self.folder.read_file(name)
        return None

    def _list_ledgers(self) -> list[int]:
        names = (name for name in self.folder.list_names(_LEDGER) if name.endswith(_LINES))
        return sorted(int(stem) for name in names if (stem := name.removesuffix(_LINES)).isdigit())

    def _read_events(self, generation: int) -> list[FileEvent]:
        return [FileEvent(generation, line) for line in self.read_ledger(generation) or ()]


def require_state_folders(dataset: Dataset) -> list[StateFolder]:
    """Return the state folders of a location.

    :raises ConfigError: if the dataset has no location.
    :raises DataError: if it is not a folder of a merge record.
    """
    folders = find_state_folders(dataset)
    if not folders:
        message = f"{dataset.uri} is neither the state_path nor the merged folder of a merge record"
        hint = "set target to the state_path of the task"
        raise DataError.from_problems([Problem("target", "foreign-target", message, hint)])
    return folders


def find_state_folders(dataset: Dataset) -> list[StateFolder]:
    """Return the state folder at a location, or those next to it whose ledger names an output below it.

    :raises ConfigError: if the dataset has no location.
    """
    if dataset.path is None:
        message = f"{dataset.uri} is a catalog table"
        raise ConfigError.from_problems(
            [Problem("target", "location", message, "set the location of a folder")]
        )
    folder = StateFolder(dataset.path)
    if folder.has_state():
        return [folder]
    parent = Folder(dataset.path.rpartition("/")[0])
    siblings = (StateFolder(f"{parent.location}/{name}") for name in parent.list_names())
    return [sibling for sibling in siblings if sibling.has_state() and _has_outputs(sibling, dataset.path)]


def _has_outputs(folder: StateFolder, location: str) -> bool:
    return any((event.line.uri or "").startswith(f"{location}/") for event in folder.read_events())


_MICROS_PER_SECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class BinReport:
    """The bins of one state_path: those that are open, oldest first, and the last that ended, newest first.

    ``returned`` is the number of files whose merge was withdrawn, and which wait for the next run.
    """

    location: str
    open_bins: tuple[Bin, ...]
    ended: tuple[FileEvent, ...]
    returned: int

    def as_object(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return {
            "state_path": self.location,
            "open_bins": [
                {
                    "bin": bin_.id,
                    "group": bin_.group[-1],
                    "since": format_time(read_instant(bin_.created_at)),
                    "files": len(bin_.sources),
                    "expected_files": bin_.expected,
                    "records": bin_.records,
                    "bytes": bin_.bytes,
                }
                for bin_ in self.open_bins
            ],
            "returned_files": self.returned,
            "ended": [{"state": event.generation, **event.line.as_json()} for event in self.ended],
        }


def list_bins(target: str, *, warehouse: str | None = None, limit: int = 20) -> list[BinReport]:
    """Return the bins of each state_path of a merge record.

    :param target: the state_path of the task, or its merged folder if both have the same parent.
    :param limit: the number of ended bins.
    :raises ConfigError: if the target has no location.
    :raises DataError: if the target is not a folder of a merge record, or one of its files is damaged.
    """
    folders = require_state_folders(resolve_dataset(target, warehouse, at="target"))
    return [_read_report(folder, limit) for folder in folders]


def read_instant(microseconds: int) -> datetime:
    """Return the time of a number of microseconds since 1970, in whole seconds of UTC."""
    return datetime.fromtimestamp(microseconds // _MICROS_PER_SECOND, tz=UTC)


def _read_report(folder: StateFolder, limit: int) -> BinReport:
    state, _ = folder.read_state()
    ended = tuple(islice(folder.read_newest_events(), limit))
    return BinReport(folder.location, state.bins, ended, len(state.returned))
