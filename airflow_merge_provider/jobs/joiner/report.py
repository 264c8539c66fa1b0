"""The details of a joiner report: the columns with their sources, the keys and the plan."""

from __future__ import annotations

from typing import Any

from airflow_merge_provider.core.joiner.plan import JoinPlan
from airflow_merge_provider.core.joiner.schema import Field
from airflow_merge_provider.core.report import Details


def build_details(plan: JoinPlan) -> Details:
    """Return the details of a join; those of a run without a plan are ``NO_PLAN``.

    ``columns`` lists the columns of the result; ``from`` names the field or fields that a column comes from.
    ``keys`` lists the fields that each condition compares. ``plan`` holds the lines that explain the order of
    the joins.
    """
    return {
        "columns": _list_columns(plan),
        "keys": [list(clause) for clause in plan.list_clauses()],
        "plan": plan.explain_plan().splitlines(),
    }


def _list_columns(plan: JoinPlan) -> list[dict[str, Any]]:
    """Return each column with its type and its source field; a key comes from a field of every input."""
    shown: list[tuple[Field, str | list[str]]] = [
        (field, list(clause)) for field, clause in zip(plan.key_columns, plan.list_clauses(), strict=False)
    ]
    shown += [(output.field, f"{output.stage}.{output.source}") for output in plan.outputs]
    return [
        {"name": field.name, "type": field.type, "nullable": field.nullable, "from": source}
        for field, source in shown
    ]
