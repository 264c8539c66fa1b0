"""Why are these entities one: the links, one per further member, that hold a cluster together."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Key = tuple[str, str, str]

_OTHER_SIDE = {"left": "right", "right": "left"}


class EntityRef(NamedTuple):
    """An entity by the dataset it comes from and its id there."""

    dataset: str
    id: str

    def __repr__(self) -> str:
        return repr(tuple(self))


class Link(NamedTuple):
    """A rule and a value (as a typed key, ``s:LAX``) that say that two entities are the same.

    ``reached`` is the entity that the link adds to those that a chain has already.
    """

    known: EntityRef
    reached: EntityRef
    rule: str
    value: str


def build_chain(members: Iterable[Mapping[str, Any]]) -> list[Link]:
    """Return the links that reach every member from the first one, by as few steps each as there can be.

    ``members`` is what the target's column ``_members`` holds. Two entities are linked by a value only when
    one has it on the left side of a rule and the other on the right side of the same rule.

    >>> key = {"rule": "a.x = b.x", "value": "n:1"}
    >>> build_chain(
    ...     [
    ...         {"dataset": "A", "id": "a1", "keys": [{**key, "side": "left"}]},
    ...         {"dataset": "B", "id": "b1", "keys": [{**key, "side": "right"}]},
    ...     ]
    ... )
    [Link(known=('A', 'a1'), reached=('B', 'b1'), rule='a.x = b.x', value='n:1')]
    """
    keys = {
        EntityRef(member["dataset"], member["id"]): list(map(_read_key, member["keys"])) for member in members
    }
    holders: dict[Key, list[EntityRef]] = defaultdict(list)
    for entity, held in keys.items():
        for key in held:
            holders[key].append(entity)
    waiting = deque(list(keys)[:1])
    reached = set(waiting)
    links: list[Link] = []
    while waiting:
        known = waiting.popleft()
        for link in _links_of(known, keys[known], holders):
            if link.reached not in reached:
                reached.add(link.reached)
                waiting.append(link.reached)
                links.append(link)
    return links


def find_path(links: Sequence[Link], end: EntityRef) -> list[Link]:
    """Return the links of a chain that lead from its first member to ``end``; none when nothing does."""
    leading = {link.reached: link for link in links}
    found: list[Link] = []
    while (link := leading.get(end)) is not None:
        found.append(link)
        end = link.known
    return found[::-1]


def _links_of(known: EntityRef, keys: Iterable[Key], holders: dict[Key, list[EntityRef]]) -> Iterator[Link]:
    """Yield the links of one entity; those who hold a key are given once, to the first who asks."""
    for rule, side, value in keys:
        for other in holders.pop((rule, _OTHER_SIDE[side], value), ()):
            yield Link(known, other, rule, value)


def _read_key(key: Mapping[str, str]) -> Key:
    return key["rule"], key["side"], key["value"]
