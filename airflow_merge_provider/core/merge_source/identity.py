"""Which id does an output have, and in which order do its members stand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Member(NamedTuple):
    """An entity as a member of a cluster: the offset of its dataset, and its id.

    Members sort by offset, then by id. Python compares texts by code point, as the bytes of UTF-8 do.
    """

    dataset: int
    id: str


def composite_id(members: Iterable[tuple[int, str]]) -> str:
    """Return the id that names every member.

    >>> composite_id([(1, "b1"), (0, "a10"), (0, "a2")])
    '0|a10|0|a2|1|b1'
    """
    return "|".join(f"{dataset}|{id_}" for dataset, id_ in sorted(members))


def first_id(members: Iterable[tuple[int, str]]) -> str:
    """Return the id of the first member.

    >>> first_id([(1, "b1"), (0, "a10"), (0, "a2")])
    'a10'
    """
    return min(members)[1]


def output_id(members: Iterable[tuple[int, str]], identity: str) -> str:
    """Return the id of an output by the configured identity; a single entity is a cluster of one."""
    return first_id(members) if identity == "first" else composite_id(members)
