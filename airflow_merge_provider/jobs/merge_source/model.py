"""The values that pass between the rooms of a merge source: scan, cluster, diff and output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from airflow_merge_provider.core.merge_source.equality import Rule

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
    def create_empty() -> Entities:
        """Return a source that has no entities."""
        empty = np.empty(0, np.int64)
        return Entities(pa.array([], pa.string()), empty, empty.astype(np.bool_), empty, {})

    def select_entities(self, chosen: Flags) -> Entities:
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
            keys[order] = concat_keys(keys[order], moved) if order in keys else moved
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
        return to_numbers(pc.sort_indices(self.ids))

    def sort_ids(self) -> None:
        """Put the ids in order before they are asked for."""
        _ = self.by_id

    def find_repeated_id(self) -> tuple[str, int, int] | None:
        """Return the id that stands in most rows, how many those are, and how many ids are in several."""
        if all_different(self.hashes):
            return None
        counted = pc.value_counts(self.ids)
        counts = counted.field("counts").to_numpy(zero_copy_only=False)
        most = int(counts.argmax())
        if counts[most] == 1:
            raise HashCollisionError
        return counted.field("values")[most].as_py(), int(counts[most]), int((counts > 1).sum())


class KeyMatches(NamedTuple):
    """What meets by one rule: on either side (entity, number of the key), and the keys that are on both.

    Keys that stand only once are in none of it: of these, ``alone`` says how many either side has. ``hashes``
    are those of the keys.
    """

    rule: Rule
    ends: Ends
    shared: Flags
    hashes: Numbers
    alone: tuple[int, int]


@dataclass(frozen=True)
class EntityGraph:
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

    def list_members(self, cluster: int, most: int | None = None) -> list[tuple[int, str]]:
        """Return the members of a cluster in order, as (offset of the dataset, ID); at most ``most``."""
        inside = np.flatnonzero(self.clusters == cluster)
        inside = inside[np.argsort(self.ranks[inside])]
        return [self.find_entity(number) for number in inside[:most]]

    def find_entity(self, number: int) -> tuple[int, str]:
        """Return the dataset's offset and the id of an entity."""
        offset = int(np.searchsorted(self.starts, number, side="right")) - 1
        return offset, self.sources[offset].ids[int(number - self.starts[offset])].as_py()


def concat_keys(some: Keyed, more: Keyed) -> Keyed:
    """Put keys behind keys."""
    positions, hashes, seconds = (np.concatenate(parts) for parts in zip(some, more, strict=True))
    return positions, hashes, seconds


def all_different(numbers: Numbers) -> bool:
    """Return whether no number stands twice; sorting is five times as fast as ``np.unique`` here."""
    ordered = np.sort(numbers)
    return not (ordered[1:] == ordered[:-1]).any()


def to_numbers(values: pa.Array | pa.ChunkedArray) -> Numbers:
    chunked = values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])
    numbers: Numbers = chunked.to_numpy().astype(np.int64, copy=False)
    return numbers


NOWHERE = -1


@dataclass(frozen=True)
class SourceDelta:
    """What was read of one source: its entities, whether those are all it has, and who else is no more."""

    entities: Entities
    complete: bool
    gone: Numbers = field(default_factory=lambda: np.empty(0, np.int64))


@dataclass(frozen=True)
class AffectedEntities:
    """The part of everything that is evaluated anew.

    ``sources`` are its entities by the offset of their dataset; ``former`` says, for all of them in that
    order, in which output of the past each was (``NOWHERE`` for none), and ``same`` whether it still says the
    same. ``touched`` marks the outputs of the past that belong to it. ``changed`` counts those that differ.
    """

    sources: Sequence[Entities]
    former: Numbers
    same: Flags
    touched: Flags
    changed: int


