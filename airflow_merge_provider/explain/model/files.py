"""The explanation of a file of a merge record: its bin, the reason why the bin ended, and the sources.

Source: docs/explain.md, Files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from airflow_merge_provider.core.errors import format_count
from airflow_merge_provider.core.merge_record.bins import Bin
from airflow_merge_provider.core.merge_record.flowfile import FlowFile
from airflow_merge_provider.core.merge_record.journal import LedgerLine, LedgerSource
from airflow_merge_provider.core.merge_record.state import State
from airflow_merge_provider.core.value_text import EPOCH, escape_text, format_time

_SHOWN_SOURCES_MAX = 20


@dataclass(frozen=True, slots=True)
class FileEvent:
    """A line of the ledger about a file; ``generation`` is the number of its state."""

    generation: int
    line: LedgerLine

    def format_lines(self) -> Iterator[str]:
        """Yield what the run did with the file, and the sources of the bin."""
        line = self.line
        run = f", run {line.run.run_id}" if line.run else ""
        by = f"state {self.generation}, {_format_time(line.at)}{run}"
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
        since = _format_time(self.bin.created_at)
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
        yield f"{escape_text(self.key)}: {self._format_summary()}"
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

    def _format_summary(self) -> str:
        return "waiting" if self.waiting else self.events[-1].line.outcome


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


def _format_time(microseconds: int) -> str:
    return format_time((EPOCH + timedelta(microseconds=microseconds)).replace(microsecond=0))
