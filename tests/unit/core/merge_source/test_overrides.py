"""Tests of which overrides are active and which are rejected."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.merge_source.identity import Member
from airflow_merge_provider.core.merge_source.overrides import Overrides, parse_overrides

NAMES = ("A", "/lake/erp", "/lake/erp/old")
NOON = dt.datetime(2026, 1, 2, 12, tzinfo=dt.UTC)


def build_row(kind: Any = "same", left: Any = "A/a1", right: Any = "/lake/erp/e1", **more: Any) -> Any:
    return {"kind": kind, "left": left, "right": right, **more}


def test_entities_are_named_by_dataset_and_id() -> None:
    """Entities are named by dataset and ID.

    Both may contain slashes: the longest dataset that matches is used.
    """
    overrides = parse_overrides(
        [build_row(), build_row("different", "A/a/1", "/lake/erp/old/x")], NAMES, NOON
    )

    assert overrides.same == ((Member(0, "a1"), Member(1, "e1")),)
    assert overrides.different == ((Member(0, "a/1"), Member(2, "x")),)


@pytest.mark.parametrize(
    ("until", "counts"),
    [
        (None, True),
        (NOON, False),
        (NOON + dt.timedelta(seconds=1), True),
        (NOON.replace(hour=11, tzinfo=None), False),
        (NOON.replace(hour=13, tzinfo=None), True),
        (dt.date(2026, 1, 2), False),
        (dt.date(2026, 1, 3), True),
    ],
)
def test_a_decision_counts_until_it_ends(until: Any, counts: Any) -> None:
    """An override is active until its end time. Times without a zone are UTC; a date means its beginning."""
    assert bool(parse_overrides([build_row(until=until)], NAMES, NOON).same) is counts


def test_the_mark_changes_with_what_counts_and_with_nothing_else() -> None:
    """The overrides hash depends on the active overrides only, not on reasons, order or repetition."""
    first, second = build_row(reason="phone call"), build_row(left="A/a2")

    overrides_hash = parse_overrides([first, second], NAMES, NOON).mark

    assert overrides_hash == parse_overrides([second, build_row(), build_row()], NAMES, NOON).mark
    assert overrides_hash != parse_overrides([first], NAMES, NOON).mark
    assert overrides_hash != parse_overrides([first, {**second, "kind": "different"}], NAMES, NOON).mark
    assert parse_overrides([build_row(until=NOON)], NAMES, NOON).mark == Overrides().mark == ""


def test_pairs_that_are_the_same_share_a_key() -> None:
    """The two entities of a must-link pair share a key.

    Each has it on its own side, under a rule of their two datasets.
    """
    overrides = parse_overrides([build_row(), build_row(left="/lake/erp/e1", right="A/a2")], NAMES, NOON)

    assert [rule.text for rule in overrides.build_rules(NAMES)] == [
        "override(A) = override(/lake/erp)",
        "override(/lake/erp) = override(A)",
    ]
    assert overrides.build_keys(0, NAMES) == [
        ("a1", ["A/a1 = /lake/erp/e1"], []),
        ("a2", [], ["/lake/erp/e1 = A/a2"]),
    ]
    assert overrides.build_keys(1, NAMES) == [("e1", ["/lake/erp/e1 = A/a2"], ["A/a1 = /lake/erp/e1"])]


def test_all_that_is_wrong_is_said_at_once() -> None:
    """Each invalid row is reported with its error, all together; an ended row is not checked."""
    rows = [
        build_row("maybe"),
        build_row(left="B/b1"),
        build_row(left="A/"),
        build_row(right=None),
        build_row(right="A/a1"),
        build_row("junk", until=NOON),
    ]

    with pytest.raises(DataError) as refused:
        parse_overrides(rows, NAMES, NOON)

    messages = [problem.message.partition(" in {")[0] for problem in refused.value.problems]
    assert messages == [
        "kind must be 'same' or 'different', not 'maybe'",
        "left must be '<dataset>/<id>'",
        "left must be '<dataset>/<id>'",
        "right must be '<dataset>/<id>'",
        "left and right are the same entity",
    ]


def test_a_pair_that_is_decided_both_ways_is_refused() -> None:
    """A pair with contradicting overrides is rejected, in any order of the two entities."""
    rows = [build_row(), build_row("different", "/lake/erp/e1", "A/a1")]

    with pytest.raises(DataError, match="A/a1 and /lake/erp/e1 are declared 'same' and 'different'"):
        parse_overrides(rows, NAMES, NOON)
