"""The explanation of a row of an upsert or a delete-insert: its changes, and the source rows behind the last.

Source: docs/explain.md, Rows of loads.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from math import isfinite
from typing import Any, Literal

from airflow_merge_provider.core.change_plan.shown_rows import select_columns
from airflow_merge_provider.core.errors import format_count
from airflow_merge_provider.core.value_text import (
    Row,
    escape_text,
    format_change,
    format_row,
    format_value,
    to_json_value,
)
from airflow_merge_provider.explain.model.commits import CommitRef, KeyStates

ChangeKind = Literal["first known", "inserted", "updated", "deleted"]
_ROWS_MAX = 20


@dataclass(frozen=True, slots=True)
class RowChange:
    """A change of the rows of a key: the commit, the rows that it removed, and those that it added."""

    commit: CommitRef
    kind: ChangeKind
    removed: tuple[Row, ...]
    added: tuple[Row, ...]

    def format_lines(self, internal_columns: Collection[str] = ()) -> Iterator[str]:
        """Yield the change as text: changed columns if one row replaced another one, otherwise whole rows."""
        yield f"  {self.commit.format_text()}: {self.kind}"
        shown = select_columns([*self.removed, *self.added], internal_columns)
        removed, added = shown[: len(self.removed)], shown[len(self.removed) :]
        if len(removed) == len(added) == 1:
            before, after = removed[0], added[0]
            for name in dict.fromkeys((*before, *after)):
                if not is_equal(before.get(name), after.get(name)):
                    texts = format_change(before.get(name), after.get(name))
                    yield f"    {escape_text(name)}: {' → '.join(texts)}"
            return
        yield from (f"    - {format_row(row)}" for row in removed[:_ROWS_MAX])
        yield from (f"    + {format_row(row)}" for row in added[:_ROWS_MAX])

    def as_object(self) -> dict[str, Any]:
        """Return the change as a JSON object."""
        return {
            "kind": self.kind,
            "commit": self.commit.as_object(),
            "removed": to_json_value(self.removed),
            "added": to_json_value(self.added),
        }


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A source row of the key, and what the run did with it."""

    values: Row
    effect: str


@dataclass(frozen=True, slots=True)
class SourceRows:
    """The source rows of a key as a run read them.

    ``reason`` states why the key has no row, if that is known. ``missing`` states why the rows are unknown.
    """

    source: str = ""
    version: int | None = None
    rows: tuple[SourceRow, ...] = ()
    reason: str = ""
    missing: str = ""

    def format_lines(self) -> Iterator[str]:
        """Yield the rows as text."""
        if self.missing:
            yield f"source rows: {self.missing}"
            return
        count = format_count(len(self.rows), "row")
        yield f"source {escape_text(self.source)} version {self.version}: {count} of this key"
        yield from (f"  {row.effect}: {format_row(row.values)}" for row in self.rows[:_ROWS_MAX])
        if self.reason:
            yield f"  {self.reason}"

    def as_object(self) -> dict[str, Any]:
        """Return the rows as a JSON object."""
        rows = [{"values": to_json_value(row.values), "effect": row.effect} for row in self.rows]
        return {
            "source": self.source,
            "version": self.version,
            "rows": rows,
            "reason": self.reason or None,
            "missing": self.missing or None,
        }


@dataclass(frozen=True, slots=True)
class RowExplanation:
    """The rows of a key, their changes with the oldest first, and the source rows of the last change."""

    key: Row
    rows: tuple[Row, ...]
    changes: tuple[RowChange, ...]
    source: SourceRows = field(default_factory=SourceRows)
    missing: str = ""
    internal_columns: tuple[str, ...] = ()

    def as_object(self) -> dict[str, Any]:
        """Return the explanation as a JSON object."""
        return {
            "key": to_json_value(self.key),
            "rows": to_json_value(self.rows),
            "changes": [change.as_object() for change in self.changes],
            "source": self.source.as_object(),
            "missing": self.missing or None,
        }

    def format_lines(self) -> Iterator[str]:
        """Yield the explanation as text: the rows, the source rows, and the changes with the newest first."""
        yield f"{format_row(self.key)}: {self._format_summary()}"
        for row in select_columns(self.rows[:_ROWS_MAX], self.internal_columns):
            yield f"  {format_row({name: value for name, value in row.items() if name not in self.key})}"
        yield from self.source.format_lines()
        if self.changes:
            yield "changes, newest first:"
            for change in reversed(self.changes):
                yield from change.format_lines(self.internal_columns)
        if self.missing:
            yield f"older changes are unknown: {self.missing}"

    def _format_summary(self) -> str:
        if not self.changes:
            return "no row in any version"
        last = self.changes[-1]
        if last.kind == "deleted":
            return f"no row, deleted by {last.commit.format_text()}"
        count = "a row" if len(self.rows) == 1 else format_count(len(self.rows), "row")
        verb = "written in or before" if last.kind == "first known" else "last written by"
        return f"{count}, {verb} {last.commit.format_text()}"


