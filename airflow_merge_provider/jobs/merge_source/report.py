"""What does a run tell: counts, sizes, the largest cluster, versions, seconds; small enough for XCom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.merge_source.refusals import Hub
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.jobs.delta.table import PinnedDataset
from airflow_merge_provider.jobs.merge_source.changes import Changes
from airflow_merge_provider.jobs.merge_source.components import histogram
from airflow_merge_provider.jobs.merge_source.intake import Intake
from airflow_merge_provider.jobs.merge_source.totals import Totals, of_outcome

_MOST_SIZES = 20
_MOST_CLUSTERS = 5
_MOST_MEMBERS = 10
_MOST_WARNINGS = 5


def report(
    request: JobRequest,
    target: Dataset,
    pinned: Sequence[PinnedDataset],
    seconds: Mapping[str, float],
    said: Sequence[str],
    *,
    changed: bool = False,
    version: int | None = None,
    found: Mapping[str, Any] | None = None,
    more: Sequence[str] = (),
) -> dict[str, Any]:
    """Put the report together; ``found`` is what ``findings`` gave, now or in the run that is repeated.

    ``more`` are warnings that the data gave rise to.
    """
    return {
        "job": request.job,
        "changed": changed and request.until == "commit",
        "dry_run": request.until != "commit",
        "target": {"dataset": target.id, "uri": target.uri, "version": version},
        "sources": {each.dataset.id: {"uri": each.dataset.uri, "version": each.version} for each in pinned},
        **(found or {"counts": {}}),
        "seconds": dict(seconds),
        "warnings": [*more, *said][:_MOST_WARNINGS],
    }


def findings(taken: Intake) -> dict[str, Any]:
    """Count entities and outputs, and name the largest clusters and what they rest on."""
    counts = of_outcome(taken.outcome)
    return {"counts": dict(counts), "totals": dict(counts), **_seen(taken)}


def counted(written: Changes, taken: Intake, totals: Totals | None) -> dict[str, Any]:
    """Count what an incremental run has looked at and what it writes; the rest is of what it looked at."""
    return {
        "counts": {
            "changed": taken.difference.changed if taken.difference else 0,
            "looked_at": len(taken.outcome.graph.hashes),
            "written": written.emitted,
            "replaced": written.replaced,
            "removed": written.removed,
        },
        **({"totals": dict(totals)} if totals else {}),
        **_seen(taken),
    }


def _seen(taken: Intake) -> dict[str, Any]:
    """Tell of the clusters that the run evaluated: their sizes, the largest, and what they rest on."""
    outcome, names = taken.outcome, taken.config.dataset_ids
    largest = [
        (size, [f"{names[offset]}/{id_}" for offset, id_ in members])
        for size, members in outcome.largest(_MOST_CLUSTERS, _MOST_MEMBERS)
    ]
    size, members = largest[0] if largest else (0, [])
    return {
        "cluster_sizes": _sizes(list(histogram(outcome.live_sizes))),
        "largest": {"size": size, "members": members},
        "next_largest": [{"size": size, "first": members[0]} for size, members in largest[1:] if size > 1],
        **taken.solved.evidence.findings(outcome.graph, names),
        **_quarantined(taken.solved.quarantined),
        **_overridden(taken),
    }


def _overridden(taken: Intake) -> dict[str, Any]:
    """Tell of people's decisions, and of the pairs that the rules would have made one all the same."""
    overrides, names = taken.overrides, taken.config.dataset_ids
    if not (overrides.same or overrides.different):
        return {}
    cut = [[f"{names[member.dataset]}/{member.id}" for member in pair] for pair in taken.solved.cut]
    counts = {"same": len(overrides.same), "different": len(overrides.different), "cut": len(cut)}
    return {"overrides": {**counts, "cut_apart": cut[:_MOST_CLUSTERS]}}


def _quarantined(hubs: Sequence[Hub]) -> dict[str, Any]:
    if not hubs:
        return {}
    worst = [{"rule": hub.rule, "key": hub.key, "entities": hub.entities} for hub in hubs[:_MOST_CLUSTERS]]
    return {"quarantined": {"keys": len(hubs), "largest": worst}}


def _sizes(counted: list[tuple[int, int]]) -> dict[str, int]:
    """Give the histogram of cluster sizes; the rarest, largest sizes share one line."""
    if len(counted) <= _MOST_SIZES:
        return {str(size): count for size, count in counted}
    lines = {str(size): count for size, count in counted[: _MOST_SIZES - 1]}
    rest = counted[_MOST_SIZES - 1 :]
    lines[f"{rest[0][0]}-{rest[-1][0]}"] = sum(count for _, count in rest)
    return lines
