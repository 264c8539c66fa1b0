"""Which entities are the same: keys that both sides of a rule have connect them, and so on transitively.

Works on hashes in the driver's memory: an entity costs some 60 bytes, a key 20.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from airflow_merge_provider.core.merge_source.equality import Rule, Side

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Order = tuple[int, str]
Keyed = tuple[Numbers, Numbers, Numbers]
Ends = Sequence[tuple[Numbers, Numbers]]
# Told of each rule, its entities with the numbers of their keys on both sides, and the keys that are on both:
# gives the keys that link.
Watch = Callable[[Rule, Ends, Flags], Flags]


class HashCollisionError(Exception):
    """Raised when two different values have one hash; the caller hashes anew with another seed."""


@dataclass(frozen=True)
class Entities:
    """The thin rows of one source: ids, hashes of ids, who is deleted, and per rule side the hashed keys.

    ``keys`` gives, by the order of a side, for each key the position of its entity, the key's hash, and a
    second hash that tells two keys with one hash apart. ``contents`` are hashes of what the entities say;
    they are 0 in a run that compares nothing.
    """

    ids: pa.StringArray
    hashes: Numbers
    deleted: Flags
    contents: Numbers
    keys: dict[Order, Keyed]

    @staticmethod
    def none() -> Entities:
        """Give a source that has no entities."""
        empty = np.empty(0, np.int64)
        return Entities(pa.array([], pa.string()), empty, empty.astype(np.bool_), empty, {})

    def only(self, chosen: Flags) -> Entities:
        """Keep some of the entities, with their keys."""
        place = np.cumsum(chosen) - 1
        keys = {}
        for order, (positions, hashes, seconds) in self.keys.items():
            kept = chosen[positions]
            keys[order] = place[positions[kept]], hashes[kept], seconds[kept]
        return Entities(
            self.ids.filter(pa.array(chosen)),
            self.hashes[chosen],
            self.deleted[chosen],
            self.contents[chosen],
            keys,
        )

    def and_also(self, others: Entities) -> Entities:
        """Put other entities of the same source behind these."""
        keys = dict(self.keys)
        for order, (positions, hashes, seconds) in others.keys.items():
            moved = positions + len(self.hashes), hashes, seconds
            keys[order] = both(keys[order], moved) if order in keys else moved
        return Entities(
            pa.concat_arrays([self.ids, others.ids]),
            np.concatenate([self.hashes, others.hashes]),
            np.concatenate([self.deleted, others.deleted]),
            np.concatenate([self.contents, others.contents]),
            keys,
        )

    @property
    def every_hash(self) -> Iterator[Numbers]:
        """The hashes of ids and of keys: what other entities could have in common with these."""
        yield self.hashes
        yield from (hashes for _, hashes, _ in self.keys.values())

    @cached_property
    def by_id(self) -> Numbers:
        """The positions in the order of the ids: by code point, as the bytes of UTF-8."""
        return _numbers(pc.sort_indices(self.ids))

    def repeated(self) -> tuple[str, int, int] | None:
        """Give the id that stands in most rows, how many those are, and how many ids are in several."""
        if all_different(self.hashes):
            return None
        counted = pc.value_counts(self.ids)
        counts = counted.field("counts").to_numpy(zero_copy_only=False)
        most = int(counts.argmax())
        if counts[most] == 1:
            raise HashCollisionError
        return counted.field("values")[most].as_py(), int(counts[most]), int((counts > 1).sum())


@dataclass(frozen=True)
class Graph:
    """The entities of all sources, numbered through in the order of datasets, and the cluster of each."""

    sources: Sequence[Entities]
    clusters: Numbers
    count: int

    @cached_property
    def starts(self) -> Numbers:
        """The number of each source's first entity."""
        return np.cumsum([0, *(len(source.hashes) for source in self.sources)])

    @cached_property
    def hashes(self) -> Numbers:
        return np.concatenate([source.hashes for source in self.sources])

    @cached_property
    def deleted(self) -> Flags:
        return np.concatenate([source.deleted for source in self.sources])

    @cached_property
    def order(self) -> Numbers:
        """All entities by dataset and id: the order of members, and of outputs by their first member."""
        return np.concatenate(
            [source.by_id + start for source, start in zip(self.sources, self.starts, strict=False)]
        )

    @cached_property
    def ranks(self) -> Numbers:
        """The place of each entity in that order."""
        ranks = np.empty(len(self.order), np.int64)
        ranks[self.order] = np.arange(len(self.order))
        return ranks

    @cached_property
    def sizes(self) -> Numbers:
        """How many entities each cluster has."""
        return np.bincount(self.clusters, minlength=self.count)

    @cached_property
    def firsts(self) -> Numbers:
        """The first member of each cluster, by the clusters' numbers."""
        earliest = np.full(self.count, len(self.order), np.int64)
        np.minimum.at(earliest, self.clusters, self.ranks)
        return self.order[earliest]

    def members(self, cluster: int, most: int | None = None) -> list[tuple[int, str]]:
        """Give the members of a cluster in their order, each as (offset of the dataset, id), or the first."""
        inside = np.flatnonzero(self.clusters == cluster)
        inside = inside[np.argsort(self.ranks[inside])]
        return [self.entity(number) for number in inside[:most]]

    def entity(self, number: int) -> tuple[int, str]:
        """Give the dataset's offset and the id of an entity."""
        offset = int(np.searchsorted(self.starts, number, side="right")) - 1
        return offset, self.sources[offset].ids[int(number - self.starts[offset])].as_py()


