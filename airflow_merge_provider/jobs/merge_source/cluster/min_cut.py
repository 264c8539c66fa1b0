"""Cut clusters at their minimum cut if overrides declare two of their members different."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.sparse import coo_matrix, csr_matrix
from scipy.sparse.csgraph import breadth_first_order, connected_components, maximum_flow

from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_source.overrides import Pair, is_override
from airflow_merge_provider.core.merge_source.refusals import name_entity
from airflow_merge_provider.jobs.merge_source.cluster.quarantine import RuleLinks
from airflow_merge_provider.jobs.merge_source.model import EntityGraph, Numbers

# No number of shared values outweighs an override.
_OVERRIDE_WEIGHT = 1_000_000
_PAIRS_MAX = 5_000_000
_UNLIMITED_CAPACITY = 1 << 30


@dataclass(frozen=True)
class CutResult:
    """The clusters after the cuts, and the pairs that the rules would have merged."""

    graph: EntityGraph
    cut: Sequence[Pair]


def cut_clusters(
    graph: EntityGraph, links: Sequence[RuleLinks], different: Sequence[Pair], names: Sequence[str]
) -> CutResult:
    """Cut clusters so that pairs that overrides declare different are in different clusters.

    The weight of a link between two entities is the number of values they share; of all cuts that separate a
    pair, the one through the fewest values is used. Source: docs/semantics/merge_source.md, Overrides.

    :raises DataError: if the overrides together leave more than one minimum cut, or contradict each other.
    """
    present_pairs = [
        (pair, numbers) for pair in different if (numbers := _find_numbers(graph, pair)) is not None
    ]
    clusters = graph.clusters.copy()
    count = graph.count
    cut: list[Pair] = []
    by_cluster: dict[int, list[tuple[Pair, tuple[int, int]]]] = {}
    for pair, numbers in present_pairs:
        if clusters[numbers[0]] == clusters[numbers[1]]:
            by_cluster.setdefault(int(clusters[numbers[0]]), []).append((pair, numbers))
    for cluster, pairs in sorted(by_cluster.items()):
        members = np.flatnonzero(graph.clusters == cluster)
        subgraph = _Cluster(_build_edges(members, links), members, graph, names)
        for pair, numbers in pairs:
            first, second = (int(np.searchsorted(members, number)) for number in numbers)
            subgraph.apart.append((pair, first, second))
        cut += subgraph.split_cluster()
        pieces, labels = connected_components(subgraph.edges, directed=False)
        clusters[members] = np.where(labels == 0, cluster, count + labels - 1)
        count += int(pieces) - 1
    return CutResult(replace(graph, clusters=clusters, count=count), cut)


@dataclass
class _Cluster:
    """A cluster formed by the rules; its entities are identified by their positions in it."""

    edges: csr_matrix
    members: Numbers
    graph: EntityGraph
    names: Sequence[str]
    apart: list[tuple[Pair, int, int]] = field(default_factory=list)

    def split_cluster(self) -> list[Pair]:
        """Remove links until all different pairs are separated; return the pairs that were separated.

        If overrides decide for every two entities whether they may be merged, the cluster is split
        accordingly. Otherwise a pair with several minimum cuts is deferred: the cuts of other pairs may leave
        one way. An entity may also be separated at once from all entities that it differs from, which decides
        where the rest belongs.

        :raises DataError: if overrides keep a pair together, or leave several ways.
        """
        for pair, first, second in self.apart:
            self._refuse_contradiction(pair, first, second)
        groups = self._find_groups()
        if groups is not None:
            self._keep_links(groups)
            return [pair for pair, _, _ in self.apart]
        cut = []
        pending = self.apart
        while pending:
            deferred = []
            for pair, first, second in pending:
                if not self._is_connected(first, second):
                    continue
                if (
                    self._separate_entities(first, [second])
                    or self._isolate_entity(first)
                    or self._isolate_entity(second)
                ):
                    cut.append(pair)
                else:
                    deferred.append((pair, first, second))
            if len(deferred) == len(pending):
                message = f"{self._describe_pair(deferred[0][0])} are declared different"
                raise _refuse_overrides(
                    f"{message}, and there are several ways to split their cluster",
                    "add a 'same' override for an entity between them",
                )
            pending = deferred
        return cut

    def _isolate_entity(self, entity: int) -> bool:
        """Separate an entity from every other one that an override declares different."""
        ends = [(first, second) for _, first, second in self.apart if entity in {first, second}]
        counterparts = {second if first == entity else first for first, second in ends}
        connected = [
            counterpart for counterpart in sorted(counterparts) if self._is_connected(entity, counterpart)
        ]
        return len(connected) > 1 and self._separate_entities(entity, connected)

    def _separate_entities(self, entity: int, counterparts: Sequence[int]) -> bool:
        """Remove the weakest links between an entity and others, unless there are several minimum cuts."""
        size = self.edges.shape[0]
        # One more node, to which all of the others lead.
        ends, sinks = np.array(counterparts), np.full(len(counterparts), size)
        capacities = np.full(len(counterparts), _UNLIMITED_CAPACITY, np.int32)
        links = self.edges.tocoo()
        rows, columns = (np.concatenate([part, add]) for part, add in ((links.row, ends), (links.col, sinks)))
        network = coo_matrix(
            (np.concatenate([links.data, capacities]), (rows, columns)), shape=(size + 1, size + 1)
        )
        flow = maximum_flow(network.tocsr(), entity, size).flow
        residual = (network.tocsr() - flow).tocsr()
        residual.eliminate_zeros()
        source_side = _find_reachable(residual, entity)
        sink_side = _find_reachable(residual.T.tocsr(), size)
        if len(source_side) + len(sink_side) != len(_find_reachable(self.edges, entity)) + 1:
            return False
        groups = np.zeros(size + 1, np.int32)
        groups[source_side] = 1
        self._keep_links(groups)
        return True

    def _keep_links(self, groups: Numbers) -> None:
        """Remove every link that joins entities of two groups."""
        links = self.edges.tocoo()
        is_kept = groups[links.row] == groups[links.col]
        self.edges = coo_matrix(
            (links.data[is_kept], (links.row[is_kept], links.col[is_kept])), shape=self.edges.shape
        ).tocsr()

    def _find_groups(self) -> Numbers | None:
        """Return the group of each entity if overrides determine all groups; else None.

        They determine all groups if the entities that differ from the same others are exactly those that do
        not differ from each other.
        """
        count, components = connected_components(self._list_decided(), directed=False)
        counterparts_by_component: dict[int, set[int]] = {}
        for _, first, second in self.apart:
            counterparts_by_component.setdefault(int(components[first]), set()).add(int(components[second]))
            counterparts_by_component.setdefault(int(components[second]), set()).add(int(components[first]))
        if len(counterparts_by_component) < count:
            return None
        groups: dict[frozenset[int], set[int]] = {}
        for entity, counterparts in counterparts_by_component.items():
            groups.setdefault(frozenset(counterparts), set()).add(entity)
        if any(len(group) + len(counterparts) < count for counterparts, group in groups.items()):
            return None
        number = {entity: index for index, group in enumerate(groups.values()) for entity in group}
        return np.array([number[int(entity)] for entity in components], np.int32)

    def _list_decided(self) -> csr_matrix:
        """Return the links that come from overrides."""
        links = self.edges.tocoo()
        decided = links.data >= _OVERRIDE_WEIGHT
        chosen = links.data[decided], (links.row[decided], links.col[decided])
        return coo_matrix(chosen, shape=self.edges.shape).tocsr()

    def _is_connected(self, first: int, second: int) -> bool:
        labels = connected_components(self.edges, directed=False)[1]
        return bool(labels[first] == labels[second])

    def _refuse_contradiction(self, pair: Pair, first: int, second: int) -> None:
        """Refuse a pair that other overrides merge.

        :raises DataError: with the chain of these overrides.
        """
        same = self._list_decided()
        order, predecessors = breadth_first_order(same, first, directed=True, return_predecessors=True)
        if second not in order:
            return
        chain = [second]
        while chain[-1] != first:
            chain.append(int(predecessors[chain[-1]]))
        path = " = ".join(self._describe_member(position) for position in reversed(chain))
        raise _refuse_overrides(
            f"{self._describe_pair(pair)} are declared different, but other overrides merge them: {path}"
        )

    def _describe_pair(self, pair: Pair) -> str:
        return " and ".join(name_entity(self.names[member.dataset], member.id) for member in pair)

    def _describe_member(self, position: int) -> str:
        dataset, id_ = self.graph.find_entity(int(self.members[position]))
        return name_entity(self.names[dataset], id_)


def _find_numbers(graph: EntityGraph, pair: Pair) -> tuple[int, int] | None:
    """Return the numbers of two entities; None if one of them does not exist."""
    numbers = []
    for dataset, id_ in pair:
        position = pc.index(graph.sources[dataset].ids, pa.scalar(id_)).as_py()
        if position < 0:
            return None
        numbers.append(int(graph.starts[dataset]) + position)
    return numbers[0], numbers[1]


def _build_edges(members: Numbers, links: Sequence[RuleLinks]) -> csr_matrix:
    """Return the weight of every link inside a cluster, by the positions of its two entities."""
    heads, tails, strengths = [], [], []
    pairs = 0
    for link in links:
        left, right = (_list_inside(members, end) for end in link.ends)
        shared = np.intersect1d(left[1], right[1])
        for key in shared:
            left_entities, right_entities = left[0][left[1] == key], right[0][right[1] == key]
            pairs += len(left_entities) * len(right_entities)
            if pairs > _PAIRS_MAX:
                raise _refuse_overrides(
                    f"a cluster with entities declared different has more than {_PAIRS_MAX} links"
                )
            head, tail = (
                np.repeat(left_entities, len(right_entities)),
                np.tile(right_entities, len(left_entities)),
            )
            # If both sides of a rule are the same, every pair is met twice.
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
    """Return the keys of a cluster's entities, which are given by their positions in it."""
    entities, keys = end
    positions = np.minimum(np.searchsorted(members, entities), len(members) - 1)
    is_inside = members[positions] == entities
    return positions[is_inside], keys[is_inside]


def _find_reachable(edges: csr_matrix, start: int) -> Numbers:
    order: Numbers = breadth_first_order(edges, start, directed=True, return_predecessors=False)
    return order


def _refuse_overrides(message: str, hint: str = "remove one of the overrides") -> DataError:
    return DataError.from_problems([Problem("overrides", "cut", message, hint)])
