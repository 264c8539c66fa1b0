"""Cluster entities: connect them by shared keys, and assign outputs to the clusters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.equality import get_rule_setting
from airflow_merge_provider.core.merge_source.overrides import Pair
from airflow_merge_provider.core.merge_source.refusals import HighFanoutKey
from airflow_merge_provider.jobs.merge_source.cluster.assignment import assign_outputs
from airflow_merge_provider.jobs.merge_source.cluster.components import MatchCallback
from airflow_merge_provider.jobs.merge_source.cluster.link_statistics import LinkStatistics
from airflow_merge_provider.jobs.merge_source.cluster.min_cut import cut_clusters
from airflow_merge_provider.jobs.merge_source.model import Entities, EntityGraph, OutputAssignment

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