class FullScanRequired(Exception):  # noqa: N818 - no error: the run goes on in full mode
    """Raised if the changes alone do not tell the result; ``reason`` goes into the report."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class PreviousState:
    """The outputs as they stand in the target, and their members as entities of the datasets of today.

    All of them, or those that some entities and keys reach. An output is known by its ``_updated``, which no
    two rows share. ``sizes`` counts all members, also those of datasets that are no longer merged.
    ``outputs`` says for every entity of ``entities``, by the offset of its dataset, where its output stands.
    ``stable`` are stable ids, -1 where there is none.
    """

    numbers: Numbers
    ids: pa.StringArray
    deleted: Flags
    sizes: Numbers
    entities: Sequence[Entities]
    outputs: Sequence[Numbers]
    stable: Numbers


HASH, LABEL = "__merge_hash", "__merge_label"
_SEVERAL = 2


@dataclass(frozen=True)
class OutputAssignment:
    """The outputs of a run: the place of every cluster among them, and which clusters are output at all."""

    graph: EntityGraph
    number: Numbers
    kept: Flags

    @property
    def labels(self) -> pa.Table:
        """The labels of all outputs."""
        return self.label_entities(self.kept)

    @property
    def outputs(self) -> int:
        """How many outputs there are."""
        return int(self.kept.sum())

    @property
    def live(self) -> Flags:
        """Which clusters are outputs that are not deleted."""
        return self.kept & ~self.graph.deleted[self.graph.firsts]

    def label_entities(self, wanted: Flags) -> pa.Table:
        """Return the output number of every entity of some clusters, by the hash of its ID.

        It is shifted left by one; the lowest bit is set where the output has more members than this one.
        """
        clusters = self.graph.clusters
        label = (self.number[clusters] << 1) | (self.graph.sizes[clusters] > 1)
        chosen = wanted[clusters]
        return pa.table({HASH: self.graph.hashes[chosen], LABEL: label[chosen]})

    def find_offsets(self, hashes: pa.ChunkedArray) -> set[int]:
        """Name the datasets that entities belong to, by the hashes of their ids."""
        chosen = np.isin(self.graph.hashes, hashes.to_numpy())
        return {at for at, (one, end) in enumerate(pairwise(self.graph.starts)) if chosen[one:end].any()}

    def build_ids(self, wanted: Flags, identity: str) -> pa.Array:
        """Return the ids of some clusters, in the order of the clusters' numbers."""
        graph = self.graph
        if identity == "first":
            return concat_ids(graph).take(pa.array(graph.firsts[wanted]))
        members = graph.order[wanted[graph.clusters[graph.order]]]
        offsets = np.searchsorted(graph.starts, members, side="right") - 1
        parts = pc.binary_join_element_wise(
            pc.cast(pa.array(offsets), pa.string()), concat_ids(graph).take(pa.array(members)), "|"
        )
        listed = pa.table({"cluster": graph.clusters[members], "part": parts})
        # One thread: lists keep the order of rows.
        lists = listed.group_by("cluster", use_threads=False).aggregate([("part", "list")]).sort_by("cluster")
        return pc.binary_join(lists.column("part_list").combine_chunks(), "|")

    def find_largest(self, count: int, most: int) -> list[tuple[int, list[tuple[int, str]]]]:
        """Return the largest clusters: how many members each has, and the first ones as (offset, id).

        Of those that are alone only the first is given, and only where there are no others.
        """
        sizes, ranks = self.graph.sizes, self.graph.ranks[self.graph.firsts]
        if not len(sizes):
            return []
        # How many clusters have so many members or more: sorting all of them takes ten times as long.
        larger = np.cumsum(np.bincount(sizes)[::-1])[::-1]
        least = max(_SEVERAL, int(np.flatnonzero(larger >= min(count, len(sizes)))[-1]))
        chosen = np.flatnonzero(sizes >= least)
        if not len(chosen):
            chosen = np.array([ranks.argmin()])
        first = chosen[np.lexsort((ranks[chosen], -sizes[chosen]))][:count]
        return [(int(sizes[cluster]), self.graph.list_members(int(cluster), most)) for cluster in first]

    @property
    def live_sizes(self) -> Numbers:
        """How many members each live output has."""
        return self.graph.sizes[self.live]


def concat_ids(graph: EntityGraph) -> pa.Array:
    return pa.chunked_array([source.ids for source in graph.sources], pa.string()).combine_chunks()


@dataclass(frozen=True)
class Difference:
    """The outputs that may differ from those of the past.

    ``labels`` are those of the entities to render, ``sizes`` the number of members by the place of the
    output, ``ids`` the ids these outputs have. ``retired`` are live outputs of the past whose id is none any
    more, in the order of their ids: with their numbers and whether a member of theirs lives on. ``emptied``
    are the ids of deletes whose entity is elsewhere now. ``looked_at`` are the numbers of the outputs that
    were evaluated anew. ``changed`` counts changed entities, ``next_number`` is above all numbers that were
    read. ``wanted`` marks clusters that are rendered, ``still`` outputs of the past that are as they were.
    """

    labels: pa.Table
    sizes: dict[int, int]
    ids: pa.Array
    retired: pa.Table
    emptied: pa.Array
    looked_at: Numbers
    changed: int
    next_number: int
    wanted: Flags
    still: Flags
