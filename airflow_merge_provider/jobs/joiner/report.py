"""What does a run tell: rows in and out, columns and where they come from, versions, seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.joiner.plan import JoinPlan
from airflow_merge_provider.core.joiner.schema import Field
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.jobs.delta.table import PinnedDataset

_MOST_WARNINGS = 5


def report(
    request: JobRequest,
    target: Dataset,
    pinned: Mapping[str, PinnedDataset],
    seconds: Mapping[str, float],
    said: Sequence[str],
    *,
    changed: bool = False,
    version: int | None = None,
    plan: JoinPlan | None = None,
    records_in: Mapping[str, int] | None = None,
    outputs: int | None = None,
    left_out: int | None = None,
) -> dict[str, Any]:
    """Put the report together; a run that was stopped early, or repeated, knows less."""
    counts = {}
    if records_in is not None:
        counts["records_in"] = sum(records_in.values())
    if outputs is not None:
        counts["outputs"] = outputs
    if left_out is not None:
        counts["unmatched"] = left_out
    return {
        "job": request.job,
        "changed": changed and request.until == "commit",
        "dry_run": request.until != "commit",
        "target": {"dataset": target.id, "uri": target.uri, "version": version},
        "sources": {
            stage: {"uri": each.dataset.uri, "version": each.version} for stage, each in pinned.items()
        },
        "counts": counts,
        "records_in": dict(records_in or {}),
        "seconds": dict(seconds),
        "columns": [] if plan is None else _columns(plan),
        "keys": [] if plan is None else [list(clause) for clause in plan.clauses()],
        "plan": [] if plan is None else plan.explain().splitlines(),
        "warnings": list(said[:_MOST_WARNINGS]),
    }


def _columns(plan: JoinPlan) -> list[dict[str, Any]]:
    """Give each column with its type and the input's field it shows; a key may be any input's."""
    shown: list[tuple[Field, str | list[str]]] = [
        (field, list(clause)) for field, clause in zip(plan.key_columns, plan.clauses(), strict=False)
    ]
    shown += [(output.field, f"{output.stage}.{output.source}") for output in plan.outputs]
    return [
        {"name": field.name, "type": field.type, "nullable": field.nullable, "from": source}
        for field, source in shown
    ]
