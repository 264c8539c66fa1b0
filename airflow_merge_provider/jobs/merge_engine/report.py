"""What does a run tell: counts, the form of every column, versions, seconds; small enough for XCom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.merge_engine.plan import Plan
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.jobs.delta.table import PinnedDataset

_MOST_WARNINGS = 5
_MOST_COLUMNS = 20


def report(
    request: JobRequest,
    target: Dataset,
    source: PinnedDataset,
    seconds: Mapping[str, float],
    said: Sequence[str],
    *,
    changed: bool = False,
    version: int | None = None,
    found: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Put the report together; ``found`` is what the fold found, now or in the run that is repeated."""
    read = {"uri": source.dataset.uri, "version": source.version}
    return {
        "job": request.job,
        "changed": changed and request.until == "commit",
        "dry_run": request.until != "commit",
        "target": {"dataset": target.id, "uri": target.uri, "version": version},
        "sources": {source.dataset.id: read},
        **(found or {"counts": {}}),
        "seconds": dict(seconds),
        "warnings": list(said[:_MOST_WARNINGS]),
    }


def forms(plan: Plan) -> dict[str, Any]:
    """Say how many columns are aggregates of Spark, and why the others are folded in Python."""
    folded = {rule.name: rule.folded for rule in plan.folded[:_MOST_COLUMNS]}
    return {"aggregates": len(plan.values) - len(plan.folded), "folds": folded}
