"""Where does a cluster fall apart when two of its members must not be one: at its weakest place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.sparse import coo_matrix, csr_matrix
from scipy.sparse.csgraph import breadth_first_order, connected_components, maximum_flow

from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_source.overrides import Pair, is_override
from airflow_merge_provider.jobs.merge_source.cluster.link_statistics import RuleLinks
from airflow_merge_provider.jobs.merge_source.model import EntityGraph, Numbers

# No number of shared values outweighs a person's decision.
_OVERRIDE_WEIGHT = 1_000_000
_PAIRS_MAX = 5_000_000


@dataclass(frozen=True)
class CutResult:
    """The clusters after the cuts, and the pairs that the rules would have made one."""

    graph: EntityGraph
    cut: Sequence[Pair]


def cut_clusters(
    graph: EntityGraph, links: Sequence[RuleLinks], different: Sequence[Pair], names: Sequence[str]
) -> CutResult:
    """Cut clusters so that pairs that are decided to be different are not one.

    A link between two entities is as strong as the values they share are many; of all ways to cut the pair
    apart the one through the fewest values is taken. Source: merge source spec §10.3.

    :raises DataError: when there is more than one such way, or decisions keep the pair together.
    """
    wanted = [(pair, numbers) for pair in different if (numbers := _find_numbers(graph, pair)) is not None]
    clusters = graph.clusters.copy()
    count = graph.count
    cut: list[Pair] = []
    by_cluster: dict[int, list[tuple[Pair, tuple[int, int]]]] = {}
    for pair, numbers in wanted:
        if clusters[numbers[0]] == clusters[numbers[1]]:
            by_cluster.setdefault(int(clusters[numbers[0]]), []).append((pair, numbers))
    for cluster, pairs in sorted(by_cluster.items()):
        members = np.flatnonzero(graph.clusters == cluster)
        edges = _build_edges(members, links)
        for pair, numbers in pairs:
            ends = tuple(int(np.searchsorted(members, number)) for number in numbers)
            if _contract_same(edges, ends[0], ends[1]):
                edges = _split_components(edges, ends[0], ends[1], pair, names)
                cut.append(pair)
        pieces, labels = connected_components(edges, directed=False)
        clusters[members] = np.where(labels == 0, cluster, count + labels - 1)
        count += int(pieces) - 1
    return CutResult(replace(graph, clusters=clusters, count=count), cut)


def _find_numbers(graph: EntityGraph, pair: Pair) -> tuple[int, int] | None:
    """Find two entities; None where one of them is not there."""
    found = []
    for dataset, id_ in pair:
        place = pc.index(graph.sources[dataset].ids, pa.scalar(id_)).as_py()
        if place < 0:
            return None
        found.append(int(graph.starts[dataset]) + place)
    return found[0], found[1]


def _build_edges(members: Numbers, links: Sequence[RuleLinks]) -> csr_matrix:
    """Give the strength of every link inside a cluster, by the places of its two entities."""
    heads, tails, strengths = [], [], []
    pairs = 0
    for link in links:
        left, right = (_list_inside(members, end) for end in link.ends)
        shared = np.intersect1d(left[1], right[1])
        for key in shared:
            one, other = left[0][left[1] == key], right[0][right[1] == key]
            pairs += len(one) * len(other)
            if pairs > _PAIRS_MAX:
                raise _refuse("a cluster with a pair that is different has too many links to be cut")
            head, tail = np.repeat(one, len(other)), np.tile(other, len(one))
            # On one and the same side of a rule every pair is met twice.
            once = head < tail if link.rule.left.order == link.rule.right.order else head != tail
            heads.append(head[once])
            tails.append(tail[once])
            strength = _OVERRIDE_WEIGHT if is_override(link.rule.left) else 1
            strengths.append(np.full(int(once.sum()), strength, np.int32))
    none = np.empty(0, np.int32)
    head, tail, strength_of = (np.concatenate([none, *parts]) for parts in (heads, tails, strengths))
    both = np.concatenate([head, tail]), np.concatenate([tail, head])
    shape = (len(members), len(members))
    return coo_matrix((np.concatenate([strength_of, strength_of]), both), shape=shape).tocsr()


def _list_inside(members: Numbers, end: tuple[Numbers, Numbers]) -> tuple[Numbers, Numbers]:
    """Keep the keys of a cluster's entities, these by their places in it."""
    entities, keys = end
    place = np.minimum(np.searchsorted(members, entities), len(members) - 1)
    mine = members[place] == entities
    return place[mine], keys[mine]


def _contract_same(edges: csr_matrix, one: int, other: int) -> bool:
    labels = connected_components(edges, directed=False)[1]
    return bool(labels[one] == labels[other])


def _split_components(
    edges: csr_matrix, one: int, other: int, pair: Pair, names: Sequence[str]
) -> csr_matrix:
    """Take the weakest links between two entities away."""
    told = " and ".join(f"{names[member.dataset]}/{member.id}" for member in pair)
    flow = maximum_flow(edges, one, other)
    if flow.flow_value >= _OVERRIDE_WEIGHT:
        raise _refuse(f"{told} are decided to be different, and other decisions join them")
    left = (edges - flow.flow).tocsr()
    left.eliminate_zeros()
    near = _find_reachable(left, one)
    far = _find_reachable(left.T.tocsr(), other)
    around = _find_reachable(edges, one)
    if len(near) + len(far) != len(around):
        raise _refuse(
            f"{told} are decided to be different, and there are several ways to cut them apart",
            "decide for one of the entities between them with which it is the same",
        )
    side = np.zeros(edges.shape[0], np.bool_)
    side[near] = True
    rest = edges.tocoo()
    kept = side[rest.row] == side[rest.col]
    return coo_matrix((rest.data[kept], (rest.row[kept], rest.col[kept])), shape=edges.shape).tocsr()


def _find_reachable(edges: csr_matrix, start: int) -> Numbers:
    order: Numbers = breadth_first_order(edges, start, directed=True, return_predecessors=False)
    return order


def _refuse(message: str, hint: str = "take one of the decisions back") -> DataError:
    return DataError.of([Problem("overrides", "cut", message, hint)])
