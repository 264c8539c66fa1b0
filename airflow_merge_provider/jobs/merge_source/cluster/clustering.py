"""Cluster entities: connect them by shared keys, and assign outputs to the clusters, with their checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_merge_provider.core.merge_source import refusals
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.equality import get_rule_setting
from airflow_merge_provider.core.merge_source.identity import composite_id
from airflow_merge_provider.core.merge_source.overrides import Pair
from airflow_merge_provider.core.merge_source.refusals import HighFanoutKey
from airflow_merge_provider.jobs.merge_source.cluster.components import MatchCallback
from airflow_merge_provider.jobs.merge_source.cluster.min_cut import cut_clusters
from airflow_merge_provider.jobs.merge_source.cluster.quarantine import LinkStatistics
from airflow_merge_provider.jobs.merge_source.model import (
    Entities,
    EntityGraph,
    Flags,
    HashCollisionError,
    Numbers,
    OutputAssignment,
    all_different,
    concat_ids,
)


def assign_outputs(graph: EntityGraph, config: MergeSourceConfig) -> OutputAssignment:
    """Decide which clusters are outputs, and number the outputs in the order of their first members.

    :raises DataError: if clusters have more than ``max_merged`` members, or outputs share an ID.
    :raises HashCollisionError: if two entities have the same hash.
    """
    if not all_different(graph.hashes):
        raise HashCollisionError
    names = config.dataset_ids
    _check_size(graph, config.most_merged, names)
    firsts = graph.firsts
    deleted = graph.deleted[firsts]
    is_output = np.ones(graph.count, np.bool_)
    if config.identity == "first":
        is_output = _find_owners(graph, firsts, deleted, config)
    elif any(pc.any(pc.match_substring(source.ids, "|")).as_py() for source in graph.sources):
        _check_composite(graph, firsts, names)
    return OutputAssignment(graph, _number_clusters(graph, firsts, is_output), is_output)


def _number_clusters(graph: EntityGraph, firsts: Numbers, is_output: Flags) -> Numbers:
    """Return the position of each kept cluster in the order of first members."""
    ranks = graph.ranks[firsts]
    leads = np.zeros(len(graph.ranks), np.bool_)
    leads[ranks[is_output]] = True
    numbers: Numbers = (np.cumsum(leads) - 1)[ranks]
    return numbers


def _check_size(graph: EntityGraph, most: int | None, names: Sequence[str]) -> None:
    if most is None or not graph.count or graph.sizes.max() <= most:
        return
    over = np.flatnonzero(graph.sizes > most)
    worst = over[np.argsort(-graph.sizes[over], kind="stable")][: refusals.SHOWN]
    oversized = []
    for cluster in worst:
        first = graph.list_members(int(cluster), refusals.SHOWN_MEMBERS)
        oversized.append(
            refusals.OversizedCluster(
                int(graph.sizes[cluster]), [(names[offset], id_) for offset, id_ in first]
            )
        )
    raise refusals.refuse_oversized_clusters(most, oversized, len(over))


def _find_owners(graph: EntityGraph, firsts: Numbers, deleted: Flags, config: MergeSourceConfig) -> Flags:
    """Return which output owns an ID that several outputs have: the live one, else the first deleted one."""
    ids = concat_ids(graph)
    if config.version == 1 and len(repeated_ids := pc.unique(ids.filter(pa.array(~_mark_first_seen(ids))))):
        raise refusals.refuse_shared_ids(repeated_ids[: refusals.SHOWN].to_pylist(), len(repeated_ids))
    order = np.argsort(np.where(deleted, len(ids), 0) + graph.ranks[firsts], kind="stable")
    output_ids = ids.take(pa.array(firsts[order]))
    first_seen = _mark_first_seen(output_ids)
    clash = ~first_seen & ~deleted[order]
    if clash.any():
        duplicate_ids = pc.unique(output_ids.filter(pa.array(clash)))
        overlaps = []
        for id_ in duplicate_ids[: refusals.SHOWN]:
            positions = np.flatnonzero(pc.equal(output_ids, id_).to_numpy(zero_copy_only=False))
            first_entity, second_entity = (
                _name_entity(graph, config.dataset_ids, firsts[order[position]]) for position in positions[:2]
            )
            overlaps.append(refusals.OverlappingClusters(id_.as_py(), first_entity, second_entity))
        raise refusals.refuse_duplicate_outputs(overlaps, len(duplicate_ids), config.identity)
    is_output = np.zeros(graph.count, np.bool_)
    is_output[order] = first_seen
    return is_output


def _mark_first_seen(ids: pa.Array) -> Flags:
    """Mark the first occurrence of every ID."""
    codes = pc.dictionary_encode(ids).indices.to_numpy(zero_copy_only=False)
    is_first = np.zeros(len(codes), np.bool_)
    is_first[np.unique(codes, return_index=True)[1]] = True
    return is_first


def _check_composite(graph: EntityGraph, firsts: Numbers, names: Sequence[str]) -> None:
    """Check the composite IDs: if entity IDs contain ``|``, two clusters may get the same composite ID."""
    members: dict[int, list[tuple[int, str]]] = {}
    for number in graph.order:
        members.setdefault(int(graph.clusters[number]), []).append(graph.find_entity(number))
    owners: dict[str, list[int]] = {}
    for cluster, cluster_members in members.items():
        owners.setdefault(composite_id(cluster_members), []).append(cluster)
    overlaps = [
        refusals.OverlappingClusters(
            id_, *(_name_entity(graph, names, firsts[owner]) for owner in clusters[:2])
        )
        for id_, clusters in owners.items()
        if len(clusters) > 1
    ]
    if overlaps:
        raise refusals.refuse_duplicate_outputs(overlaps[: refusals.SHOWN], len(overlaps), "composite")


def _name_entity(graph: EntityGraph, names: Sequence[str], number: int) -> tuple[str, str]:
    offset, id_ = graph.find_entity(number)
    return names[offset], id_


# Connects entities, and calls back with the key matches of each rule.
ConnectCallback = Callable[[Sequence[Entities], MatchCallback], EntityGraph]
# Returns the values that link nothing because they link too many entities, or stops the run.
QuarantineCallback = Callable[[EntityGraph, LinkStatistics], Sequence[HighFanoutKey]]


@dataclass(frozen=True)
class ClusteringResult:
    """The outputs, and the findings of the clustering.

    ``quarantined`` are values that would have linked too many entities, ``cut`` pairs that an override keeps
    apart although the rules link them.
    """

    assignment: OutputAssignment
    link_statistics: LinkStatistics
    quarantined: Sequence[HighFanoutKey] = ()
    cut: Sequence[Pair] = ()


def cluster_entities(
    sources: Sequence[Entities],
    config: MergeSourceConfig,
    connect: ConnectCallback,
    judge: QuarantineCallback,
    different: Sequence[Pair] = (),
) -> ClusteringResult:
    """Connect entities by shared keys, and separate the pairs that overrides declare ``different``.

    :raises DataError: if an output is invalid, or a value links too many entities.
    :raises HashCollisionError: if two values have the same hash.
    """
    keep_links = bool(different) or config.metrics is not None
    evidence = LinkStatistics(partial(get_rule_setting, config.max_key_fanout), keep_links=keep_links)
    graph = connect(sources, evidence)
    quarantined = judge(graph, evidence)
    cut: Sequence[Pair] = ()
    if different:
        apart = cut_clusters(graph, evidence.links, different, config.dataset_ids)
        graph, cut = apart.graph, apart.cut
    return ClusteringResult(assign_outputs(graph, config), evidence, quarantined, cut)