def trace_changes(states: KeyStates) -> tuple[RowChange, ...]:
    """Return the commits that changed the rows of a key, oldest first.

    A commit that wrote the same values again is no change. If older commits are unknown, the first change
    holds the rows that the oldest readable version has.
    """
    changes: list[RowChange] = []
    rows_before: tuple[Row, ...] = ()
    for position, state in enumerate(states.states):
        removed, added = _subtract_rows(rows_before, state.rows), _subtract_rows(state.rows, rows_before)
        if removed or added:
            is_oldest = position == 0 and bool(states.missing)
            kind = "first known" if is_oldest else _name_change(rows_before, state.rows)
            changes.append(RowChange(state.commit, kind, removed, added))
        rows_before = state.rows
    return tuple(changes)


def explain_source_rows(
    config: Mapping[str, Any], stored: Sequence[Row], rows: Sequence[Row]
) -> tuple[SourceRow, ...]:
    """Return the source rows of a key with what the run did with each.

    :param config: the configuration of the load, as its commit records it.
    :param stored: the rows of the key after the commit.
    """
    # Neither lists that are in tables of their own, nor the columns that refer to them.
    columns = {name.casefold() for row in stored for name in row} & {
        name.casefold() for row in rows for name in row
    }
    stored_contents = Counter(write_content(row, columns) for row in stored)
    explained = []
    for row in rows:
        content = write_content(row, columns)
        is_written = stored_contents[content] > 0
        stored_contents[content] -= is_written
        explained.append(SourceRow(row, "written" if is_written else _explain_loss(config, stored, row)))
    return tuple(explained)


def explain_absence(config: Mapping[str, Any], source: SourceRows) -> str:
    """Return why a load deleted or never wrote a key whose source has no row of it; empty if unknown."""
    if source.missing or source.rows:
        return ""
    if config.get("destination_scope") or config.get("variant") == "cdc":
        option = "destination_scope" if config.get("destination_scope") else "variant 'cdc'"
        return f"the source has no row of this key, and {option} deletes such rows"
    return ""


def is_equal(first: Any, second: Any) -> bool:
    """Return whether two values are equal, whatever their types; NULL equals NULL, and NaN equals NaN.

    A date equals the beginning of its day, and a time without a zone that in UTC, as a load casts it.
    """
    return _write_json(first) == _write_json(second)


def _explain_loss(config: Mapping[str, Any], stored: Sequence[Row], row: Row) -> str:
    """Return why the run did not write a source row."""
    flag = config.get("hard_delete")
    flag_value = _find_value(row, flag) if flag else None
    if flag_value is not None and flag_value is not False:
        return f"deletes the key ({flag} = {format_value(flag_value)})"
    if not stored:
        conditions = [
            f"{name}: {config[name]}" for name in ("source_filter", "hard_delete_when") if config.get(name)
        ]
        return f"not written ({', '.join(conditions)})" if conditions else "not written"
    if config.get("variant") == "insert-only":
        return "not written (insert-only: the key already had a row)"
    names = config.get("sequence_by") or list(config.get("dedup_sort") or {})
    for name in names:
        value, stored_value = _find_value(row, name), _find_value(stored[0], name)
        if not is_equal(value, stored_value):
            option = "sequence_by" if config.get("sequence_by") else "dedup_sort"
            return f"lost ({option}: {name} = {format_value(value)}, chosen {format_value(stored_value)})"
    if names:
        return "lost (an equal row, or a row that arrived first, was chosen)"
    filtered = config.get("source_filter")
    return f"not written (source_filter: {filtered})" if filtered else "not written, another row was chosen"


def _name_change(before: Sequence[Row], after: Sequence[Row]) -> ChangeKind:
    if not before:
        return "inserted"
    return "updated" if after else "deleted"


def _subtract_rows(rows: Sequence[Row], other_rows: Sequence[Row]) -> tuple[Row, ...]:
    """Return the rows that the other rows do not include; equal rows count as often as they occur."""
    counts = Counter(write_content(row) for row in other_rows)
    remaining = []
    for row in rows:
        content = write_content(row)
        if counts[content] > 0:
            counts[content] -= 1
        else:
            remaining.append(row)
    return tuple(remaining)


def write_content(row: Row, columns: set[str] | None = None) -> str:
    """Return a text that rows with equal values share; NULL is like a column that is added later."""
    content = {
        name.casefold(): value
        for name, value in row.items()
        if value is not None and (columns is None or name.casefold() in columns)
    }
    return _write_json(content)


def _write_json(value: Any) -> str:
    return json.dumps(to_json_value(_normalize_value(value)), sort_keys=True)


def _normalize_value(value: Any) -> Any:
    """Return a value in a form that it shares with equal values of other types, but not with a text."""
    if isinstance(value, Mapping):
        return {name: _normalize_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_normalize_value, value))
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, datetime):
        value = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    elif isinstance(value, date):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    elif isinstance(value, int | float | Decimal) and isfinite(value):
        value = Fraction(value)
    return f"\0{value if isinstance(value, Fraction) else to_json_value(value)}"


def _find_value(row: Row, name: str) -> Any:
    return next((value for column, value in row.items() if column.casefold() == name.casefold()), None)
