"""Oracle of the merge loads, slow and simple: rows as dictionaries, histories as lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = dict[str, Any]
Version = tuple[Any, Any, Any]


def build_history(states: Mapping[Any, Any]) -> list[Version]:
    """Return the versions (from, to, state) of one key with known states at some times; None is no row."""
    versions: list[Version] = []
    begun, current = None, None
    for at in sorted(states):
        if states[at] == current:
            continue
        if current is not None:
            versions.append((begun, at, current))
        begun, current = at, states[at]
    if current is not None:
        versions.append((begun, None, current))
    return versions


def fold_snapshots(loads: Iterable[tuple[Any, Mapping[Any, Any]]]) -> dict[Any, list[Version]]:
    """Return the history of every key.

    Snapshots count by their time, and of each time the last one loaded.
    """
    newest = dict(loads)
    keys = {key for rows in newest.values() for key in rows}
    return {key: build_history({at: rows.get(key) for at, rows in newest.items()}) for key in keys}


def fold_scoped_snapshots(
    loads: Iterable[tuple[Any, Mapping[Any, tuple[Any, ...]]]],
) -> dict[Any, list[Version]]:
    """Return the history of every key if a snapshot deletes only in the groups of its rows.

    The first value of a state is its group.
    """
    newest = dict(loads)
    now: dict[Any, Any] = {}
    states: dict[Any, dict[Any, Any]] = {}
    for at in sorted(newest):
        groups = {state[0] for state in newest[at].values()}
        absent = [key for key, state in now.items() if state[0] in groups and key not in newest[at]]
        for key in absent:
            del now[key]
            states[key][at] = None
        for key, state in newest[at].items():
            now[key] = state
            states.setdefault(key, {})[at] = state
    return {key: build_history(key_states) for key, key_states in states.items()}


def fill_gaps(versions: Iterable[Version]) -> list[Version]:
    """Fill times without a state by versions with the last state, marked as deleted."""
    filled_versions: list[Version] = []
    for begin, end, state in versions:
        if filled_versions and filled_versions[-1][1] != begin:
            filled_versions.append((filled_versions[-1][1], begin, (*filled_versions[-1][2][:-1], True)))
        filled_versions.append((begin, end, (*state, False)))
    if filled_versions and filled_versions[-1][1] is not None:
        filled_versions.append((filled_versions[-1][1], None, (*filled_versions[-1][2][:-1], True)))
    return filled_versions


def fold_changes(loads: Iterable[Iterable[tuple[Any, Any, Any]]]) -> dict[Any, list[Version]]:
    """Return the history of every key from events (key, time, state); the last event of a time counts."""
    states: dict[Any, dict[Any, Any]] = {}
    for events in loads:
        for key, at, state in events:
            states.setdefault(key, {})[at] = state
    return {key: build_history(key_states) for key, key_states in states.items()}


def upsert_rows(
    stored: Sequence[Row], load: Sequence[Row], *, key: str, variant: str, flag: str
) -> list[Row]:
    """Fold a load with unique keys into rows with unique keys."""
    rows = {row[key]: row for row in stored}
    loaded = {row[key]: row for row in load}
    if variant == "cdc":
        rows = {value: row for value, row in rows.items() if value in loaded}
    for value, row in loaded.items():
        if row[flag]:
            if variant != "insert-only":
                rows.pop(value, None)
        elif variant != "insert-only" or value not in rows:
            rows[value] = row
    return list(rows.values())


def delete_insert(
    stored: Sequence[Row],
    load: Sequence[Row],
    *,
    key: str | None,
    group: str | None,
    flag: str,
    sort: str | None,
) -> list[Row]:
    """Replace rows with a loaded key or group by the load, with one row of each key."""
    chosen = list(load)
    if key is not None:
        ranked = sorted(load, key=lambda row: (row[sort] is None, -(row[sort] or 0)))
        first: dict[Any, Row] = {}
        for row in ranked:
            first.setdefault(row[key], row)
        chosen = list(first.values())
    keys, groups = ({row[name] for row in load} if name else set() for name in (key, group))
    kept_rows = [
        row for row in stored if not ((key and row[key] in keys) or (group and row[group] in groups))
    ]
    return [*kept_rows, *(row for row in chosen if not row[flag])]
