"""Build the details of a fold's report: how the source was read, and how values are aggregated."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_merge_provider.core.merge_engine.plan import Plan, explain_plan
from airflow_merge_provider.core.report import Details

_REPORTED_COLUMNS_MAX = 20


def build_details(
    plan: Plan | None = None, *, read: str | None = None, storage: Mapping[str, int] | None = None
) -> Details:
    """Return the details of a fold; a run that read nothing has the same keys, without values.

    ``read`` is how new records were found: ``snapshot``, ``appends``, or ``changes`` from the change data
    feed. ``forms`` counts the columns computed by Spark aggregates, and gives the reason for each column
    that is folded in Python. ``storage`` counts the ``rows`` of the target and the ``outdated`` row
    versions in its files. ``columns`` describes the rule of each column; only plans fill it.
    """
    return {
        "read": read,
        "forms": {} if plan is None else _count_forms(plan),
        "storage": dict(storage or {}),
        "columns": {} if plan is None or read is not None else dict(explain_plan(plan)),
    }


def _count_forms(plan: Plan) -> Details:
    folded = {rule.name: rule.folded for rule in plan.folded_rules[:_REPORTED_COLUMNS_MAX]}
    return {"aggregates": len(plan.values) - len(plan.folded_rules), "folds": folded}
