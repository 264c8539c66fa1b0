"""Tests of the properties and IDs of merged entities."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, strategies as st

from airflow_merge_provider.core.merge_source.identity import Member, composite_id, first_id
from airflow_merge_provider.core.merge_source.merging import is_deleted, merge_members, render_output

SCALARS = st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["", "a", 1.0])
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3), max_leaves=4)
PROPERTIES = st.dictionaries(st.sampled_from(["x", "y", "_ts", "$last"]), VALUES, max_size=3)
MEMBERS = st.dictionaries(
    st.builds(Member, st.integers(0, 2), st.sampled_from(["1", "2", "10", "é", "Z"])),
    PROPERTIES,
    min_size=1,
    max_size=4,
)


def merge_content(strategy: str, *members: dict[str, Any]) -> dict[str, Any]:
    output = merge_members([{"_id": "i", **member} for member in members], strategy)
    del output["$ids"]
    return output


@pytest.mark.parametrize(
    ("left", "right", "together"),
    [
        (1, 1, [1, 1]),
        (None, 2, [None, 2]),
        ([], 5, [5]),
        ([], [], []),
        ([2, 1], 2, [2, 1, 2]),
        ([[1], [2]], [3], [[1], [2], 3]),
        ({"k": 1}, {"k": 2}, [{"k": 1}, {"k": 2}]),
    ],
)
def test_default_unites_all_values(left: Any, right: Any, together: Any) -> None:
    """The default strategy unites all values.

    Lists are flattened one level; duplicates and nulls are kept.
    """
    assert merge_content("default", {"x": left}, {"x": right}) == {"x": together}


@pytest.mark.parametrize(
    ("value", "compact"),
    [
        ([3, 3], 3),
        ([None, None], None),
        ([None, 1], [None, 1]),
        ([[1], [1]], [[1]]),
        ([1, 1.0, "1"], [1, "1"]),
    ],
)
def test_compact_leaves_no_duplicates(value: Any, compact: Any) -> None:
    """The compact strategy removes duplicates.

    A list with one remaining value becomes that value, unless the value is a list.
    """
    assert merge_content("compact", {"x": value}) == {"x": compact}


def test_compact_drops_empty_lists() -> None:
    """The compact strategy drops properties with an empty list."""
    assert merge_content("compact", {"x": []}, {"x": []}) == {}


def test_list_keeps_the_members_apart() -> None:
    """The list strategy keeps the members separate.

    Internal properties are included on request only; deletion markers always.
    """
    member = {"_id": "a", "$ids": ["p"], "_ts": 5, "_deleted": True, "x": 1}

    assert merge_members([member], "list")["$merged"] == [{"_id": "a", "$ids": ["p"], "x": 1}]
    assert merge_members([member], "list", include_internal=True)["$merged"] == [
        {"_id": "a", "$ids": ["p"], "_ts": 5, "x": 1}
    ]


def test_ids_are_the_original_ones() -> None:
    """The IDs of an output are the original IDs of its members.

    Members that were merged before add their IDs, each once, and null counts as missing.
    """
    members: list[dict[str, Any]] = [
        {"_id": "m", "$ids": ["p", "q", "p"]},
        {"_id": "r", "$ids": None},
        {"_id": "s", "$ids": "q"},
    ]

    assert merge_members(members, "compact")["$ids"] == ["p", "q", "r"]


@given(MEMBERS, st.sampled_from(["default", "compact", "list"]), st.sampled_from(["composite", "first"]))
def test_the_order_of_arrival_says_nothing(
    members: dict[Member, dict[str, Any]], strategy: str, identity: str
) -> None:
    """The output does not depend on the order of the members."""
    entities = {member: {"_id": member.id, **content} for member, content in members.items()}
    turned = dict(reversed(entities.items()))

    assert render_output(entities, identity=identity, strategy=strategy) == render_output(
        turned, identity=identity, strategy=strategy
    )


@given(st.lists(PROPERTIES, min_size=1, max_size=3))
def test_compact_twice_is_compact_once(members: list[dict[str, Any]]) -> None:
    """Compacting a compact entity does not change it."""
    once = merge_content("compact", *members)

    assert merge_content("compact", once) == once


def test_ids_order_by_code_point() -> None:
    """Members are ordered by offset and then by ID in code point order, not by number, locale or UTF-16."""
    ids = ["Z", "z10", "z2", "é", "\ufffd", "\U0001f600"]

    for shuffled in itertools.permutations([(0, id_) for id_ in ids]):
        assert composite_id(shuffled) == "|".join(f"0|{id_}" for id_ in ids)
    assert first_id([(1, "A"), (0, "z2"), (0, "z10")]) == "z10"


@pytest.mark.parametrize(
    ("entity", "deleted"),
    [
        ({"_deleted": True}, True),
        ({"_filtered": True}, True),
        ({"_deleted": "true", "_filtered": 1}, False),
        ({"_deleted": None}, False),
    ],
)
def test_only_true_deletes(entity: dict[str, Any], deleted: bool) -> None:
    """Only the boolean true marks an entity as deleted."""
    assert is_deleted(entity) is deleted


def test_a_deleted_entity_stands_alone() -> None:
    """A deleted entity is not merged.

    It keeps its properties and the tombstone marker of the source; a live entity drops the marker.
    """
    member = Member(2, "c2")
    tombstone = {"_id": "c2", "_deleted": True, "$replaced": True, "x": 1}

    assert render_output({member: tombstone}, identity="composite", strategy="default") == {
        "_id": "2|c2",
        "$ids": ["c2"],
        "x": 1,
        "_deleted": True,
        "$replaced": True,
    }
    assert render_output({member: tombstone | {"_deleted": False}}, identity="first", strategy="default") == {
        "_id": "c2",
        "$ids": ["c2"],
        "x": 1,
    }
