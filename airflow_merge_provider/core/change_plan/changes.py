"""The changes of a plan as text: counts, and example rows as a diff."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_merge_provider.core.change_plan.summary import (
    CHANGE_KINDS,
    ChangeExample,
    ChangeKind,
    ChangeSummary,
    describe_counts,
)
from airflow_merge_provider.core.errors import format_count
from airflow_merge_provider.core.value_text import escape_text, format_change, format_value

_SIGNS: Mapping[ChangeKind, str] = {
    "inserted": "+",
    "updated": "~",
    "deleted": "-",
    "kept": "=",
    "failed": "!",
}
# Limits for one row: the columns that are shown, and the characters of a value.
_CHANGED_COLUMNS_MAX = 12
_VALUE_MAX_CHARS = 80


def format_changes(summary: ChangeSummary) -> Iterator[str]:
    """Yield the changes as a text for people: the counts, then the examples of each kind.

    ``+`` is a new row, ``-`` a deleted one, ``~`` a row with other values and ``=`` one with another state;
    ``*`` is a change of something else than the rows of the target.
    In a merge record, ``+`` is a merged file, ``=`` an open bin and ``!`` a failed one.
    """
    if summary.count:
        yield f"{format_count(summary.count, 'row')} would change: {describe_counts(summary.kinds)}"
    else:
        yield "no row would change"
    for change in summary.other_changes:
        yield f"* {escape_text(change)}"
    if not summary.count:
        return
    if set(summary.reasons) != {kind for kind, count in summary.kinds.items() if count}:
        yield f"reasons: {describe_counts(summary.reasons)}"
    yield from format_examples(summary.kinds, summary.examples)


def format_examples(kinds: Mapping[ChangeKind, int], examples: Sequence[ChangeExample]) -> Iterator[str]:
    """Yield the examples of each kind, and the number of further rows.

    :param kinds: the number of rows of each kind.
    """
    for kind in CHANGE_KINDS:
        examples_of_kind = [example for example in examples if example.kind == kind]
        for example in examples_of_kind:
            yield from format_example(example)
        more = kinds.get(kind, 0) - len(examples_of_kind)
        if more > 0:
            yield f"{_SIGNS[kind]} {more} more {kind}"


def format_example(example: ChangeExample) -> Iterator[str]:
    """Yield one row: its columns, why it changes, and on further lines the columns that differ."""
    row = (example.after if example.before is None else example.before) or {}
    is_in_place = example.before is not None and example.after is not None
    changed = list(example.list_changed_columns()) if is_in_place else []
    changed_names = {name for name, *_ in changed}
    names = [name for name in row if name not in changed_names]
    cells = [f"{escape_text(name)} = {format_cell(row[name])}" for name in names[:_CHANGED_COLUMNS_MAX]]
    if len(names) > _CHANGED_COLUMNS_MAX:
        cells.append(f"and {format_count(len(names) - _CHANGED_COLUMNS_MAX, 'more column')}")
    why = f"{example.reason}: {example.detail}" if example.detail else example.reason
    yield f"{_SIGNS[example.kind]} {', '.join(cells)}{f'  [{escape_text(why)}]' if why else ''}"
    for name, value_before, value_after in changed:
        texts = format_change(value_before, value_after, _VALUE_MAX_CHARS)
        yield f"    {escape_text(name)}: {' -> '.join(texts)}"


def format_cell(value: Any) -> str:
    """Return a value in at most 80 characters."""
    text = format_value(value)
    return text if len(text) <= _VALUE_MAX_CHARS else f"{text[: _VALUE_MAX_CHARS - 1]}…"
