"""What does a run tell: counts, sizes, the largest cluster, versions, seconds; small enough for XCom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.jobs.merge_source.changes import Changes
from airflow_merge_provider.jobs.merge_source.components import histogram
from airflow_merge_provider.jobs.merge_source.difference import Difference
from airflow_merge_provider.jobs.merge_source.outcome import Outcome
from airflow_merge_provider.jobs.tables import Pinned

_MOST_SIZES = 20
_MOST_MEMBERS = 10
_MOST_WARNINGS = 5


def report(
    request: JobRequest,
    target: Dataset,
    pinned: Sequence[Pinned],
    seconds: Mapping[str, float],
    said: Sequence[str],
    *,
    changed: bool = False,
    version: int | None = None,
    found: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Put the report together; ``found`` is what ``findings`` gave, now or in the run that is repeated."""
    return {
        "job": request.job,
        "changed": changed and request.until == "commit",
        "dry_run": request.until != "commit",
        "target": {"dataset": target.id, "uri": target.uri, "version": version},
        "sources": {each.dataset.id: {"uri": each.dataset.uri, "version": each.version} for each in pinned},
        **(found or {"counts": {}}),
        "seconds": dict(seconds),
        "warnings": list(said[:_MOST_WARNINGS]),
    }


def findings(outcome: Outcome, config: MergeSourceConfig) -> dict[str, Any]:
    """Count entities and outputs, and name the largest cluster."""
    sizes = outcome.live_sizes
    live = len(sizes)
    names = config.dataset_ids
    largest = outcome.largest
    return {
        "counts": {
            "entities": len(outcome.graph.hashes),
            "deleted": int(outcome.graph.deleted.sum()),
            "golden": live,
            "merged": int((sizes > 1).sum()),
            "outputs": outcome.outputs,
        },
        "cluster_sizes": _sizes(list(histogram(sizes))),
        "largest": {
            "size": len(largest),
            "members": [f"{names[offset]}/{id_}" for offset, id_ in largest[:_MOST_MEMBERS]],
        },
    }


def counted(
    written: Changes, difference: Difference, outcome: Outcome, config: MergeSourceConfig
) -> dict[str, Any]:
    """Count what an incremental run has looked at and what it writes, and name the largest cluster it saw."""
    seen = findings(outcome, config)
    return {
        "counts": {
            "changed": difference.changed,
            "looked_at": seen["counts"]["entities"],
            "written": written.emitted,
            "replaced": written.replaced,
            "removed": written.removed,
        },
        "cluster_sizes": seen["cluster_sizes"],
        "largest": seen["largest"],
    }


def _sizes(counted: list[tuple[int, int]]) -> dict[str, int]:
    """Give the histogram of cluster sizes; the rarest, largest sizes share one line."""
    if len(counted) <= _MOST_SIZES:
        return {str(size): count for size, count in counted}
    lines = {str(size): count for size, count in counted[: _MOST_SIZES - 1]}
    rest = counted[_MOST_SIZES - 1 :]
    lines[f"{rest[0][0]}-{rest[-1][0]}"] = sum(count for _, count in rest)
    return lines
