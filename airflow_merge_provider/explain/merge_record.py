"""Explain a file of a merge record: which bin and reason made an output, and what became of a source file.

Open bins and the bins that ended last are listed, too. Neither Spark nor Airflow is needed: the ledger and
the state in the state_path of the task are read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from airflow_merge_provider.core.dataset import Dataset, resolve_dataset
from airflow_merge_provider.core.errors import ConfigError, DataError, Problem, format_count, suggest_name
from airflow_merge_provider.core.merge_record.bins import Bin
from airflow_merge_provider.core.merge_record.flowfile import FlowFile
from airflow_merge_provider.core.merge_record.journal import (
    JournalReader,
    LedgerLine,
    LedgerSource,
    find_state_file,
    state_file,
)
from airflow_merge_provider.core.merge_record.state import State
from airflow_merge_provider.core.table_history import HistoryEntry
from airflow_merge_provider.core.value_text import escape_text, format_time
from airflow_merge_provider.explain.reading import Folder

_LEDGER, _LINES = "ledger", ".jsonl"
_MICROS_PER_SECOND = 1_000_000
_SHOWN_SOURCES_MAX = 20


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


@dataclass(frozen=True, slots=True)
class FileEvent:
    """A line of the ledger about a file; ``generation`` is the number of its state."""

    generation: int
    line: LedgerLine

    def format_lines(self) -> Iterator[str]:
        """Yield what the run did with the file, and the sources of the bin."""
        line = self.line
        run = f", run {line.run.run_id}" if line.run else ""
        by = f"state {self.generation}, {_format_instant(line.at)}{run}"
        yield f"{escape_text(self._describe_outcome())} by {escape_text(by)}"
        if line.uri:
            size = f"{format_count(line.records or 0, 'record')}, {format_count(line.bytes or 0, 'byte')}"
            yield f"  output {escape_text(line.uri)}: {size}"
        if line.bin:
            reason = f"{line.reason} ({line.code}){self._describe_bin()}"
            yield f"  {line.bin} ended: {escape_text(reason)}"
        if line.culprit:
            yield f"  the file that made it fail: {escape_text(line.culprit)}"
        yield f"  {format_count(len(line.sources), 'source')}:"
        for source in line.sources[:_SHOWN_SOURCES_MAX]:
            yield f"    {_describe_source(source)}"
        if len(line.sources) > _SHOWN_SOURCES_MAX:
            yield f"    … and {len(line.sources) - _SHOWN_SOURCES_MAX} more"

    def _describe_outcome(self) -> str:
        if self.line.outcome == "lost":
            return "changed or vanished while it waited, removed from its bin"
        return self.line.outcome

    def _describe_bin(self) -> str:
        """Return the values that the reason refers to."""
        parts = [f"{name} {value}" for name, value in (self.line.threshold or {}).items()]
        if self.line.bin_age_ms is not None:
            parts.append(f"age {timedelta(milliseconds=self.line.bin_age_ms)}")
        return f", {', '.join(parts)}" if parts else ""


@dataclass(frozen=True, slots=True)
class WaitingFile:
    """A source file that waits: its bin, or None if the next run adds it to a bin again."""

    source: FlowFile
    bin: Bin | None = None

    def format_lines(self) -> Iterator[str]:
        """Yield the bin in which the file waits."""
        if self.bin is None:
            yield f"waits for the next run, as its merge was withdrawn: {_describe_source(self.source)}"
            return
        sources = self.bin.sources
        content = f"{format_count(len(sources), 'source')}, {format_count(self.bin.records, 'record')}"
        group = next(reversed(self.bin.group), "")
        label = f" of the group {group}" if group else ""
        since = _format_instant(self.bin.created_at)
        yield f"waits in {self.bin.id}{escape_text(label)}, open since {since}: {content}"
        yield from (f"    {_describe_source(source)}" for source in sources[:_SHOWN_SOURCES_MAX])


@dataclass(frozen=True, slots=True)
class FileExplanation:
    """What became of a file: the lines of the ledger, oldest first, and the bins in which it waits."""

    key: str
    events: tuple[FileEvent, ...]
    waiting: tuple[WaitingFile, ...]

    def format_lines(self) -> Iterator[str]:
        """Yield the explanation as text."""
        yield f"{escape_text(self.key)}: {'waiting' if self.waiting else self.events[-1].line.outcome}"
        for event in self.events:
            yield from event.format_lines()
        for file in self.waiting:
            yield from file.format_lines()

    def as_object(self) -> dict[str, Any]:
        """Return the explanation as a JSON object."""
        return {
            "key": self.key,
            "events": [{"generation": event.generation, **event.line.as_json()} for event in self.events],
            "waiting": [
                {"source": file.source.as_json(), "bin": file.bin and file.bin.as_json()}
                for file in self.waiting
            ],
        }


def explain_file(key: str, ledger: Sequence[FileEvent], state: State) -> FileExplanation | None:
    """Return what the ledger and the state say about a file; None if neither names it.

    :param key: the name or the URI of a source file or an output, or the ID of a merge.
    :param ledger: the lines of the ledger, oldest first.
    """
    events = tuple(event for event in ledger if _is_about(event.line, key))
    waiting = [
        WaitingFile(source, bin_) for bin_ in state.bins for source in bin_.sources if _is_named(source, key)
    ]
    waiting += [WaitingFile(source) for source in state.returned if _is_named(source, key)]
    return FileExplanation(key, events, tuple(waiting)) if events or waiting else None


def list_file_names(ledger: Sequence[FileEvent], state: State) -> list[str]:
    """Return the names of all files that the ledger and the state name, for suggestions."""
    uris = [source.uri for event in ledger for source in event.line.sources]
    uris += [event.line.uri for event in ledger if event.line.uri]
    uris += [source.uri for source in state.sources]
    return list(dict.fromkeys(uri.rpartition("/")[2] for uri in uris))


def _is_about(line: LedgerLine, key: str) -> bool:
    if key == line.merge_id or _is_path(line.uri or "", key):
        return True
    return any(_is_named(source, key) for source in line.sources)


def _is_named(source: FlowFile | LedgerSource, key: str) -> bool:
    return key == source.uuid or _is_path(source.uri, key)


def _is_path(uri: str, key: str) -> bool:
    """Return whether a key is a URI, or the end of it from a slash on."""
    return bool(key) and (uri == key or uri.endswith(f"/{key.lstrip('/')}"))


def _describe_source(source: FlowFile | LedgerSource) -> str:
    part = f", part {source.part}" if source.part else ""
    records = "" if source.records is None else f", {format_count(source.records, 'record')}"
    return escape_text(f"{source.uri}{part}{records}")


class StateFolder(JournalReader):
    """The state_path of a merge record, whose names are listed once."""

    def __init__(self, location: str) -> None:
        self.folder = Folder(location)
        self.names = self.folder.list_names()
        super().__init__(self.folder.location, lambda: self.names, self._find_content)

    def list_states(self) -> Iterator[HistoryEntry]:
        """Yield the states that still exist like the commits of a table, newest first."""
        for commit in self.list_commits():
            time = self.folder.get_modification_time(state_file(commit.version))
            metadata = json.dumps({**commit.state, "number": commit.version})
            milliseconds = int(time.timestamp() * 1000)
            yield HistoryEntry(commit.version, "MERGE RECORD", user_metadata=metadata, timestamp=milliseconds)

    def read_events(self, *, newest_first: bool = False) -> Iterator[FileEvent]:
        """Yield the lines of the ledger, oldest or newest first; its files are read as they are needed."""
        names = (name for name in self.folder.list_names(_LEDGER) if name.endswith(_LINES))
        stems = (name.removesuffix(_LINES) for name in names)
        for generation in sorted((int(stem) for stem in stems if stem.isdigit()), reverse=newest_first):
            events = [FileEvent(generation, line) for line in self.read_ledger(generation) or ()]
            yield from reversed(events) if newest_first else events

    def _find_content(self, name: str) -> bytes | None:
        if "/" in name or name in self.names:
            with suppress(FileNotFoundError):
                return self.folder.read_file(name)
        return None


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
    if find_state_file(folder.names):
        return [folder]
    parent = Folder(dataset.path.rpartition("/")[0])
    siblings = (StateFolder(f"{parent.location}/{name}") for name in parent.list_names())
    prefix = f"{dataset.path}/"
    return [
        sibling
        for sibling in siblings
        if find_state_file(sibling.names)
        and any((event.line.uri or "").startswith(prefix) for event in sibling.read_events())
    ]


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
                    "since": _format_instant(bin_.created_at),
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


def _format_instant(microseconds: int) -> str:
    return format_time(read_instant(microseconds))


def _read_report(folder: StateFolder, limit: int) -> BinReport:
    state, _ = folder.read_state()
    ended = tuple(islice(folder.read_events(newest_first=True), limit))
    return BinReport(folder.location, state.bins, ended, len(state.returned))
