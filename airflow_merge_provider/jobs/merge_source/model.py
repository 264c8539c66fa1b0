"""Data structures that the scan, cluster, diff and output packages of the merge source exchange."""

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
    """Raised if two different values have the same hash; the caller computes new hashes with another seed."""


@dataclass(frozen=True)
class Entities:
    """The projected rows of one source: IDs, hashes of IDs, deletion flags, and hashed keys per rule side.

    ``keys`` holds, by the order of a side, for each key the position of its entity, the key's hash, and a
    second hash that distinguishes two keys with the same hash. ``contents`` are hashes of the entities'
    contents; they are 0 in a run that compares nothing.
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
        """Return some of the entities, with their keys."""
        new_positions = np.cumsum(chosen) - 1
        keys = {}
        for order, (positions, hashes, seconds) in self.keys.items():
            is_kept = chosen[positions]
            keys[order] = new_positions[positions[is_kept]], hashes[is_kept], seconds[is_kept]
        return Entities(
            self.ids.filter(pa.array(chosen)),
            self.hashes[chosen],
            self.deleted[chosen],
            self.contents[chosen],
            keys,
        )

    def and_also(self, entities: Entities) -> Entities:
        """Append other entities of the same source to these."""
        keys = dict(self.keys)
        for order, (positions, hashes, seconds) in entities.keys.items():
            moved = positions + len(self.hashes), hashes, seconds
            keys[order] = concat_keys(keys[order], moved) if order in keys else moved
        return Entities(
            pa.concat_arrays([self.ids, entities.ids]),
            np.concatenate([self.hashes, entities.hashes]),
            np.concatenate([self.deleted, entities.deleted]),
            np.concatenate([self.contents, entities.contents]),
            keys,
        )

    @property
    def every_hash(self) -> Iterator[Numbers]:
        """The hashes of IDs and of keys: the values that other entities may share with these."""
        yield self.hashes
        yield from (hashes for _, hashes, _ in self.keys.values())

    @cached_property
    def by_id(self) -> Numbers:
        """The positions in the order of the IDs: by code point, as the bytes of UTF-8."""
        return to_numbers(pc.sort_indices(self.ids))

    def sort_ids(self) -> None:
        """Sort the IDs before they are used."""
        _ = self.by_id

    def find_repeated_id(self) -> tuple[str, int, int] | None:
        """Return the ID that occurs in most rows, how many those are, and how many IDs are repeated."""
        if all_different(self.hashes):
            return None
        counted = pc.value_counts(self.ids)
        counts = counted.field("counts").to_numpy(zero_copy_only=False)
        most = int(counts.argmax())
        if counts[most] == 1:
            raise HashCollisionError
        return counted.field("values")[most].as_py(), int(counts[most]), int((counts > 1).sum())


class KeyMatches(NamedTuple):
    """The matches of one rule: on either side (entity, number of the key), and the keys on both sides.

    Keys that occur only once are left out: ``unmatched_counts`` counts them for either side. ``hashes`` are
    those of the keys.
    """

    rule: Rule
    ends: Ends
    shared: Flags
    hashes: Numbers
    unmatched_counts: tuple[int, int]


@dataclass(frozen=True)
class EntityGraph:
    """The entities of all sources, numbered in the order of datasets, and the cluster of each."""

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
        """The position of each entity in that order."""
        ranks = np.empty(len(self.order), np.int64)
        ranks[self.order] = np.arange(len(self.order))
        return ranks

    @cached_property
    def sizes(self) -> Numbers:
        """The number of entities of each cluster."""
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
        """Return the dataset's offset and the ID of an entity."""
        offset = int(np.searchsorted(self.starts, number, side="right")) - 1
        return offset, self.sources[offset].ids[int(number - self.starts[offset])].as_py()


def concat_keys(some: Keyed, more: Keyed) -> Keyed:
    """Concatenate keys."""
    positions, hashes, seconds = (np.concatenate(parts) for parts in zip(some, more, strict=True))
    return positions, hashes, seconds


def all_different(numbers: Numbers) -> bool:
    """Return whether no number is repeated; sorting is five times as fast as ``np.unique`` here."""
    ordered = np.sort(numbers)
    return not (ordered[1:] == ordered[:-1]).any()


def to_numbers(values: pa.Array | pa.ChunkedArray) -> Numbers:
    chunked = values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])
    numbers: Numbers = chunked.to_numpy().astype(np.int64, copy=False)
    return numbers


NOWHERE = -1


@dataclass(frozen=True)
class SourceDelta:
    """The scan of one source: its entities, whether these are complete, and which other entities are gone."""

    entities: Entities
    complete: bool
    deleted_hashes: Numbers = field(default_factory=lambda: np.empty(0, np.int64))


@dataclass(frozen=True)
class AffectedEntities:
    """The entities that are evaluated again.

    ``sources`` are these entities by the offset of their dataset; ``former`` holds for all of them, in that
    order, the position of their previous output (``NOWHERE`` for none), and ``same`` whether their content is
    unchanged. ``touched`` marks the previous outputs that belong to them. ``changed`` counts those that
    differ.
    """

    sources: Sequence[Entities]
    former: Numbers
    same: Flags
    touched: Flags
    changed: int


