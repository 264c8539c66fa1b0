"""Tests of the changes of a key's rows, and of what a run did with the source rows of the key."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from airflow_merge_provider.core.value_text import Float32
from airflow_merge_provider.explain.model.commits import CommitRef, KeyState, KeyStates
from airflow_merge_provider.explain.model.rows import (
    RowExplanation,
    SourceRows,
    explain_absence,
    explain_source_rows,
    is_equal,
    trace_changes,
)
from tests.key_values import VALUES as KEYS, convert_values, is_same_key

Row = Mapping[str, Any]


def build_states(*rows: Sequence[Row], missing: str = "") -> KeyStates:
    """Return the rows of a key after the commits of a run each."""
    at = datetime(2026, 11, 24, 10, tzinfo=UTC)
    states = (
        KeyState(
            CommitRef(version, at, "MERGE", {"number": version, "token": {"run_id": f"r{version}"}}),
            tuple(rows),
        )
        for version, rows in enumerate(rows)
    )
    return KeyStates(tuple(states), missing)


def test_only_commits_that_changed_the_key_are_changes() -> None:
    """Commits of other keys, equal rows and columns that were added later are no changes."""
    row, updated = {"id": 1, "v": 1}, {"id": 1, "v": 2, "extra": "x"}
    states = build_states([], [row], [row], [{**row, "extra": None}], [updated], [], [row])

    changes = [(change.commit.version, change.kind) for change in trace_changes(states)]

    assert changes == [(1, "inserted"), (4, "updated"), (5, "deleted"), (6, "inserted")]


def test_equal_rows_are_counted() -> None:
    """A key may have equal rows, as loads without deduplication keep them: one more is a change."""
    row = {"id": 1}
    (first, second) = trace_changes(build_states([row], [row, row]))

    assert (first.added, second.removed, second.added) == ((row,), (), (row,))


def test_the_oldest_readable_version_is_no_insert() -> None:
    """If older versions cannot be read, the text says from when the row is known and why."""
    states = build_states([{"id": 1}], missing="the log no longer describes the commits before version 0")
    explanation = RowExplanation({"id": 1}, states.newest.rows, trace_changes(states), missing=states.missing)

    lines = list(explanation.format_lines())

    assert lines[0] == "id = 1: a row, written in or before version 0, 2026-11-24T10:00:00Z, run r0"
    assert lines[-1] == "older changes are unknown: the log no longer describes the commits before version 0"


@pytest.mark.parametrize(
    ("config", "row", "effect"),
    [
        ({}, {"id": 1, "v": 5, "seq": 2}, "written"),
        ({"sequence_by": ["seq"]}, {"id": 1, "v": 4, "seq": 1}, "lost (sequence_by: seq = 1, chosen 2)"),
        ({"dedup_sort": {"SEQ": "asc"}}, {"id": 1, "v": 4, "seq": 3}, "lost (dedup_sort: SEQ = 3, chosen 2)"),
        (
            {"dedup_sort": {"seq": "asc"}},
            {"id": 1, "v": 4, "seq": 2},
            "lost (an equal row, or a row that arrived first, was chosen)",
        ),
        ({"hard_delete": "gone"}, {"id": 1, "v": 4, "gone": 0}, "deletes the key (gone = 0)"),
        ({"hard_delete": "gone"}, {"id": 1, "v": 4, "gone": False}, "not written, another row was chosen"),
        (
            {"variant": "insert-only"},
            {"id": 1, "v": 4, "seq": 1},
            "not written (insert-only: the key already had a row)",
        ),
        ({"source_filter": "v > 4"}, {"id": 1, "v": 4}, "not written (source_filter: v > 4)"),
        ({}, {"id": 1, "v": 4}, "not written, another row was chosen"),
    ],
)
def test_source_rows_have_the_effect_that_the_run_gave_them(config: Row, row: Row, effect: str) -> None:
    """A source row was written, deleted the key, or lost, with the option and the values that decided."""
    (source_row,) = explain_source_rows(config, [{"id": 1, "v": 5, "seq": 2}], [row])

    assert source_row.effect == effect


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (1, Decimal("1.00")),
        (Decimal("1.5"), Decimal("1.500")),
        (7, 7.0),
        (date(2024, 1, 31), datetime(2024, 1, 31, tzinfo=UTC)),
        (date(2024, 1, 31), datetime.fromisoformat("2024-01-31T00:00:00")),
        ([{"v": -0.0}], [{"v": 0.0}]),
        ([("b", 2), ("a", 1)], [("a", Decimal(1)), ("b", Decimal(2))]),
    ],
    ids=repr,
)
def test_a_row_is_written_also_if_the_target_has_wider_types(value: Any, stored: Any) -> None:
    """A load casts values to the types of the target, which keeps them equal."""
    (source_row,) = explain_source_rows({}, [{"id": 1, "v": stored}], [{"id": 1, "v": value}])
    (other_row,) = explain_source_rows({}, [{"id": 1, "v": "x"}], [{"id": 1, "v": value}])

    assert (source_row.effect, other_row.effect) == ("written", "not written, another row was chosen")


def test_an_absent_key_is_explained_by_the_option_that_deletes_it() -> None:
    """A key that the source lacks was deleted because the load deletes absent rows."""
    assert "variant 'cdc' deletes such rows" in explain_absence({"variant": "cdc"}, SourceRows("s", 1))
    assert "destination_scope deletes" in explain_absence({"destination_scope": "a = 1"}, SourceRows("s", 1))
    assert not explain_absence({"variant": "cdc"}, SourceRows(missing="unknown"))


def test_values_of_two_types_are_equal_by_value() -> None:
    """Numbers of all types are equal by their value, and a text or bytes equal no other type."""
    pairs = [(kind, value) for kind in KEYS if "<" not in kind for value in convert_values(kind)]
    values = [
        (value if kind != "float" or value is None else Float32(np.float32(value)), kind)
        for kind, value in pairs
    ]
    for first, other in itertools.combinations(values, 2):
        if {first[1], other[1]} != {"timestamp", "timestamp_ntz"}:
            assert is_equal(first[0], other[0]) == is_same_key(first, other), (first, other)


def test_a_source_row_with_lists_in_tables_is_written() -> None:
    """The target has a column that refers to the lists, and the source has the lists."""
    stored, row = {"id": 1, "v": "a", "_row_id": "x1"}, {"id": 1, "v": "a", "tags": ["t"]}

    assert [one.effect for one in explain_source_rows({}, [stored], [row])] == ["written"]
    assert explain_source_rows({}, [{**stored, "v": "b"}], [row])[0].effect != "written"
