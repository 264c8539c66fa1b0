"""Build the counts and details of a merge source's report: sizes of clusters, and the links behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_merge_provider.core.change_plan.shown_rows import mask_text
from airflow_merge_provider.core.merge_source.decision import COUNTS
from airflow_merge_provider.core.merge_source.explanation import format_key
from airflow_merge_provider.core.merge_source.refusals import HighFanoutKey, name_entity
from airflow_merge_provider.core.report import Details
from airflow_merge_provider.jobs.merge_source.cluster.clustering import ClusteringResult
from airflow_merge_provider.jobs.merge_source.cluster.components import count_sizes
from airflow_merge_provider.jobs.merge_source.diff.comparison import Totals
from airflow_merge_provider.jobs.merge_source.resolution import Resolution

_SIZES_MAX = 20
_CLUSTERS_MAX = 5
_MEMBERS_MAX = 10
_TOTALS = tuple(measure.name for measure in COUNTS if measure.scope == "target")


def build_counts(
    resolution: Resolution[ClusteringResult], totals: Totals | None, written: Mapping[str, int]
) -> dict[str, int | None]:
    """Return the counts of a run.

    :param totals: the totals of the target after the run, None if unknown.
    :param written: the counts of what the run writes.
    """
    total_counts = totals or dict.fromkeys(_TOTALS)
    return {**total_counts, "rows_evaluated": len(resolution.assignment.graph.hashes), **written}


def build_details(resolution: Resolution[ClusteringResult] | None) -> Details:
    """Return the details of a run; a run that evaluated nothing has the same keys, without values.

    All details cover the clusters that the run evaluated. ``cluster_sizes`` counts them by their number of
    entities. ``largest`` names the largest with some members, ``next_largest`` the others. ``rules`` has for
    each rule the pairs of entities that it links, and the number of clusters for which it is the
    ``sole_evidence``. ``keys`` are those that link most entities. ``quarantined`` counts keys that link too
    many entities. ``overrides`` counts the valid ones, and names pairs that the rules would have merged.
    """
    if resolution is None:
        return {
            "cluster_sizes": {}, "largest": {"size": 0, "members": []}, "next_largest": [], "rules": [],
            "keys": [], "quarantined": _describe_quarantine([]), "overrides": _count_overrides([], [], []),
        }  # fmt: skip
    assignment, names, overrides = resolution.assignment, resolution.config.dataset_ids, resolution.overrides
    largest = [
        (size, [name_entity(names[offset], id_) for offset, id_ in members])
        for size, members in assignment.find_largest(_CLUSTERS_MAX, _MEMBERS_MAX)
    ]
    size, members = largest[0] if largest else (0, [])
    cut = [
        [name_entity(names[member.dataset], member.id) for member in pair]
        for pair in resolution.clustering.cut
    ]
    return {
        "cluster_sizes": _count_sizes(list(count_sizes(assignment.live_sizes))),
        "largest": {"size": size, "members": members},
        "next_largest": [{"size": size, "first": members[0]} for size, members in largest[1:] if size > 1],
        **resolution.clustering.link_statistics.build_findings(assignment.graph, names),
        "quarantined": _describe_quarantine(resolution.clustering.quarantined),
        "overrides": _count_overrides(overrides.same, overrides.different, cut),
    }


def _count_overrides(same: Sequence[Any], different: Sequence[Any], cut: Sequence[Sequence[str]]) -> Details:
    """Count the valid overrides, and name pairs that were kept apart although rules link them."""
    return {
        "same": len(same),
        "different": len(different),
        "cut": len(cut),
        "cut_apart": list(cut[:_CLUSTERS_MAX]),
    }


def _describe_quarantine(keys: Sequence[HighFanoutKey]) -> Details:
    worst = [
        {"rule": key.rule, "key": key.key and mask_text(format_key(key.key)), "entities": key.entities}
        for key in keys[:_CLUSTERS_MAX]
    ]
    return {"keys": len(keys), "largest": worst}


def _count_sizes(counted: list[tuple[int, int]]) -> dict[str, int]:
    """Return the histogram of cluster sizes; the rarest, largest sizes share one entry."""
    if len(counted) <= _SIZES_MAX:
        return {str(size): count for size, count in counted}
    lines = {str(size): count for size, count in counted[: _SIZES_MAX - 1]}
    remaining = counted[_SIZES_MAX - 1 :]
    lines[f"{remaining[0][0]}-{remaining[-1][0]}"] = sum(count for _, count in remaining)
    return lines