class FullScanRequired(Exception):  # noqa: N818 - no error: the run goes on in full mode
    """Raised if the changes alone do not determine the result; ``reason`` goes into the report."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class PreviousState:
    """The outputs as they are in the target, and their members as entities of the current datasets.

    It holds all outputs, or those that share some entities or keys. An output is identified by its
    ``_updated``, which no two rows share. ``sizes`` counts all members, also those of datasets that are no
    longer merged. ``outputs`` holds for every entity of ``entities``, by the offset of its dataset, the
    position of its output. ``stable`` are stable IDs, -1 if there is none.
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
    """The outputs of a run: the position of every cluster among them, and which clusters are outputs."""

    graph: EntityGraph
    number: Numbers
    is_output: Flags

    @property
    def labels(self) -> pa.Table:
        """The labels of all outputs."""
        return self.label_entities(self.is_output)

    @property
    def outputs(self) -> int:
        """The number of outputs."""
        return int(self.is_output.sum())

    @property
    def live(self) -> Flags:
        """The clusters that are outputs and not deleted."""
        return self.is_output & ~self.graph.deleted[self.graph.firsts]

    def label_entities(self, is_selected: Flags) -> pa.Table:
        """Return the output number of every entity of some clusters, by the hash of its ID.

        It is shifted left by one; the lowest bit is set if the output has more members than this one.
        """
        clusters = self.graph.clusters
        label = (self.number[clusters] << 1) | (self.graph.sizes[clusters] > 1)
        chosen = is_selected[clusters]
        return pa.table({HASH: self.graph.hashes[chosen], LABEL: label[chosen]})

    def find_offsets(self, hashes: pa.ChunkedArray) -> set[int]:
        """Return the offsets of the datasets that entities belong to, by the hashes of their IDs."""
        chosen = np.isin(self.graph.hashes, hashes.to_numpy())
        return {at for at, (start, end) in enumerate(pairwise(self.graph.starts)) if chosen[start:end].any()}

    def build_ids(self, is_selected: Flags, identity: str) -> pa.Array:
        """Return the IDs of some clusters, in the order of the clusters' numbers."""
        graph = self.graph
        if identity == "first":
            return concat_ids(graph).take(pa.array(graph.firsts[is_selected]))
        members = graph.order[is_selected[graph.clusters[graph.order]]]
        offsets = np.searchsorted(graph.starts, members, side="right") - 1
        parts = pc.binary_join_element_wise(
            pc.cast(pa.array(offsets), pa.string()), concat_ids(graph).take(pa.array(members)), "|"
        )
        listed = pa.table({"cluster": graph.clusters[members], "part": parts})
        # One thread, so that lists keep the order of rows.
        lists = listed.group_by("cluster", use_threads=False).aggregate([("part", "list")]).sort_by("cluster")
        return pc.binary_join(lists.column("part_list").combine_chunks(), "|")

    def find_largest(self, count: int, most: int) -> list[tuple[int, list[tuple[int, str]]]]:
        """Return the largest clusters: the number of members of each, and the first ones as (offset, ID).

        Of clusters of one only the first is returned, and only if there are no others.
        """
        sizes, ranks = self.graph.sizes, self.graph.ranks[self.graph.firsts]
        if not len(sizes):
            return []
        # The number of clusters with at least this many members: sorting all of them takes ten times as long.
        larger = np.cumsum(np.bincount(sizes)[::-1])[::-1]
        least = max(_SEVERAL, int(np.flatnonzero(larger >= min(count, len(sizes)))[-1]))
        chosen = np.flatnonzero(sizes >= least)
        if not len(chosen):
            chosen = np.array([ranks.argmin()])
        first = chosen[np.lexsort((ranks[chosen], -sizes[chosen]))][:count]
        return [(int(sizes[cluster]), self.graph.list_members(int(cluster), most)) for cluster in first]

    @property
    def live_sizes(self) -> Numbers:
        """The number of members of each live output."""
        return self.graph.sizes[self.live]


def concat_ids(graph: EntityGraph) -> pa.Array:
    return pa.chunked_array([source.ids for source in graph.sources], pa.string()).combine_chunks()


@dataclass(frozen=True)
class Difference:
    """The outputs that may differ from the previous outputs.

    ``labels`` are those of the entities to render, ``sizes`` the number of members by the position of the
    output, ``ids`` the IDs of these outputs. ``retired`` are previous live outputs whose ID has ended, in the
    order of their IDs: with their numbers and whether one of their members is still alive. ``emptied`` are
    the IDs of deletes whose entity is in another output now. ``evaluated`` are the numbers of the outputs
    that were evaluated again. ``changed`` counts changed entities, ``next_number`` is above all numbers that
    were read. ``is_rendered`` marks clusters that are rendered, ``still`` unchanged previous outputs.
    """

    labels: pa.Table
    sizes: dict[int, int]
    ids: pa.Array
    retired: pa.Table
    emptied: pa.Array
    evaluated: Numbers
    changed: int
    next_number: int
    is_rendered: Flags
    still: Flags
