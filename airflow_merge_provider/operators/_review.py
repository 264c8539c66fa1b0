"""Ask a person in the Airflow UI to approve a run that exceeds the change limit, and read the answer."""

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
_NEXT = "Nothing was written: start a new DAG run, which requests approval for the current counts"


def ask_for_approval(
    context: Context, target: str, risk: RiskError, *, timeout: timedelta | None, method: str
) -> NoReturn:
    """Ask in the Airflow UI and defer the task without a process; ``method`` resumes it with the answer.

    If nobody answers before the ``timeout``, the run is rejected.

    :raises TaskAwaitingInput: if a person is asked; this exception defers the task in Airflow.
    :raises AirflowFailException: if an earlier try requested approval for different counts, which Airflow
        would show again.
    """
    # The top level of the SDK exports none of these names; only this module imports them.
    from airflow.sdk.exceptions import TaskAwaitingInput  # noqa: PLC0415 - only if a person is asked
    from airflow.sdk.execution_time import task_runner  # noqa: PLC0415
    from airflow.sdk.execution_time.comms import CreateHITLDetailPayload  # noqa: PLC0415

    question = CreateHITLDetailPayload(
        ti_id=context["ti"].id,
        options=[APPLY, REJECT],
        subject=f"{target}: {risk.problems[0].message}",
        body=build_body(risk.report),
        defaults=[REJECT],
        multiple=False,
        # The server rejects the question without these two fields.
        params={},
        assigned_users=[],
    )
    stored_question: Any = task_runner.SUPERVISOR_COMMS.send(question)
    # Airflow keeps one question per task and DAG run, across tries and clears.
    if (stored_question.subject, stored_question.body) != (question.subject, question.body):
        raise AirflowFailException(
            f"{question.subject}: an earlier try requested approval for different counts. {_NEXT}"
        )
    reviewed = {"ratio": risk.report["change_ratio"]}
    raise TaskAwaitingInput(method_name=method, kwargs={"reviewed": reviewed}, timeout=timeout)


def refuse_growth(target: str, risk: RiskError, *, approved: float) -> NoReturn:
    """Stop a run that would change more than was approved.

    :raises AirflowFailException: always.
    """
    growth = f"from {approved:g} to {risk.report['change_ratio']:g} of the rows"
    raise AirflowFailException(f"{target}: the change has grown since the approval, {growth}. {_NEXT}")


def find_approver(event: Mapping[str, Any]) -> str:
    """Return the name of the user who approved the run.

    :raises AirflowSkipException: when nobody approved it; no asset event is emitted in this case.
    """
    if event.get("chosen_options") != [APPLY]:
        late = " in time" if event.get("timedout") or "error" in event else ""
        raise AirflowSkipException(f"The run was not approved{late}: nothing was written")
    user = event.get("responded_by_user") or {}
    return str(user.get("name") or user.get("id") or "unknown")


def build_body(report: Mapping[str, Any]) -> str:
    """Return the planned changes of the run as Markdown."""
    lines = [
        "| metric | value |",
        "|---|---|",
        f"| share of rows that change | {report['change_ratio']:g} |",
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
    note = (
        "Apply allows the run to change at most this share of rows. The task fails if it would change more."
    )
    return "\n".join([*lines, "", note])


def _escape_markdown(value: object) -> str:
    """Escape a value for Markdown text and tables, because names may come from data."""
    return _MARKDOWN.sub(r"\\\g<0>", " ".join(str(value).split()))
