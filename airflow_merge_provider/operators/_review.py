"""How is a person asked whether a run that would change much may go on, and what was the answer."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NoReturn

from airflow.providers.common.compat.sdk import AirflowException, AirflowSkipException
from airflow.sdk import Context

from airflow_merge_provider.core.errors import RiskError

APPLY, REJECT = "Apply", "Reject"
_SHOWN = ("rows", "counts")
_SIZES = "cluster_sizes"


def ask(context: Context, target: str, risk: RiskError, *, within: timedelta | None, method: str) -> NoReturn:
    """Ask in the Airflow UI and let the task wait without a process; ``method`` goes on with the answer.

    Nobody has to answer ``within`` the given time: then the answer is to reject.

    :raises TaskAwaitingInput: always; it is how Airflow is told.
    """
    # Neither is exported at the top of the SDK: this module is the one place that knows where they are.
    from airflow.sdk.exceptions import TaskAwaitingInput  # noqa: PLC0415 - only where somebody is asked
    from airflow.sdk.execution_time.hitl import upsert_hitl_detail  # noqa: PLC0415

    upsert_hitl_detail(
        ti_id=context["ti"].id,
        options=[APPLY, REJECT],
        subject=f"{target}: {risk.problems[0].message}",
        body=body(risk.report),
        defaults=[REJECT],
        multiple=False,
        # The server refuses a question without them.
        params={},
    )
    reviewed = {"ratio": risk.report["change_ratio"]}
    raise TaskAwaitingInput(method_name=method, kwargs={"reviewed": reviewed}, timeout=within)


def ask_in_next_try(target: str, risk: RiskError, *, approved: float) -> NoReturn:
    """Fail a try whose change has grown since it was approved: Airflow keeps one question of each try.

    :raises AirflowException: always; the next try asks with the figures of its own run.
    """
    raise AirflowException(
        f"{target}: the change has grown since it was approved, from {approved:g} to"
        f" {risk.report['change_ratio']:g} of the rows; nothing was written, and the next try asks again"
    )


def approver(event: Mapping[str, Any]) -> str:
    """Name who let the run go on.

    :raises AirflowSkipException: when nobody did; no asset event is emitted then.
    """
    if event.get("chosen_options") != [APPLY]:
        late = " in time" if event.get("timedout") or "error" in event else ""
        raise AirflowSkipException(f"The run was not approved{late}: nothing was written")
    user = event.get("responded_by_user") or {}
    return str(user.get("name") or user.get("id") or "unknown")


def body(report: Mapping[str, Any]) -> str:
    """Show a person what the run would do, as Markdown."""
    lines = [
        "| what | how much |",
        "|---|---|",
        f"| rows that change, of all | {report['change_ratio']:g} |",
    ]
    for part in _SHOWN:
        lines += [
            f"| {part}: {name} | {value} |" for name, value in report[part].items() if value is not None
        ]
    sizes = report["details"].get(_SIZES) or {}
    lines += [f"| clusters of {size} entities | {count} |" for size, count in sizes.items()]
    note = "Apply lets the run write as much as this; should it be more, the next try asks again."
    return "\n".join([*lines, "", note])
