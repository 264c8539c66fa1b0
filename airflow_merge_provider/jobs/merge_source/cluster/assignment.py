"""Assign outputs to clusters: their order and numbers, and the checks that stop the run before it writes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_merge_provider.core.merge_source import refusals
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.identity import composite_id
from airflow_merge_provider.jobs.merge_source.model import (
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
    kept = np.ones(graph.count, np.bool_)
    if config.identity == "first":
        kept = _find_owners(graph, firsts, deleted, config)
    elif any(pc.any(pc.match_substring(source.ids, "|")).as_py() for source in graph.sources):
        _check_composite(graph, firsts, names)
    return OutputAssignment(graph, _number_clusters(graph, firsts, kept), kept)


def _number_clusters(graph: EntityGraph, firsts: Numbers, kept: Flags) -> Numbers:
    """Return the position of each kept cluster in the order of first members."""
    ranks = graph.ranks[firsts]
    leads = np.zeros(len(graph.ranks), np.bool_)
    leads[ranks[kept]] = True
    numbers: Numbers = (np.cumsum(leads) - 1)[ranks]
    return numbers


def _check_size(graph: EntityGraph, most: int | None, names: Sequence[str]) -> None:
    if most is None or not graph.count or graph.sizes.max() <= most:
        return
    over = np.flatnonzero(graph.sizes > most)
    worst = over[np.argsort(-graph.sizes[over], kind="stable")][: refusals.SHOWN]
    crowds = []
    for each in worst:
        first = graph.list_members(int(each), refusals.SHOWN_MEMBERS)
        crowds.append(
            refusals.OversizedCluster(int(graph.sizes[each]), [(names[offset], id_) for offset, id_ in first])
        )
    raise refusals.refuse_oversized_clusters(most, crowds, len(over))


def _find_owners(graph: EntityGraph, firsts: Numbers, deleted: Flags, config: MergeSourceConfig) -> Flags:
    """Return which output owns an ID that several outputs have: the live one, else the first deleted one."""
    ids = concat_ids(graph)
    if config.version == 1 and len(twice := pc.unique(ids.filter(pa.array(~_mark_first_seen(ids))))):
        raise refusals.refuse_shared_ids(twice[: refusals.SHOWN].to_pylist(), len(twice))
    order = np.argsort(np.where(deleted, len(ids), 0) + graph.ranks[firsts], kind="stable")
    own = ids.take(pa.array(firsts[order]))
    first_seen = _mark_first_seen(own)
    clash = ~first_seen & ~deleted[order]
    if clash.any():
        wanted = pc.unique(own.filter(pa.array(clash)))
        overlaps = []
        for id_ in wanted[: refusals.SHOWN]:
            same = np.flatnonzero(pc.equal(own, id_).to_numpy(zero_copy_only=False))
            one, other = (_name_entity(graph, config.dataset_ids, firsts[order[each]]) for each in same[:2])
            overlaps.append(refusals.OverlappingClusters(id_.as_py(), one, other))
        raise refusals.refuse_duplicate_outputs(overlaps, len(wanted), config.identity)
    kept = np.zeros(graph.count, np.bool_)
    kept[order] = first_seen
    return kept


def _mark_first_seen(ids: pa.Array) -> Flags:
    """Mark the first occurrence of every ID."""
    codes = pc.dictionary_encode(ids).indices.to_numpy(zero_copy_only=False)
    marks = np.zeros(len(codes), np.bool_)
    marks[np.unique(codes, return_index=True)[1]] = True
    return marks


def _check_composite(graph: EntityGraph, firsts: Numbers, names: Sequence[str]) -> None:
    """Check the composite IDs: if entity IDs contain ``|``, two clusters may get the same composite ID."""
    members: dict[int, list[tuple[int, str]]] = {}
    for number in graph.order:
        members.setdefault(int(graph.clusters[number]), []).append(graph.find_entity(number))
    owners: dict[str, list[int]] = {}
    for cluster, inside in members.items():
        owners.setdefault(composite_id(inside), []).append(cluster)
    overlaps = [
        refusals.OverlappingClusters(
            id_, *(_name_entity(graph, names, firsts[each]) for each in clusters[:2])
        )
        for id_, clusters in owners.items()
        if len(clusters) > 1
    ]
    if overlaps:
        raise refusals.refuse_duplicate_outputs(overlaps[: refusals.SHOWN], len(overlaps), "composite")


def _name_entity(graph: EntityGraph, names: Sequence[str], number: int) -> tuple[str, str]:
    offset, id_ = graph.find_entity(number)
    return names[offset], id_