def connected(sources: Sequence[Entities], rules: Sequence[Rule], watch: Watch | None = None) -> Graph:
    """Find the clusters: a key links entities when a rule has it on its left and on its right side.

    Every such key is a node of its own, linked with each of its entities: n links, not n squared. Deleted
    entities have no keys and stay alone.

    :raises HashCollisionError: when two keys that are not the same have one hash.
    """
    starts = np.cumsum([0, *(len(source.hashes) for source in sources)])
    sides, count = _numbered(sources, starts)
    nodes = int(starts[-1])
    none = np.empty(0, np.int64)
    heads, tails = [none], [none]
    for rule in rules:
        ends = [sides.get(side.order, (none, none)) for side in (rule.left, rule.right)]
        shared = np.logical_and(*(_marked(keys, count) for _, keys in ends))
        shared = watch(rule, ends, shared) if watch else shared
        place = np.cumsum(shared) - 1 + nodes
        for entities, keys in ends:
            found = shared[keys]
            heads.append(entities[found])
            tails.append(place[keys[found]])
        nodes += int(np.count_nonzero(shared))
    head, tail = np.concatenate(heads), np.concatenate(tails)
    graph = coo_matrix((np.ones(len(head), np.int8), (head, tail)), shape=(nodes, nodes))
    _, labels = connected_components(graph, directed=False)
    # Key nodes may have taken numbers that no entity has: number the clusters through.
    labels = labels[: starts[-1]]
    used = _marked(labels, nodes)
    return Graph(sources, (np.cumsum(used) - 1)[labels], int(np.count_nonzero(used)))


def clustered(sources: Sequence[Entities], members: Numbers, names: Numbers) -> Graph:
    """Give the clusters of entities that were connected elsewhere; who is not named is alone.

    :param members: hashes of entities, each once; ``names`` are equal where two belong together, and each is
        the hash of one of its entities.
    """
    hashes = np.concatenate([np.empty(0, np.int64), *(source.hashes for source in sources)])
    # Looking hashes up in a table is ten times as fast as in an order.
    place = pc.index_in(pa.array(hashes), value_set=pa.array(members)).to_numpy(zero_copy_only=False)
    named = ~np.isnan(place)
    labels = hashes.copy()
    labels[named] = names[place[named].astype(np.int64)]
    coded = pc.dictionary_encode(pa.array(labels))
    return Graph(sources, _numbers(coded.indices), len(coded.dictionary))


