"""Tests of finding the links between the members of a cluster."""

from __future__ import annotations

from typing import Any

from hypothesis import given, strategies as st

from airflow_merge_provider.core.merge_source.explanation import (
    EntityRef,
    Link,
    build_chain,
    describe_member_changes,
    find_path,
)

A1, A2, B1, B2, C1 = (
    EntityRef("A", "a1"),
    EntityRef("A", "a2"),
    EntityRef("B", "b1"),
    EntityRef("B", "b2"),
    EntityRef("C", "c1"),
)


def build_member(entity: Any, *keys: Any) -> Any:
    parts = [dict(zip(("rule", "side", "value"), key, strict=True)) for key in keys]
    return {"dataset": entity.dataset, "id": entity.id, "hash": 1, "keys": parts}


def test_members_that_join_or_leave_have_their_link() -> None:
    """A member of an output that stays has the rule and the value; those of a new output are only named."""
    member, other = (
        build_member(A1, ("a.x = b.x", "left", "n:1")),
        build_member(B1, ("a.x = b.x", "right", "n:1")),
    )

    assert describe_member_changes("o", [member], [member, other]) == "+ B/b1 by a.x = b.x (1)"
    assert describe_member_changes("o", [member, other], [member]) == "- B/b1 by a.x = b.x (1)"
    assert describe_member_changes("o", [], [member, other]) == "+ A/a1, B/b1"


def test_an_entity_alone_has_no_links() -> None:
    """A cluster of one member or none has no links."""
    assert build_chain([build_member(A1, ("a.x = a.x", "left", "n:1"), ("a.x = a.x", "right", "n:1"))]) == []
    assert build_chain([]) == []


def test_a_chain_goes_through_an_entity_that_shares_with_both() -> None:
    """A chain leads through an entity that shares a value with both.

    In the example, a1 and c1 share values only with b1.
    """
    members = [
        build_member(A1, ("a.f1 = b.f1", "left", "n:1")),
        build_member(B1, ("a.f1 = b.f1", "right", "n:1"), ("b.f2 = lower(c.f3)", "left", "s:x")),
        build_member(C1, ("b.f2 = lower(c.f3)", "right", "s:x")),
    ]

    links = build_chain(members)

    assert links == [Link(A1, B1, "a.f1 = b.f1", "n:1"), Link(B1, C1, "b.f2 = lower(c.f3)", "s:x")]
    assert find_path(links, C1) == links
    assert find_path(links, A1) == []


def test_a_value_on_one_side_only_links_nothing() -> None:
    """Two entities of A with the same left value are linked only through B.

    The entity of B must have the value on the right.
    """
    left = ("a.x = b.x", "left", "n:1")
    assert build_chain([build_member(A1, left), build_member(A2, left)]) == []

    links = build_chain(
        [build_member(A1, left), build_member(A2, left), build_member(B1, ("a.x = b.x", "right", "n:1"))]
    )

    assert links == [Link(A1, B1, "a.x = b.x", "n:1"), Link(B1, A2, "a.x = b.x", "n:1")]


def test_the_same_value_under_two_rules_is_two_keys() -> None:
    """A value links entities only within its own rule."""
    members = [
        build_member(A1, ("a.x = b.x", "left", "n:1")),
        build_member(B1, ("a.y = b.y", "right", "n:1")),
    ]

    assert build_chain(members) == []


def test_the_way_to_a_member_is_the_shortest() -> None:
    """The path to a member is the shortest.

    B2 shares a value with A1, so no other entity lies between them.
    """
    members = [
        build_member(A1, ("a.x = b.x", "left", "n:1"), ("a.y = b.y", "left", "s:k")),
        build_member(A2, ("a.x = b.x", "left", "n:1"), ("a.x = b.x", "left", "n:2")),
        build_member(B1, ("a.x = b.x", "right", "n:1")),
        build_member(B2, ("a.x = b.x", "right", "n:2"), ("a.y = b.y", "right", "s:k")),
    ]

    assert find_path(build_chain(members), B2) == [Link(A1, B2, "a.y = b.y", "s:k")]


def test_a_value_that_thousands_share_is_walked_through_once() -> None:
    """The number of links for a shared value grows with the members and not with their square."""
    right = ("a.x = b.x", "right", "n:1")
    members = [build_member(A1, ("a.x = b.x", "left", "n:1"))]
    members += [build_member(EntityRef("B", str(number)), right) for number in range(20_000)]

    assert len(build_chain(members)) == 20_000


KEYS = st.tuples(
    st.sampled_from(["r", "s"]), st.sampled_from(["left", "right"]), st.sampled_from(["n:1", "n:2"])
)


@given(st.lists(st.lists(KEYS, max_size=4), min_size=1, max_size=8))
def test_every_link_is_one_and_all_that_can_be_reached_is(key_lists: Any) -> None:
    """Each link joins a left side with a right side.

    All entities that links can reach are linked, as in the definition.
    """
    entities = [EntityRef("A", str(number)) for number in range(len(key_lists))]
    keys = dict(zip(entities, map(set, key_lists), strict=True))

    def is_linked(left: Any, right: Any) -> Any:
        sides = {"left": "right", "right": "left"}
        return any((rule, sides[side], value) in keys[right] for rule, side, value in keys[left])

    component = {entities[0]}
    while (
        new_entities := {
            entity for entity in entities if any(is_linked(member, entity) for member in component)
        }
        - component
    ):
        component |= new_entities

    links = build_chain(
        [build_member(entity, *key_list) for entity, key_list in zip(entities, key_lists, strict=True)]
    )

    assert {entities[0], *(link.reached for link in links)} == component
    assert len(links) == len(component) - 1
    for link in links:
        both = {(link.rule, "left", link.value), (link.rule, "right", link.value)}
        assert any(
            {left_key, right_key} == both
            for left_key in keys[link.leading]
            for right_key in keys[link.reached]
        )
