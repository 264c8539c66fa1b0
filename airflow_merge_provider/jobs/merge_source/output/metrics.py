"""Measure cluster quality: sizes, entities that alone hold a cluster together, and keys without a match."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from airflow_merge_provider.core.merge_source.identity import output_id
from airflow_merge_provider.jobs.merge_source.cluster.clustering import ClusteringResult
from airflow_merge_provider.jobs.merge_source.cluster.components import count_sizes
from airflow_merge_provider.jobs.merge_source.cluster.quarantine import RuleLinks
from airflow_merge_provider.jobs.merge_source.model import EntityGraph, Numbers

ALL, EVALUATED = "all", "evaluated"
_LARGEST_CLUSTERS_MAX = 20
# The columns of the table, and the totals that they hold.
_COUNTS = {
    "entities": "entities",
    "deleted": "deleted_entities",
    "live_rows": "live_rows",
    "merged": "merged_rows",
    "outputs": "outputs",
}
_SIZES = pa.list_(pa.struct({"size": pa.int64(), "clusters": pa.int64()}))
_CLUSTER_LIST = pa.list_(pa.struct({"id": pa.string(), "size": pa.int64()}))
_SIDES = pa.list_(pa.struct({"rule": pa.string(), "left": pa.int64(), "right": pa.int64()}))
_METRICS_SCHEMA = pa.schema({
    "target": pa.string(), "run": pa.int64(), "at": pa.timestamp("us", "UTC"), "scope": pa.string(),
    **dict.fromkeys(_COUNTS, pa.int64()),
    "cluster_sizes": _SIZES, "largest": _CLUSTER_LIST, "same_dataset": pa.int64(), "bridges": pa.int64(),
    "one_sided": _SIDES,
})  # fmt: skip


class MetricsRun(NamedTuple):
    """The run that a row describes: its target, number and time (microseconds), and what it evaluated."""

    target: str
    number: int
    at: int
    scope: str


def build_metrics_row(
    run: MetricsRun, totals: Mapping[str, int], clustering: ClusteringResult, identity: str
) -> pa.Table:
    """Return the metrics row of a run; all columns except the totals cover the clusters that it evaluated.

    ``same_dataset`` counts clusters with several members of one dataset, ``bridges`` entities without which
    their cluster would fall apart, ``one_sided`` keys that only one side of a rule has.
    Source: docs/semantics/merge_source.md, Cluster metrics.
    """
    assignment = clustering.assignment
    graph = assignment.graph
    row: dict[str, Any] = {
        "target": run.target,
        "run": run.number,
        "at": dt.datetime.fromtimestamp(run.at / 1_000_000, dt.UTC),
        "scope": run.scope,
        **{name: totals.get(total) for name, total in _COUNTS.items()},
        "cluster_sizes": [
            {"size": size, "clusters": count} for size, count in count_sizes(assignment.live_sizes)
        ],
        "largest": [
            {"id": output_id(graph.list_members(cluster), identity), "size": int(graph.sizes[cluster])}
            for cluster in _find_largest(graph)
        ],
        "same_dataset": _count_same_dataset(graph),
        "bridges": sum(len(bridges) for bridges in find_bridges(graph, clustering.link_statistics.links)),
        "one_sided": clustering.link_statistics.one_sided,
    }
    return pa.Table.from_pylist([row], _METRICS_SCHEMA)


def find_bridges(graph: EntityGraph, links: Sequence[RuleLinks]) -> Iterator[set[int]]:
    """Yield, for each cluster of three or more, the entities without which it would fall apart."""
    neighbours = _build_neighbours(graph, links)
    visited: set[int] = set()
    for start in neighbours:
        if start not in visited and start < len(graph.clusters):
            yield {
                node for node in _find_cut_points(start, neighbours, visited) if node < len(graph.clusters)
            }


def _find_largest(graph: EntityGraph) -> list[int]:
    order = np.lexsort((graph.ranks[graph.firsts], -graph.sizes))[:_LARGEST_CLUSTERS_MAX]
    return [int(cluster) for cluster in order if graph.sizes[cluster] > 1]


def _count_same_dataset(graph: EntityGraph) -> int:
    """Count the clusters that have several members of one dataset."""
    offsets = np.searchsorted(graph.starts, np.arange(len(graph.clusters)), side="right") - 1
    pairs, counts = np.unique(np.stack([graph.clusters, offsets]), axis=1, return_counts=True)
    return len(np.unique(pairs[0][counts > 1]))


def _build_neighbours(graph: EntityGraph, links: Sequence[RuleLinks]) -> dict[int, list[int]]:
    """Return the links of clusters of three or more; a key that several have on both sides is a node.

    If only one entity has it on a side, that entity alone joins the others.
    """
    neighbours: dict[int, list[int]] = defaultdict(list)
    node = len(graph.clusters)
    large = graph.sizes > 2  # noqa: PLR2004 - two cannot fall apart into more
    for link in links:
        sides = [_group_by_key(entities, keys, large[graph.clusters]) for entities, keys in link.ends]
        for key in sides[0].keys() & sides[1].keys():
            left, right = sides[0][key], sides[1][key]
            centres, leaves = (left, right) if len(left) == 1 else (right, left)
            if len(centres) > 1:
                centres, leaves, node = {node}, left | right, node + 1
            (centre,) = centres
            for leaf in leaves - centres:
                neighbours[centre].append(leaf)
                neighbours[leaf].append(centre)
    return neighbours


def _group_by_key(entities: Numbers, keys: Numbers, is_selected: Any) -> dict[int, set[int]]:
    entities_by_key: dict[int, set[int]] = defaultdict(set)
    chosen = is_selected[entities]
    for entity, key in zip(entities[chosen].tolist(), keys[chosen].tolist(), strict=True):
        entities_by_key[key].add(entity)
    return entities_by_key


def _find_cut_points(root: int, neighbours: dict[int, list[int]], visited: set[int]) -> set[int]:
    """Return the nodes without which the root's component would fall apart (Tarjan's low links)."""
    depth = {root: 0}
    low = {root: 0}
    cut_points: set[int] = set()
    branches = 0
    stack = [(root, -1, iter(neighbours[root]))]
    while stack:
        node, parent, remaining = stack[-1]
        for neighbour in remaining:
            if neighbour not in depth:
                depth[neighbour] = low[neighbour] = len(stack)
                stack.append((neighbour, node, iter(neighbours[neighbour])))
                break
            if neighbour != parent:
                low[node] = min(low[node], depth[neighbour])
        else:
            stack.pop()
            if parent == root:
                branches += 1
            elif parent >= 0 and low[node] >= depth[parent]:
                cut_points.add(parent)
            if parent >= 0:
                low[parent] = min(low[parent], low[node])
    visited.update(depth)
    return cut_points | ({root} if branches > 1 else set())
