"""Tests of the oracle of the merge source: cases worked out by hand, and properties of every output."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.conformance.oracles.merge_source import build_outputs, is_deleted, render_output

SCALARS = st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["", "a", 1.0])
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3), max_leaves=4)
PROPERTIES = st.dictionaries(st.sampled_from(["x", "y", "_ts", "$last"]), VALUES, max_size=3)
MEMBERS = st.dictionaries(st.sampled_from(["1", "2", "10", "é", "Z"]), PROPERTIES, min_size=1, max_size=4)


def merge_members(members: list[dict[str, Any]], strategy: str, **config: Any) -> dict[str, Any]:
    cluster = [(offset, str(member["_id"]), member) for offset, member in enumerate(members)]
    return render_output({"strategy": strategy, **config}, cluster)


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
    assert merge_members([member], "list", include_internal_properties=True)["$merged"] == [
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
def test_the_output_does_not_depend_on_the_order_of_arrival(
    members: dict[str, dict[str, Any]], strategy: str, identity: str
) -> None:
    """The output does not depend on the order of the members."""
    config = {"datasets": ["d d"], "equality": [["eq", "d.one", "d.one"]], "strategy": strategy}
    entities = [{"_id": id_, "one": 1, **content} for id_, content in members.items()]

    first, second = (
        build_outputs({**config, "identity": identity}, {"d": rows}) for rows in (entities, entities[::-1])
    )
    assert first == second


@given(st.lists(PROPERTIES, min_size=1, max_size=3))
def test_compact_twice_is_compact_once(members: list[dict[str, Any]]) -> None:
    """Compacting a compact entity does not change it."""
    once = merge_content("compact", *members)

    assert merge_content("compact", once) == once


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


def test_a_deleted_entity_is_an_output_of_its_own() -> None:
    """A deleted entity is not merged.

    It keeps its properties and the tombstone marker of the source; a live entity drops the marker.
    """
    tombstone = {"_id": "c2", "_deleted": True, "$replaced": True, "x": 1}

    assert merge_members([tombstone], "default") == {
        "$ids": ["c2"],
        "x": 1,
        "_deleted": True,
        "$replaced": True,
    }
    assert merge_members([tombstone | {"_deleted": False}], "default") == {"$ids": ["c2"], "x": 1}