def both(some: Keyed, more: Keyed) -> Keyed:
    """Put keys behind keys."""
    positions, hashes, seconds = (np.concatenate(parts) for parts in zip(some, more, strict=True))
    return positions, hashes, seconds


def all_different(numbers: Numbers) -> bool:
    """Tell whether no number stands twice; sorting is five times as fast as ``np.unique`` here."""
    ordered = np.sort(numbers)
    return not (ordered[1:] == ordered[:-1]).any()


def _numbered(
    sources: Sequence[Entities], starts: Numbers
) -> tuple[dict[tuple[int, str], tuple[Numbers, Numbers]], int]:
    """Give (entity, number of the key) for every key of every side, and how many different keys there are."""
    sides = [
        (order, positions + start, hashes, seconds)
        for source, start in zip(sources, starts, strict=False)
        for order, (positions, hashes, seconds) in source.keys.items()
    ]
    none = np.empty(0, np.int64)
    coded = pc.dictionary_encode(pa.array(np.concatenate([none, *(hashes for _, _, hashes, _ in sides)])))
    numbers = _numbers(coded.indices)
    seconds = np.concatenate([none, *(seconds for _, _, _, seconds in sides)])
    first = np.empty(len(coded.dictionary), np.int64)
    first[numbers] = seconds
    if not np.array_equal(first[numbers], seconds):
        raise HashCollisionError
    bounds = np.cumsum([len(hashes) for _, _, hashes, _ in sides])[:-1]
    parts = np.split(numbers, bounds) if sides else []
    found = {order: (entities, part) for (order, entities, _, _), part in zip(sides, parts, strict=True)}
    return found, len(first)


def _marked(numbers: Numbers, count: int) -> Flags:
    marks = np.zeros(count, np.bool_)
    marks[numbers] = True
    return marks


def entities_of(thin: pa.Table, sides: Sequence[Side]) -> Entities:
    """Read the thin rows of a source: columns id, hash, deleted, and key<n> and check<n> for each side.

    A side's columns may be called key<n>_list and check<n>_list instead, where an entity has several keys.
    """
    return Entities(
        ids=thin.column("id").cast(pa.string()).combine_chunks(),
        hashes=_numbers(thin.column("hash")),
        deleted=thin.column("deleted").to_numpy().astype(np.bool_),
        contents=_numbers(thin.column("content")),
        keys={side.order: _keys(thin, number) for number, side in enumerate(sides)},
    )


def _keys(thin: pa.Table, number: int) -> tuple[Numbers, Numbers, Numbers]:
    """Give (position of the entity, hash, second hash) of every key of a side."""
    found = [
        _of_column(*(thin.column(f"{kind}{number}{many}").combine_chunks() for kind in ("key", "check")))
        for many in ("", "_list")
        if f"key{number}{many}" in thin.column_names
    ]
    # Sources whose rows were read together have each other's columns, empty.
    positions, keys, checks = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return positions, keys, checks


def _of_column(keys: pa.Array, checks: pa.Array) -> tuple[Numbers, Numbers, Numbers]:
    if pa.types.is_list(keys.type):
        return _numbers(pc.list_parent_indices(keys)), _numbers(keys.flatten()), _numbers(checks.flatten())
    there = pc.indices_nonzero(keys.is_valid())
    return _numbers(there), _numbers(keys.drop_null()), _numbers(checks.drop_null())


def _numbers(values: pa.Array | pa.ChunkedArray) -> Numbers:
    chunked = values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])
    numbers: Numbers = chunked.to_numpy().astype(np.int64)
    return numbers


def histogram(sizes: Numbers) -> Iterator[tuple[int, int]]:
    """Count clusters by size, smallest first."""
    found, counts = np.unique(sizes, return_counts=True)
    yield from zip(found.tolist(), counts.tolist(), strict=True)
