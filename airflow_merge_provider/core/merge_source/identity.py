"""The ID of an output and the order of its members."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Member(NamedTuple):
    """An entity as a member of a cluster: the offset of its dataset, and its ID.

    Members sort by offset, then by ID. Python compares texts by code point, which is the order of UTF-8
    bytes.
    """

    dataset: int
    id: str


def composite_id(members: Iterable[tuple[int, str]]) -> str:
    """Return the ID that contains every member.

    >>> composite_id([(1, "b1"), (0, "a10"), (0, "a2")])
    '0|a10|0|a2|1|b1'
    """
    return "|".join(f"{dataset}|{id_}" for dataset, id_ in sorted(members))


def first_id(members: Iterable[tuple[int, str]]) -> str:
    """Return the ID of the first member.

    >>> first_id([(1, "b1"), (0, "a10"), (0, "a2")])
    'a10'
    """
    return min(members)[1]


def output_id(members: Iterable[tuple[int, str]], identity: str) -> str:
    """Return the ID of an output for the configured identity; a single entity is a cluster of one."""
    return first_id(members) if identity == "first" else composite_id(members)
