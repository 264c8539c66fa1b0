"""The explanation of an SCD2 history: which loads opened, closed, moved and repaired each version of a key.

Source: docs/explain.md, Histories.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from airflow_merge_provider.core.errors import format_count
from airflow_merge_provider.core.value_text import (
    Row,
    escape_text,
    format_row,
    format_value,
    to_json_value,
)
from airflow_merge_provider.explain.model.commits import CommitRef, KeyStates
from airflow_merge_provider.explain.model.rows import SourceRows, is_equal

EventKind = Literal["first known", "opened", "closed", "reopened", "moved", "updated", "removed"]


@dataclass(frozen=True, slots=True)
class HistoryColumns:
    """The columns of a history, and the end of versions that are valid (NULL by default)."""

    key: tuple[str, ...]
    valid_from: str
    valid_to: str
    hash: str
    active: datetime | None = None
    deleted: str | None = None
    current: str | None = None

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], hash_column: str) -> HistoryColumns:
        """Build the columns from the settings that a history stores."""
        valid_from, valid_to = settings["validity_column_names"]
        active = settings["active_record_timestamp"]
        return cls(
            tuple(settings["natural_key"]),
            valid_from,
            valid_to,
            hash_column,
            datetime.fromisoformat(active) if active else None,
            settings.get("deleted_column"),
            settings.get("current_column"),
        )

    def is_active(self, row: Row) -> bool:
        """Return whether a version is currently valid."""
        return row[self.valid_to] is None or row[self.valid_to] == self.active

    def list_values(self, row: Row) -> Row:
        """Return the columns of a row that come from its source and are not in the key."""
        hidden = {self.valid_from, self.valid_to, self.hash, self.current, *self.key}
        return {name: value for name, value in row.items() if name not in hidden}


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """What a commit did to a version; ``is_repair`` is True if a later version existed already."""

    commit: CommitRef
    kind: EventKind
    detail: str = ""
    is_repair: bool = False

    def format_text(self) -> str:
        """Return the event as text."""
        repair = ", a repair: later versions existed" if self.is_repair else ""
        preposition = "in" if self.kind == "first known" else "by"
        return f"{self.kind}{self.detail} {preposition} {self.commit.format_text()}{repair}"

    def as_object(self) -> dict[str, Any]:
        """Return the event as a JSON object."""
        return {
            "kind": self.kind,
            "detail": self.detail.strip(),
            "repair": self.is_repair,
            "commit": self.commit.as_object(),
        }


@dataclass(slots=True)
class HistoryVersion:
    """A version of a key with its events, oldest first; ``row`` is its last content."""

    row: Row
    is_stored: bool = True
    events: list[HistoryEvent] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class HistoryExplanation:
    """The versions of a key in order of their validity, including those that loads removed."""

    key: Row
    columns: HistoryColumns
    versions: tuple[HistoryVersion, ...]
    source: SourceRows = field(default_factory=SourceRows)
    missing: str = ""

    def format_lines(self) -> Iterator[str]:
        """Yield the explanation as text: each version with its events."""
        stored = sum(version.is_stored for version in self.versions)
        yield f"{format_row(self.key)}: {format_count(stored, 'version')}"
        if not self.versions:
            yield from self.source.format_lines()
        for version in self.versions:
            yield f"{self._format_interval(version.row)}{'' if version.is_stored else ' (removed)'}"
            yield f"  {format_row(self._list_values(version.row))}"
            yield from (f"  {event.format_text()}" for event in version.events)
        if self.missing:
            yield f"older changes are unknown: {self.missing}"

    def as_object(self) -> dict[str, Any]:
        """Return the explanation as a JSON object."""
        versions = [
            {
                "valid_from": to_json_value(version.row[self.columns.valid_from]),
                "valid_to": to_json_value(version.row[self.columns.valid_to]),
                "active": self.columns.is_active(version.row) and version.is_stored,
                "stored": version.is_stored,
                "values": to_json_value(self._list_values(version.row)),
                "events": [event.as_object() for event in version.events],
            }
            for version in self.versions
        ]
        return {"key": to_json_value(self.key), "versions": versions, "missing": self.missing or None}

    def _list_values(self, row: Row) -> Row:
        values = self.columns.list_values(row)
        return {name: value for name, value in values.items() if name not in self.key}

    def _format_interval(self, row: Row) -> str:
        begin = format_value(row[self.columns.valid_from])
        if self.columns.is_active(row):
            return f"{begin} until now"
        return f"{begin} until {format_value(row[self.columns.valid_to])}"


def trace_history(states: KeyStates, columns: HistoryColumns) -> tuple[HistoryVersion, ...]:
    """Return the versions of a key with what each commit did to them, in order of their validity."""
    versions: list[HistoryVersion] = []
    for position, state in enumerate(states.states):
        is_oldest = position == 0 and bool(states.missing)
        stored = [version for version in versions if version.is_stored]
        pairs, added, removed = _pair_versions(stored, state.rows, columns)
        newest = max((_rank_start(version.row, columns) for version in stored), default=None)
        for version, row in pairs:
            is_late = _rank_start(version.row, columns) != newest
            version.events += _describe_change(state.commit, version.row, row, columns, is_late=is_late)
            version.row = row
        for version in removed:
            version.is_stored = False
            is_repair = _rank_start(version.row, columns) != newest
            version.events.append(HistoryEvent(state.commit, "removed", is_repair=is_repair))
        for row in added:
            is_late = newest is not None and _rank_start(row, columns) < newest
            kind: EventKind = "first known" if is_oldest else "opened"
            detail = (
                "" if is_oldest or columns.is_active(row) else f" with its end {_format_end(row, columns)}"
            )
            versions.append(HistoryVersion(row, events=[HistoryEvent(state.commit, kind, detail, is_late)]))
    return tuple(sorted(versions, key=lambda version: _rank_start(version.row, columns)))


def _pair_versions(
    stored: Sequence[HistoryVersion], rows: Sequence[Row], columns: HistoryColumns
) -> tuple[list[tuple[HistoryVersion, Row]], list[Row], list[HistoryVersion]]:
    """Pair stored versions with rows: by start and content, then by start, then moved ones by content."""
    criteria = ((columns.valid_from, columns.hash), (columns.valid_from,), (columns.hash, columns.valid_to))
    versions, remaining = list(stored), list(rows)
    pairs: list[tuple[HistoryVersion, Row]] = []
    for names in criteria:
        for version in list(versions):
            row = next((row for row in remaining if _has_same(version.row, row, names)), None)
            if row is not None:
                versions.remove(version)
                remaining.remove(row)
                pairs.append((version, row))
    return pairs, remaining, versions


def _describe_change(
    commit: CommitRef, before: Row, after: Row, columns: HistoryColumns, *, is_late: bool
) -> Iterator[HistoryEvent]:
    """Yield what a commit did to a version: its start, its end, and its values."""
    if before[columns.valid_from] != after[columns.valid_from]:
        begins = f"{format_value(before[columns.valid_from])} to {format_value(after[columns.valid_from])}"
        yield HistoryEvent(commit, "moved", f" from the start {begins}", is_repair=True)
    if before[columns.valid_to] != after[columns.valid_to]:
        if columns.is_active(before):
            yield HistoryEvent(commit, "closed", f" at {_format_end(after, columns)}", is_repair=is_late)
        elif columns.is_active(after):
            yield HistoryEvent(
                commit, "reopened", f", it ended {_format_end(before, columns)}", is_repair=is_late
            )
        else:
            ends = f"{_format_end(before, columns)} to {_format_end(after, columns)}"
            yield HistoryEvent(commit, "moved", f" from the end {ends}", is_repair=True)
    changes = [
        f"{escape_text(name)} {format_value(before.get(name))} → {format_value(value)}"
        for name, value in columns.list_values(after).items()
        if not is_equal(before.get(name), value)
    ]
    if changes:
        yield HistoryEvent(commit, "updated", f" ({', '.join(changes)})")


def _has_same(first: Row, second: Row, names: Sequence[str]) -> bool:
    return all(first.get(name) == second.get(name) for name in names)


def _rank_start(row: Row, columns: HistoryColumns) -> tuple[bool, Any]:
    """Return a value by which versions are ordered; a version without a start comes first."""
    start = row[columns.valid_from]
    return start is not None, 0 if start is None else start


def _format_end(row: Row, columns: HistoryColumns) -> str:
    return format_value(row[columns.valid_to])
