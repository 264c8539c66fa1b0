"""The timeline of a key: its rows after each commit that changed them, and what the commit did.

Source: docs/command_line.md, timeline.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_merge_provider.core.errors import format_count
from airflow_merge_provider.core.value_text import Row, format_row, format_value, to_json_value
from airflow_merge_provider.explain.model.commits import KeyStates
from airflow_merge_provider.explain.model.history import HistoryColumns, HistoryEvent, trace_history
from airflow_merge_provider.explain.model.rows import RowChange, trace_changes


@dataclass(frozen=True, slots=True)
class VersionEvent:
    """What a commit did to one version of a history; ``valid_from`` is the start of the version."""

    valid_from: Any
    event: HistoryEvent

    def format_text(self) -> str:
        """Return the event as text."""
        repair = ", a repair" if self.event.is_repair else ""
        return f"from {format_value(self.valid_from)}: {self.event.kind}{self.event.detail}{repair}"


@dataclass(frozen=True, slots=True)
class TimelineState:
    """The rows of a key after a commit, and the change that led to them.

    ``events`` are those of the versions of the key if the table is a history.
    """

    change: RowChange
    rows: tuple[Row, ...]
    events: tuple[VersionEvent, ...] = ()

    def format_lines(self, internal_columns: Collection[str] = ()) -> Iterator[str]:
        """Yield the commit, and what it changed."""
        if not self.events:
            yield from self.change.format_lines(internal_columns)
            return
        yield f"  {self.change.commit.format_text()}: {format_count(len(self.rows), 'version')}"
        yield from (f"    {event.format_text()}" for event in self.events)

    def as_object(self) -> dict[str, Any]:
        """Return the state as a JSON object."""
        events = [
            {
                "valid_from": to_json_value(event.valid_from),
                "kind": event.event.kind,
                "detail": event.event.detail.strip(),
                "repair": event.event.is_repair,
            }
            for event in self.events
        ]
        return {**self.change.as_object(), "rows": to_json_value(self.rows), "events": events}


@dataclass(frozen=True, slots=True)
class Timeline:
    """The states of a key, oldest first; ``missing`` states why older ones are unknown."""

    key: Row
    states: tuple[TimelineState, ...]
    missing: str = ""
    internal_columns: tuple[str, ...] = ()

    def format_lines(self) -> Iterator[str]:
        """Yield the timeline as text."""
        yield f"{format_row(self.key)}: {format_count(len(self.states), 'state')}"
        if self.missing:
            yield f"older states are unknown: {self.missing}"
        for state in self.states:
            yield from state.format_lines(self.internal_columns)

    def as_object(self) -> dict[str, Any]:
        """Return the timeline as a JSON object."""
        return {
            "key": to_json_value(self.key),
            "states": [state.as_object() for state in self.states],
            "missing": self.missing or None,
        }


def build_timeline(
    key: Row,
    states: KeyStates,
    columns: HistoryColumns | None = None,
    internal_columns: tuple[str, ...] = (),
) -> Timeline:
    """Return the timeline of a key; commits that wrote the same rows again are left out.

    :param columns: the columns of a history; None for another table.
    :param internal_columns: columns that the text leaves out.
    """
    rows = {state.commit.version: state.rows for state in states.states}
    events = _list_events(states, columns) if columns else {}
    entries = (
        TimelineState(change, rows[change.commit.version], tuple(events.get(change.commit.version, ())))
        for change in trace_changes(states)
    )
    return Timeline(key, tuple(entries), states.missing, internal_columns)


def _list_events(states: KeyStates, columns: HistoryColumns) -> Mapping[int, Sequence[VersionEvent]]:
    """Return the events of all versions of a key by the version of the table that they led to."""
    events: dict[int, list[VersionEvent]] = {}
    for version in trace_history(states, columns):
        for event in version.events:
            entry = VersionEvent(version.row[columns.valid_from], event)
            events.setdefault(event.commit.version, []).append(entry)
    return events
