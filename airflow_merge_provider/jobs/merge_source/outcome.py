"""Which outputs do the clusters make: their order and numbers, and what stops the run before it writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_merge_provider.core.merge_source import refusals
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.identity import composite_id
from airflow_merge_provider.jobs.merge_source.components import (
    Flags,
    Graph,
    HashCollisionError,
    Numbers,
    all_different,
)

HASH, LABEL = "__merge_hash", "__merge_label"
_SEVERAL = 2


@dataclass(frozen=True)
class Outcome:
    """The outputs of a run: the place of every cluster among them, and which clusters are output at all."""

    graph: Graph
    number: Numbers
    kept: Flags

    @property
    def labels(self) -> pa.Table:
        """The labels of all outputs."""
        return self.labelled(self.kept)

    @property
    def outputs(self) -> int:
        """How many outputs there are."""
        return int(self.kept.sum())

    @property
    def live(self) -> Flags:
        """Which clusters are outputs that are not deleted."""
        return self.kept & ~self.graph.deleted[self.graph.firsts]

    def labelled(self, wanted: Flags) -> pa.Table:
        """Say for every entity of some clusters, by the hash of its id, the number of its output.

        It is shifted left by one; the lowest bit is set where the output has more members than this one.
        """
        clusters = self.graph.clusters
        label = (self.number[clusters] << 1) | (self.graph.sizes[clusters] > 1)
        chosen = wanted[clusters]
        return pa.table({HASH: self.graph.hashes[chosen], LABEL: label[chosen]})

    def offsets(self, hashes: pa.ChunkedArray) -> set[int]:
        """Name the datasets that entities belong to, by the hashes of their ids."""
        chosen = np.isin(self.graph.hashes, hashes.to_numpy())
        return {at for at, (one, end) in enumerate(pairwise(self.graph.starts)) if chosen[one:end].any()}

    def ids(self, wanted: Flags, identity: str) -> pa.Array:
        """Give the ids of some clusters, in the order of the clusters' numbers."""
        graph = self.graph
        if identity == "first":
            return _ids(graph).take(pa.array(graph.firsts[wanted]))
        members = graph.order[wanted[graph.clusters[graph.order]]]
        offsets = np.searchsorted(graph.starts, members, side="right") - 1
        parts = pc.binary_join_element_wise(
            pc.cast(pa.array(offsets), pa.string()), _ids(graph).take(pa.array(members)), "|"
        )
        listed = pa.table({"cluster": graph.clusters[members], "part": parts})
        # One thread: lists keep the order of rows.
        lists = listed.group_by("cluster", use_threads=False).aggregate([("part", "list")]).sort_by("cluster")
        return pc.binary_join(lists.column("part_list").combine_chunks(), "|")

    def largest(self, count: int, most: int) -> list[tuple[int, list[tuple[int, str]]]]:
        """Give the largest clusters: how many members each has, and the first ones as (offset, id).

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
        return [(int(sizes[cluster]), self.graph.members(int(cluster), most)) for cluster in first]

    @property
    def live_sizes(self) -> Numbers:
        """How many members each live output has."""
        return self.graph.sizes[self.live]


def outcome(graph: Graph, config: MergeSourceConfig) -> Outcome:
    """Decide which outputs there are, and number them in the order of their first members.

    :raises DataError: when clusters have more than ``max_merged`` members, or outputs have one id.
    :raises HashCollisionError: when two entities have one hash.
    """
    if not all_different(graph.hashes):
        raise HashCollisionError
    names = config.dataset_ids
    _check_size(graph, config.most_merged, names)
    firsts = graph.firsts
    deleted = graph.deleted[firsts]
    kept = np.ones(graph.count, np.bool_)
    if config.identity == "first":
        kept = _owners(graph, firsts, deleted, config)
    elif any(pc.any(pc.match_substring(source.ids, "|")).as_py() for source in graph.sources):
        _check_composite(graph, firsts, names)
    return Outcome(graph, _numbered(graph, firsts, kept), kept)


def _numbered(graph: Graph, firsts: Numbers, kept: Flags) -> Numbers:
    """Give each kept cluster its place in the order of first members."""
    ranks = graph.ranks[firsts]
    leads = np.zeros(len(graph.ranks), np.bool_)
    leads[ranks[kept]] = True
    numbers: Numbers = (np.cumsum(leads) - 1)[ranks]
    return numbers


def _check_size(graph: Graph, most: int | None, names: Sequence[str]) -> None:
    if most is None or not graph.count or graph.sizes.max() <= most:
        return
    over = np.flatnonzero(graph.sizes > most)
    worst = over[np.argsort(-graph.sizes[over], kind="stable")][: refusals.SHOWN]
    crowds = []
    for each in worst:
        first = graph.members(int(each), refusals.SHOWN_MEMBERS)
        crowds.append(refusals.Crowd(int(graph.sizes[each]), [(names[offset], id_) for offset, id_ in first]))
    raise refusals.over_merged(most, crowds, len(over))


def _owners(graph: Graph, firsts: Numbers, deleted: Flags, config: MergeSourceConfig) -> Flags:
    """Decide who owns an id that several outputs have: the live one, else the first deleted one."""
    ids = _ids(graph)
    if config.version == 1 and len(twice := pc.unique(ids.filter(pa.array(~_first_seen(ids))))):
        raise refusals.shared_ids(twice[: refusals.SHOWN].to_pylist(), len(twice))
    order = np.argsort(np.where(deleted, len(ids), 0) + graph.ranks[firsts], kind="stable")
    own = ids.take(pa.array(firsts[order]))
    first_seen = _first_seen(own)
    clash = ~first_seen & ~deleted[order]
    if clash.any():
        wanted = pc.unique(own.filter(pa.array(clash)))
        overlaps = []
        for id_ in wanted[: refusals.SHOWN]:
            same = np.flatnonzero(pc.equal(own, id_).to_numpy(zero_copy_only=False))
            one, other = (_named(graph, config.dataset_ids, firsts[order[each]]) for each in same[:2])
            overlaps.append(refusals.Overlap(id_.as_py(), one, other))
        raise refusals.duplicate_outputs(overlaps, len(wanted), config.identity)
    kept = np.zeros(graph.count, np.bool_)
    kept[order] = first_seen
    return kept


def _ids(graph: Graph) -> pa.Array:
    return pa.chunked_array([source.ids for source in graph.sources], pa.string()).combine_chunks()


def _first_seen(ids: pa.Array) -> Flags:
    """Mark the first place of every id."""
    codes = pc.dictionary_encode(ids).indices.to_numpy(zero_copy_only=False)
    marks = np.zeros(len(codes), np.bool_)
    marks[np.unique(codes, return_index=True)[1]] = True
    return marks


def _check_composite(graph: Graph, firsts: Numbers, names: Sequence[str]) -> None:
    """Build the composite ids: where entity ids contain ``|`` two clusters may come to one."""
    members: dict[int, list[tuple[int, str]]] = {}
    for number in graph.order:
        members.setdefault(int(graph.clusters[number]), []).append(graph.entity(number))
    owners: dict[str, list[int]] = {}
    for cluster, inside in members.items():
        owners.setdefault(composite_id(inside), []).append(cluster)
    overlaps = [
        refusals.Overlap(id_, *(_named(graph, names, firsts[each]) for each in clusters[:2]))
        for id_, clusters in owners.items()
        if len(clusters) > 1
    ]
    if overlaps:
        raise refusals.duplicate_outputs(overlaps[: refusals.SHOWN], len(overlaps), "composite")


def _named(graph: Graph, names: Sequence[str], number: int) -> tuple[str, str]:
    offset, id_ = graph.entity(number)
    return names[offset], id_
