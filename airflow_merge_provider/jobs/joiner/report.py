"""The details of a join's report: its columns with where they come from, its keys and its plan."""

from __future__ import annotations

from typing import Any

from airflow_merge_provider.core.joiner.plan import JoinPlan
from airflow_merge_provider.core.joiner.schema import Field


def build_details(plan: JoinPlan | None) -> dict[str, Any]:
    """Return the details of a join; a run that did not plan has the same keys, without values.

    ``columns`` are the columns of the result, each ``from`` one field or several. ``keys`` are the fields
    that each condition compares. ``plan`` are the lines that explain the order of the joins.
    """
    if plan is None:
        return {"columns": [], "keys": [], "plan": []}
    return {
        "columns": _list_columns(plan),
        "keys": [list(clause) for clause in plan.list_clauses()],
        "plan": plan.explain_plan().splitlines(),
    }


def _list_columns(plan: JoinPlan) -> list[dict[str, Any]]:
    """Return each column with its type and the field that it shows; a key may be any input's."""
    shown: list[tuple[Field, str | list[str]]] = [
        (field, list(clause)) for field, clause in zip(plan.key_columns, plan.list_clauses(), strict=False)
    ]
    shown += [(output.field, f"{output.stage}.{output.source}") for output in plan.outputs]
    return [
        {"name": field.name, "type": field.type, "nullable": field.nullable, "from": source}
        for field, source in shown
    ]
