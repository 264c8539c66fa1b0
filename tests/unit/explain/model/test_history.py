"""Tests of what loads did to the versions of a key."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from airflow_merge_provider.explain.model.history import (
    HistoryColumns,
    HistoryExplanation,
    trace_history,
)
from tests.unit.explain.model.test_rows import build_states

COLUMNS = HistoryColumns(("id",), "valid_from", "valid_to", "_row_hash", current="is_current")


def build_day(day: int | None) -> datetime | None:
    return None if day is None else datetime(2024, 1, day, tzinfo=UTC)


def build_version(begin: int, end: int | None, city: str, note: str = "") -> dict[str, Any]:
    return {
        "id": 7, "city": city, "note": note, "valid_from": build_day(begin), "valid_to": build_day(end),
        "_row_hash": hash(city), "is_current": end is None,
    }  # fmt: skip


def list_events(*states: Sequence[Any], missing: str = "") -> list[tuple[Any, ...]]:
    """Return each version: its first day, its city, whether it is stored, and the events."""
    versions = trace_history(build_states(*states, missing=missing), COLUMNS)
    return [
        (
            version.row["valid_from"].day,
            version.row["city"],
            version.is_stored,
            [(event.commit.version, event.kind, event.is_repair) for event in version.events],
        )
        for version in versions
    ]


def test_versions_are_opened_and_closed_by_their_loads() -> None:
    """A new version is opened by the load that closes the one before; a later deletion closes it."""
    events = list_events(
        [build_version(1, None, "Oslo")],
        [build_version(1, 5, "Oslo"), build_version(5, None, "Bergen")],
        [build_version(1, 5, "Oslo"), build_version(5, 9, "Bergen")],
    )

    assert events == [
        (1, "Oslo", True, [(0, "opened", False), (1, "closed", False)]),
        (5, "Bergen", True, [(1, "opened", False), (2, "closed", False)]),
    ]


def test_late_loads_repair() -> None:
    """A late load inserts a version between others, moves ends and starts, and reopens or removes some."""
    oslo, bergen = build_version(1, 9, "Oslo"), build_version(9, None, "Bergen")

    inserted = list_events(
        [oslo, bergen], [build_version(1, 4, "Oslo"), build_version(4, 9, "Hamar"), bergen]
    )
    moved = list_events([oslo, bergen], [build_version(1, 6, "Oslo"), build_version(6, None, "Bergen")])
    reopened = list_events([oslo, bergen], [build_version(1, None, "Oslo")])

    assert inserted[0][3] == [(0, "opened", False), (1, "moved", True)]
    assert inserted[1] == (4, "Hamar", True, [(1, "opened", True)])
    assert moved[1] == (6, "Bergen", True, [(0, "opened", False), (1, "moved", True)])
    assert reopened[0][3] == [(0, "opened", False), (1, "reopened", True)]
    assert reopened[1] == (9, "Bergen", False, [(0, "opened", False), (1, "removed", False)])


def test_overwritten_values_and_unknown_beginnings_are_named() -> None:
    """Overwritten values are events; if old versions cannot be read, the first state has no load."""
    first, second = build_version(1, None, "Oslo", "a"), build_version(1, None, "Oslo", "b")
    states = build_states([first], [second], missing="version 3 can no longer be read")
    explanation = HistoryExplanation(
        {"id": 7}, COLUMNS, trace_history(states, COLUMNS), missing=states.missing
    )

    assert list(explanation.format_lines()) == [
        "id = 7: 1 version",
        "2024-01-01T00:00:00Z until now",
        '  city = "Oslo", note = "b"',
        "  first known in version 0, 2026-11-24T10:00:00Z, run r0",
        '  updated (note "a" → "b") by version 1, 2026-11-24T10:00:00Z, run r1',
        "older changes are unknown: version 3 can no longer be read",
    ]
