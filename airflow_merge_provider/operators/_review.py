"""How is a person asked whether a run that would change much may go on, and what was the answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NoReturn

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException
from airflow.sdk import Context

from airflow_merge_provider.core.errors import RiskError

APPLY, REJECT = "Apply", "Reject"
_SHOWN = ("rows", "counts")
_SIZES = "cluster_sizes"
_MARKDOWN = re.compile(r"[\\`*\[\]<>|!#&~]")
_NEXT = "Nothing was written: start a new run of the DAG, which asks with the figures of then"


def ask_for_approval(
    context: Context, target: str, risk: RiskError, *, within: timedelta | None, method: str
) -> NoReturn:
    """Ask in the Airflow UI and let the task wait without a process; ``method`` goes on with the answer.

    Nobody has to answer ``within`` the given time: then the answer is to reject.

    :raises TaskAwaitingInput: if a person is asked; it is how Airflow is told.
    :raises AirflowFailException: if the person would see other figures, which an earlier try has asked about.
    """
    # None is exported at the top of the SDK: this module is the one place that knows where they are.
    from airflow.sdk.exceptions import TaskAwaitingInput  # noqa: PLC0415 - only where somebody is asked
    from airflow.sdk.execution_time import task_runner  # noqa: PLC0415
    from airflow.sdk.execution_time.comms import CreateHITLDetailPayload  # noqa: PLC0415

    question = CreateHITLDetailPayload(
        ti_id=context["ti"].id,
        options=[APPLY, REJECT],
        subject=f"{target}: {risk.problems[0].message}",
        body=build_body(risk.report),
        defaults=[REJECT],
        multiple=False,
        # The server refuses a question without these two.
        params={},
        assigned_users=[],
    )
    shown: Any = task_runner.SUPERVISOR_COMMS.send(question)
    # A task has one question in each run of its DAG, however often it is tried or cleared.
    if (shown.subject, shown.body) != (question.subject, question.body):
        raise AirflowFailException(
            f"{question.subject}: an earlier try has asked with other figures. {_NEXT}"
        )
    reviewed = {"ratio": risk.report["change_ratio"]}
    raise TaskAwaitingInput(method_name=method, kwargs={"reviewed": reviewed}, timeout=within)


def refuse_growth(target: str, risk: RiskError, *, approved: float) -> NoReturn:
    """Stop a run that would change more than was approved.

    :raises AirflowFailException: always.
    """
    grown = f"from {approved:g} to {risk.report['change_ratio']:g} of the rows"
    raise AirflowFailException(f"{target}: the change has grown since it was approved, {grown}. {_NEXT}")


def find_approver(event: Mapping[str, Any]) -> str:
    """Name who let the run go on.

    :raises AirflowSkipException: when nobody did; no asset event is emitted then.
    """
    if event.get("chosen_options") != [APPLY]:
        late = " in time" if event.get("timedout") or "error" in event else ""
        raise AirflowSkipException(f"The run was not approved{late}: nothing was written")
    user = event.get("responded_by_user") or {}
    return str(user.get("name") or user.get("id") or "unknown")


def build_body(report: Mapping[str, Any]) -> str:
    """Show a person what the run would do, as Markdown."""
    lines = [
        "| what | how much |",
        "|---|---|",
        f"| rows that change, of all | {report['change_ratio']:g} |",
    ]
    for part in _SHOWN:
        lines += [
            f"| {part}: {_escape_markdown(name)} | {_escape_markdown(value)} |"
            for name, value in report[part].items()
            if value is not None
        ]
    sizes = report["details"].get(_SIZES) or {}
    lines += [
        f"| clusters of {_escape_markdown(size)} entities | {_escape_markdown(count)} |"
        for size, count in sizes.items()
    ]
    note = "Apply lets the run write as much as this; should it be more, the task fails."
    return "\n".join([*lines, "", note])


def _escape_markdown(value: object) -> str:
    """Write a value so that Markdown and a table show it as it is: names may come from data."""
    return _MARKDOWN.sub(r"\\\g<0>", " ".join(str(value).split()))
