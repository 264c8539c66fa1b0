"""The links of a cluster: n - 1 links that connect its members, one per further member."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Key = tuple[str, str, str]

_OTHER_SIDE = {"left": "right", "right": "left"}


class EntityRef(NamedTuple):
    """An entity: the dataset it comes from and its ID in that dataset."""

    dataset: str
    id: str

    def __repr__(self) -> str:
        return repr(tuple(self))


class Link(NamedTuple):
    """A rule and a value (as a typed key, ``s:LAX``) by which two entities are the same.

    ``reached`` is the entity that the link adds to those that the chain already contains.
    """

    leading: EntityRef
    reached: EntityRef
    rule: str
    value: str


def build_chain(members: Iterable[Mapping[str, Any]]) -> list[Link]:
    """Return the links from the first member to every other member, each over as few links as possible.

    ``members`` is the content of the target's column ``_members``. A value links two entities only if one has
    it on the left side of a rule and the other on the right side of the same rule.

    >>> key = {"rule": "a.x = b.x", "value": "n:1"}
    >>> build_chain(
    ...     [
    ...         {"dataset": "A", "id": "a1", "keys": [{**key, "side": "left"}]},
    ...         {"dataset": "B", "id": "b1", "keys": [{**key, "side": "right"}]},
    ...     ]
    ... )
    [Link(leading=('A', 'a1'), reached=('B', 'b1'), rule='a.x = b.x', value='n:1')]
    """
    keys = {
        EntityRef(member["dataset"], member["id"]): list(map(_read_key, member["keys"])) for member in members
    }
    holders: dict[Key, list[EntityRef]] = defaultdict(list)
    for entity, entity_keys in keys.items():
        for key in entity_keys:
            holders[key].append(entity)
    queue = deque(list(keys)[:1])
    reached = set(queue)
    links: list[Link] = []
    while queue:
        current = queue.popleft()
        for link in _find_links(current, keys[current], holders):
            if link.reached not in reached:
                reached.add(link.reached)
                queue.append(link.reached)
                links.append(link)
    return links


def find_path(links: Sequence[Link], end: EntityRef) -> list[Link]:
    """Return the links of a chain from its first member to ``end``; empty if there is no path."""
    leading = {link.reached: link for link in links}
    path: list[Link] = []
    while (link := leading.get(end)) is not None:
        path.append(link)
        end = link.leading
    return path[::-1]


def _find_links(
    entity: EntityRef, keys: Iterable[Key], holders: dict[Key, list[EntityRef]]
) -> Iterator[Link]:
    """Yield the links of one entity; each key yields its holders only for the first entity that has it."""
    for rule, side, value in keys:
        for neighbour in holders.pop((rule, _OTHER_SIDE[side], value), ()):
            yield Link(entity, neighbour, rule, value)


def _read_key(key: Mapping[str, str]) -> Key:
    return key["rule"], key["side"], key["value"]
