"""Find the connected components of entities that share keys on both sides of a rule.

Works on hashes in the driver's memory: an entity costs some 60 bytes, a key 20.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from airflow_merge_provider.core.merge_source.equality import Rule
from airflow_merge_provider.jobs.merge_source.model import (
    Entities,
    EntityGraph,
    Flags,
    HashCollisionError,
    KeyMatches,
    Numbers,
    Order,
    to_numbers,
)

# Called with the key matches of each rule; returns which of the keys link.
MatchCallback = Callable[[KeyMatches], Flags]


def connect_entities(
    sources: Sequence[Entities], rules: Sequence[Rule], watch: MatchCallback | None = None
) -> EntityGraph:
    """Find the clusters: a key links entities if a rule has it on its left and on its right side.

    One entity with such a key is linked with every other one that has it: n links instead of n squared.
    Deleted entities have no keys and stay alone.

    :raises HashCollisionError: if two different keys have the same hash.
    """
    keys = _SharedKeys.from_sources(sources)
    none = np.empty(0, np.int64)
    heads, tails = [none], [none]
    for rule in rules:
        meeting = keys.match_keys(rule)
        shared = watch(meeting) if watch else meeting.shared
        hub = np.empty(len(shared), np.int64)
        members, numbers = meeting.ends[0]
        hub[numbers] = members
        for members, numbers in meeting.ends:
            found = shared[numbers]
            heads.append(members[found])
            tails.append(hub[numbers[found]])
    return _connect_links(sources, np.concatenate(heads), np.concatenate(tails))


def _connect_links(sources: Sequence[Entities], heads: Numbers, tails: Numbers) -> EntityGraph:
    """Return the clusters formed by links between entities; an entity without links is a cluster of one."""
    entities = sum(len(source.hashes) for source in sources)
    apart = heads != tails
    heads, tails = heads[apart], tails[apart]
    linked = _mark_numbers(heads, entities) | _mark_numbers(tails, entities)
    place = np.cumsum(linked) - 1
    few = int(np.count_nonzero(linked))
    edges = coo_matrix((np.ones(len(heads), np.bool_), (place[heads], place[tails])), shape=(few, few))
    count, labels = connected_components(edges, directed=False)
    clusters = np.empty(entities, np.int64)
    clusters[linked] = labels
    clusters[~linked] = np.arange(count, count + entities - few)
    return EntityGraph(sources, clusters, count + entities - few)


def build_graph(sources: Sequence[Entities], members: Numbers, names: Numbers) -> EntityGraph:
    """Return the clusters of entities that were connected elsewhere; an entity without a name is alone.

    :param members: hashes of entities, each once; ``names`` are equal if two entities belong together, and
        each is the hash of one of these entities.
    """
    hashes = np.concatenate([np.empty(0, np.int64), *(source.hashes for source in sources)])
    # Finding hashes by a hash table is ten times as fast as by binary search.
    place = pc.index_in(pa.array(hashes), value_set=pa.array(members)).to_numpy(zero_copy_only=False)
    named = ~np.isnan(place)
    labels = hashes.copy()
    labels[named] = names[place[named].astype(np.int64)]
    coded = pc.dictionary_encode(pa.array(labels))
    return EntityGraph(sources, to_numbers(coded.indices), len(coded.dictionary))


@dataclass(frozen=True)
class _SharedKeys:
    """The keys that occur more than once, numbered: no other key can link two entities.

    ``sides`` holds for every side (entity, number of the key), ``alone`` how many keys of it occur only once.
    """

    hashes: Numbers
    sides: dict[Order, tuple[Numbers, Numbers]]
    alone: dict[Order, int]

    @staticmethod
    def from_sources(sources: Sequence[Entities]) -> _SharedKeys:
        """Find the keys that occur more than once, and number them in the order of their hashes.

        :raises HashCollisionError: if two different keys have the same hash.
        """
        starts = np.cumsum([0, *(len(source.hashes) for source in sources)])
        sides = [
            (order, positions + start, hashes, seconds)
            for source, start in zip(sources, starts, strict=False)
            for order, (positions, hashes, seconds) in source.keys.items()
        ]
        none = np.empty(0, np.int64)
        hashes, seconds = (np.concatenate([none, *(side[at] for side in sides)]) for at in (2, 3))
        places = _find_repeated(hashes)
        places = places[np.argsort(hashes[places])]
        ordered, others = hashes[places], seconds[places]
        new = np.ones(len(places) + 1, np.bool_)
        new[1:-1] = ordered[1:] != ordered[:-1]
        if ((others[1:] != others[:-1]) & ~new[1:-1]).any():
            raise HashCollisionError
        first, several = new[:-1], ~(new[:-1] & new[1:])
        numbers = np.full(len(hashes), -1)
        numbers[places[several]] = np.cumsum(first[several]) - 1
        parts = np.split(numbers, np.cumsum([len(side[2]) for side in sides])[:-1]) if sides else []
        kept = {
            side[0]: (side[1][part >= 0], part[part >= 0]) for side, part in zip(sides, parts, strict=True)
        }
        alone = {side[0]: int((part < 0).sum()) for side, part in zip(sides, parts, strict=True)}
        return _SharedKeys(ordered[first & several], kept, alone)

    def match_keys(self, rule: Rule) -> KeyMatches:
        """Return the key matches of a rule."""
        none = np.empty(0, np.int64)
        left, right = rule.left.order, rule.right.order
        ends = [self.sides.get(each, (none, none)) for each in (left, right)]
        shared = np.logical_and(*(_mark_numbers(numbers, len(self.hashes)) for _, numbers in ends))
        alone = (0, 0) if left == right else (self.alone.get(left, 0), self.alone.get(right, 0))
        return KeyMatches(rule, ends, shared, self.hashes, alone)


def _find_repeated(hashes: Numbers) -> Numbers:
    """Return the positions of all hashes that occur more than once, and possibly of a few others.

    The positions are stored in the lowest bits of the sorted numbers: sorting numbers alone is five times as
    fast as sorting positions by them, and most keys occur only once.
    """
    bits = len(hashes).bit_length()
    ordered = np.sort((hashes >> bits << bits) | np.arange(len(hashes)))
    same = np.zeros(len(hashes) + 1, np.bool_)
    same[1:-1] = ordered[1:] >> bits == ordered[:-1] >> bits
    found: Numbers = ordered[same[:-1] | same[1:]] & ((1 << bits) - 1)
    return found


def _mark_numbers(numbers: Numbers, count: int) -> Flags:
    marks = np.zeros(count, np.bool_)
    marks[numbers] = True
    return marks


def count_sizes(sizes: Numbers) -> Iterator[tuple[int, int]]:
    """Count clusters by size, smallest first."""
    found, counts = np.unique(sizes, return_counts=True)
    yield from zip(found.tolist(), counts.tolist(), strict=True)
