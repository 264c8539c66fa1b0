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
    sources: Sequence[Entities], rules: Sequence[Rule], match_callback: MatchCallback | None = None
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
        matches = keys.match_keys(rule)
        shared = match_callback(matches) if match_callback else matches.shared
        anchors = np.empty(len(shared), np.int64)
        members, numbers = matches.ends[0]
        anchors[numbers] = members
        for members, numbers in matches.ends:
            is_linking = shared[numbers]
            heads.append(members[is_linking])
            tails.append(anchors[numbers[is_linking]])
    return _connect_links(sources, np.concatenate(heads), np.concatenate(tails))


def _connect_links(sources: Sequence[Entities], heads: Numbers, tails: Numbers) -> EntityGraph:
    """Return the clusters formed by links between entities; an entity without links is a cluster of one."""
    entities = sum(len(source.hashes) for source in sources)
    is_edge = heads != tails
    heads, tails = heads[is_edge], tails[is_edge]
    linked = _mark_numbers(heads, entities) | _mark_numbers(tails, entities)
    nodes = np.cumsum(linked) - 1
    node_count = int(np.count_nonzero(linked))
    edges = coo_matrix(
        (np.ones(len(heads), np.bool_), (nodes[heads], nodes[tails])), shape=(node_count, node_count)
    )
    count, labels = connected_components(edges, directed=False)
    clusters = np.empty(entities, np.int64)
    clusters[linked] = labels
    clusters[~linked] = np.arange(count, count + entities - node_count)
    return EntityGraph(sources, clusters, count + entities - node_count)


def build_graph(sources: Sequence[Entities], members: Numbers, names: Numbers) -> EntityGraph:
    """Return the clusters of entities that were connected elsewhere; an entity without a name is alone.

    :param members: hashes of entities, each once; ``names`` are equal if two entities belong together, and
        each is the hash of one of these entities.
    """
    hashes = np.concatenate([np.empty(0, np.int64), *(source.hashes for source in sources)])
    # Finding hashes by a hash table is ten times as fast as by binary search.
    positions = pc.index_in(pa.array(hashes), value_set=pa.array(members)).to_numpy(zero_copy_only=False)
    named = ~np.isnan(positions)
    labels = hashes.copy()
    labels[named] = names[positions[named].astype(np.int64)]
    coded = pc.dictionary_encode(pa.array(labels))
    return EntityGraph(sources, to_numbers(coded.indices), len(coded.dictionary))


@dataclass(frozen=True)
class _SharedKeys:
    """The keys that occur more than once, numbered: no other key can link two entities.

    ``sides`` holds for every side (entity, number of the key), ``unmatched_counts`` how many keys of it
    occur only once.
    """

    hashes: Numbers
    sides: dict[Order, tuple[Numbers, Numbers]]
    unmatched_counts: dict[Order, int]

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
        repeated = _find_repeated(hashes)
        repeated = repeated[np.argsort(hashes[repeated])]
        ordered, ordered_seconds = hashes[repeated], seconds[repeated]
        new = np.ones(len(repeated) + 1, np.bool_)
        new[1:-1] = ordered[1:] != ordered[:-1]
        if ((ordered_seconds[1:] != ordered_seconds[:-1]) & ~new[1:-1]).any():
            raise HashCollisionError
        first, several = new[:-1], ~(new[:-1] & new[1:])
        numbers = np.full(len(hashes), -1)
        numbers[repeated[several]] = np.cumsum(first[several]) - 1
        parts = np.split(numbers, np.cumsum([len(side[2]) for side in sides])[:-1]) if sides else []
        shared_sides = {
            side[0]: (side[1][part >= 0], part[part >= 0]) for side, part in zip(sides, parts, strict=True)
        }
        single_counts = {side[0]: int((part < 0).sum()) for side, part in zip(sides, parts, strict=True)}
        return _SharedKeys(ordered[first & several], shared_sides, single_counts)

    def match_keys(self, rule: Rule) -> KeyMatches:
        """Return the key matches of a rule."""
        none = np.empty(0, np.int64)
        left, right = rule.left.order, rule.right.order
        ends = [self.sides.get(order, (none, none)) for order in (left, right)]
        shared = np.logical_and(*(_mark_numbers(numbers, len(self.hashes)) for _, numbers in ends))
        single_counts = (
            (0, 0)
            if left == right
            else (self.unmatched_counts.get(left, 0), self.unmatched_counts.get(right, 0))
        )
        return KeyMatches(rule, ends, shared, self.hashes, single_counts)


def _find_repeated(hashes: Numbers) -> Numbers:
    """Return the positions of all hashes that occur more than once, and possibly of a few others.

    The positions are stored in the lowest bits of the sorted numbers: sorting numbers alone is five times as
    fast as sorting positions by them, and most keys occur only once.
    """
    bits = len(hashes).bit_length()
    ordered = np.sort((hashes >> bits << bits) | np.arange(len(hashes)))
    same = np.zeros(len(hashes) + 1, np.bool_)
    same[1:-1] = ordered[1:] >> bits == ordered[:-1] >> bits
    positions: Numbers = ordered[same[:-1] | same[1:]] & ((1 << bits) - 1)
    return positions


def _mark_numbers(numbers: Numbers, count: int) -> Flags:
    flags = np.zeros(count, np.bool_)
    flags[numbers] = True
    return flags


def count_sizes(sizes: Numbers) -> Iterator[tuple[int, int]]:
    """Count clusters by size, smallest first."""
    distinct_sizes, counts = np.unique(sizes, return_counts=True)
    yield from zip(distinct_sizes.tolist(), counts.tolist(), strict=True)
