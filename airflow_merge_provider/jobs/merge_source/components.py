"""Which entities are the same: keys that both sides of a rule have connect them, and so on transitively.

Works on hashes in the driver's memory: an entity costs some 60 bytes, a key 20.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

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
CONTENTS = "content"
Keyed = tuple[Numbers, Numbers, Numbers]
Ends = Sequence[tuple[Numbers, Numbers]]


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

    def sort(self) -> None:
        """Put the ids in order before they are asked for."""
        _ = self.by_id

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


class Meeting(NamedTuple):
    """What meets by one rule: on either side (entity, number of the key), and the keys that are on both.

    Keys that stand only once are in none of it: of these, ``alone`` says how many either side has. ``hashes``
    are those of the keys.
    """

    rule: Rule
    ends: Ends
    shared: Flags
    hashes: Numbers
    alone: tuple[int, int]


# Told of each rule what meets by it: gives the keys that link.
Watch = Callable[[Meeting], Flags]


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

    One entity that has such a key is linked with every other that has it: n links, not n squared. Deleted
    entities have no keys and stay alone.

    :raises HashCollisionError: when two keys that are not the same have one hash.
    """
    keys = _Keys.of(sources)
    none = np.empty(0, np.int64)
    heads, tails = [none], [none]
    for rule in rules:
        meeting = keys.meeting(rule)
        shared = watch(meeting) if watch else meeting.shared
        hub = np.empty(len(shared), np.int64)
        members, numbers = meeting.ends[0]
        hub[numbers] = members
        for members, numbers in meeting.ends:
            found = shared[numbers]
            heads.append(members[found])
            tails.append(hub[numbers[found]])
    return _graph(sources, np.concatenate(heads), np.concatenate(tails))


def _graph(sources: Sequence[Entities], heads: Numbers, tails: Numbers) -> Graph:
    """Give the clusters that links between entities make; who has no link is one alone."""
    entities = sum(len(source.hashes) for source in sources)
    apart = heads != tails
    heads, tails = heads[apart], tails[apart]
    linked = _marked(heads, entities) | _marked(tails, entities)
    place = np.cumsum(linked) - 1
    few = int(np.count_nonzero(linked))
    edges = coo_matrix((np.ones(len(heads), np.bool_), (place[heads], place[tails])), shape=(few, few))
    count, labels = connected_components(edges, directed=False)
    clusters = np.empty(entities, np.int64)
    clusters[linked] = labels
    clusters[~linked] = np.arange(count, count + entities - few)
    return Graph(sources, clusters, count + entities - few)


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


@dataclass(frozen=True)
class _Keys:
    """The keys that stand more than once, numbered through: no other can link two entities.

    ``sides`` gives for every side (entity, number of the key), ``alone`` how many keys of it stand only once.
    """

    hashes: Numbers
    sides: dict[Order, tuple[Numbers, Numbers]]
    alone: dict[Order, int]

    @staticmethod
    def of(sources: Sequence[Entities]) -> _Keys:
        """Find the keys that stand more than once, and number them in the order of their hashes.

        :raises HashCollisionError: when two keys that are not the same have one hash.
        """
        starts = np.cumsum([0, *(len(source.hashes) for source in sources)])
        sides = [
            (order, positions + start, hashes, seconds)
            for source, start in zip(sources, starts, strict=False)
            for order, (positions, hashes, seconds) in source.keys.items()
        ]
        none = np.empty(0, np.int64)
        hashes, seconds = (np.concatenate([none, *(side[at] for side in sides)]) for at in (2, 3))
        places = _perhaps_repeated(hashes)
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
        return _Keys(ordered[first & several], kept, alone)

    def meeting(self, rule: Rule) -> Meeting:
        """Give what meets by a rule."""
        none = np.empty(0, np.int64)
        left, right = rule.left.order, rule.right.order
        ends = [self.sides.get(each, (none, none)) for each in (left, right)]
        shared = np.logical_and(*(_marked(numbers, len(self.hashes)) for _, numbers in ends))
        alone = (0, 0) if left == right else (self.alone.get(left, 0), self.alone.get(right, 0))
        return Meeting(rule, ends, shared, self.hashes, alone)


def _perhaps_repeated(hashes: Numbers) -> Numbers:
    """Give the places of all hashes that stand more than once, and perhaps of a few that do not.

    The places travel in the lowest bits of what is sorted: sorting numbers alone is five times as fast as
    sorting places by them, and most keys stand only once.
    """
    bits = len(hashes).bit_length()
    ordered = np.sort((hashes >> bits << bits) | np.arange(len(hashes)))
    same = np.zeros(len(hashes) + 1, np.bool_)
    same[1:-1] = ordered[1:] >> bits == ordered[:-1] >> bits
    found: Numbers = ordered[same[:-1] | same[1:]] & ((1 << bits) - 1)
    return found


def _marked(numbers: Numbers, count: int) -> Flags:
    marks = np.zeros(count, np.bool_)
    marks[numbers] = True
    return marks


def entities_of(thin: pa.Table, sides: Sequence[Side]) -> Entities:
    """Read the thin rows of a source: columns id, hash, deleted, and key<n> and check<n> for each side.

    A column of lists holds several keys of an entity. Without a column content nothing is compared.
    """
    hashes = _numbers(thin.column("hash"))
    compared = CONTENTS in thin.column_names
    return Entities(
        ids=thin.column("id").cast(pa.string()).combine_chunks(),
        hashes=hashes,
        deleted=thin.column("deleted").to_numpy().astype(np.bool_),
        contents=_numbers(thin.column(CONTENTS)) if compared else np.zeros(len(hashes), np.int64),
        keys={
            side.order: _keys(*(thin.column(f"{kind}{number}").combine_chunks() for kind in ("key", "check")))
            for number, side in enumerate(sides)
        },
    )


def _keys(keys: pa.Array, checks: pa.Array) -> Keyed:
    """Give (position of the entity, hash, second hash) of every key of a side."""
    if pa.types.is_list(keys.type):
        return _numbers(pc.list_parent_indices(keys)), _numbers(keys.flatten()), _numbers(checks.flatten())
    there = pc.indices_nonzero(keys.is_valid())
    return _numbers(there), _numbers(keys.drop_null()), _numbers(checks.drop_null())


def _numbers(values: pa.Array | pa.ChunkedArray) -> Numbers:
    chunked = values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])
    numbers: Numbers = chunked.to_numpy().astype(np.int64, copy=False)
    return numbers


def histogram(sizes: Numbers) -> Iterator[tuple[int, int]]:
    """Count clusters by size, smallest first."""
    found, counts = np.unique(sizes, return_counts=True)
    yield from zip(found.tolist(), counts.tolist(), strict=True)
