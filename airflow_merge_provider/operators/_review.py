"""Ask a person in the Airflow UI to approve the saved plan of a run, and read the answer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn
from urllib.parse import urljoin

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException, conf
from airflow.sdk import Context

from airflow_merge_provider.core.change_plan.saved_plan import PlanChoice
from airflow_merge_provider.core.change_plan.summary import (
    ChangeExample,
    ChangeSummary,
    describe_share,
    format_cell,
    format_pair,
    select_examples,
)
from airflow_merge_provider.core.errors import format_count
from airflow_merge_provider.core.report import Report
from airflow_merge_provider.core.risk import RiskError
from airflow_merge_provider.links.merge_report import MergeReportLink

APPLY, REJECT = "Apply", "Reject"
# The number of example rows in a question, and of columns of each row.
_EXAMPLES_MAX = 10
_COLUMNS_MAX = 8
_MARKDOWN = re.compile(r"[\\`*_\[\]<>|!#&~]")
_NEXT = "Nothing was written: start a new DAG run, which asks for the approval of the current plan"


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a saved plan, as Airflow shows it."""

    subject: str
    body: str
    choice: PlanChoice


def build_question(
    context: Context, report: Report, plan: ChangeSummary, reason: str, plan_task_id: str | None = None
) -> Question:
    """Return the question about the plan of a run with this report.

    :param plan_task_id: the task whose merge report shows the plan, if it is another one.
    """
    body = build_body(plan, reason, _find_report_url(context["ti"], plan_task_id))
    return Question(build_subject(report, plan), body, name_plan(plan))


def name_plan(plan: ChangeSummary) -> PlanChoice:
    """Return what identifies a saved plan: a table that was created again has the same versions."""
    return PlanChoice(version=plan.saved.version if plan.saved else None, digest=plan.digest)


def ask_for_approval(
    context: Context,
    question: Question,
    timeout: timedelta | None,
    method: str,
) -> NoReturn:
    """Ask in the Airflow UI and defer the task without a process; ``method`` resumes it with the answer.

    If nobody answers before the ``timeout``, the plan is rejected.

    :raises TaskAwaitingInput: if a person is asked; this exception defers the task in Airflow.
    :raises AirflowFailException: if an earlier try asked about another plan, which Airflow would show again.
    """
    # The top level of the SDK exports none of these names; only this module imports them.
    from airflow.sdk.exceptions import TaskAwaitingInput  # noqa: PLC0415 - only if a person is asked
    from airflow.sdk.execution_time import task_runner  # noqa: PLC0415
    from airflow.sdk.execution_time.comms import CreateHITLDetailPayload  # noqa: PLC0415

    payload = CreateHITLDetailPayload(
        ti_id=context["ti"].id,
        options=[APPLY, REJECT],
        subject=question.subject,
        body=question.body,
        defaults=[REJECT],
        multiple=False,
        # The server rejects the question without these two fields.
        params={},
        assigned_users=[],
    )
    stored_question: Any = task_runner.SUPERVISOR_COMMS.send(payload)
    # Airflow keeps one question per task and DAG run, across tries and clears.
    if (stored_question.subject, stored_question.body) != (question.subject, question.body):
        raise AirflowFailException(
            f"{question.subject}: an earlier try asked for the approval of another plan. {_NEXT}"
        )
    reviewed = question.choice.model_dump(exclude_defaults=True)
    raise TaskAwaitingInput(method_name=method, kwargs={"reviewed": reviewed}, timeout=timeout)


def build_outdated_error(risk: RiskError) -> RiskError:
    """Return the error of a run whose approved plan is outdated: Airflow asks only once in a DAG run."""
    target = risk.report.target.dataset
    return RiskError(f"{target}: {risk.problems[0].message}. {_NEXT}", risk.problems, risk.report)


def choose_plan(event: Mapping[str, Any], reviewed: Mapping[str, Any], on_reject: str) -> PlanChoice:
    """Return the plan that a person has approved, with the name of that person.

    :raises AirflowSkipException: if nobody has approved it; no asset event is emitted in this case.
    :raises AirflowFailException: the same, if ``on_reject`` is ``fail``.
    """
    if event.get("chosen_options") != [APPLY]:
        late = " in time" if event.get("timedout") or "error" in event else ""
        error_class = AirflowFailException if on_reject == "fail" else AirflowSkipException
        raise error_class(f"The plan was not approved{late}: nothing was written")
    user = event.get("responded_by_user") or {}
    approver = str(user.get("name") or user.get("id") or "unknown")
    return PlanChoice.model_validate({**reviewed, "approved_by": approver})


def is_task_result(plan: Any) -> bool:
    """Return whether the argument ``plan`` of an operator is the result of another task."""
    # Results of other tasks have no common public base class.
    return hasattr(plan, "iter_references")


def parse_plan_choice(plan: Any) -> PlanChoice | None:
    """Return the saved plan that the argument ``plan`` of an operator names."""
    if isinstance(plan, Mapping):
        return PlanChoice.model_validate(plan)
    return PlanChoice() if plan == "apply" else None


def is_unapproved(plan: Any, *, of_task: bool) -> bool:
    """Return whether another task was to approve a plan, and has approved none.

    It had nothing to approve, or it was skipped and the trigger rule of this task permits that.

    :param plan: the rendered argument ``plan`` of an operator.
    :param of_task: whether it is the result of a task.
    """
    if isinstance(plan, Mapping):
        return not PlanChoice.model_validate(plan).exists
    return of_task and plan is None


def build_subject(report: Report, plan: ChangeSummary) -> str:
    """Return the question in one line: the target, and the share of its rows that change."""
    return f"{report.target.dataset}: {describe_share(plan.kinds, report.rows.before)}"


def build_body(plan: ChangeSummary, reason: str, report_url: str) -> str:
    """Return the planned changes of a run as Markdown: counts, example rows, and where the plan is."""
    lines = [_escape_markdown(reason), "", "| rows | |", "|---|---|"]
    lines += [f"| {kind} | {count} |" for kind, count in plan.kinds.items() if count]
    reasons = {name: count for name, count in plan.reasons.items() if name not in plan.kinds}
    lines += [f"| … {_escape_markdown(name)} | {count} |" for name, count in reasons.items()]
    if counts := plan.list_column_counts():
        lines += ["", f"Columns that change: {_escape_markdown(', '.join(counts))}"]
    if plan.other_changes:
        lines += ["", *(f"* {_escape_markdown(change)}" for change in plan.other_changes)]
    examples = select_examples(plan.list_visible_examples(), _EXAMPLES_MAX)
    if examples:
        shown_count = sum(len(example.list_row_kinds()) for example in examples)
        title = "All rows" if shown_count == plan.count else f"{shown_count} of {plan.count} rows"
        lines += ["", f"{title}:", "", "| | row | changes | why |", "|---|---|---|---|"]
        lines += [f"| {' | '.join(_list_cells(example))} |" for example in examples]
    saved = "" if plan.saved is None else f"All rows are in {_escape_markdown(plan.saved.uri)}. "
    note = (
        f"{saved}The [merge report]({report_url}) shows more of them. {APPLY} commits exactly this plan "
        f"({plan.digest[:12]}), or nothing if the target or the configuration has changed since."
    )
    return "\n".join([*lines, "", note])


def _list_cells(example: ChangeExample) -> Iterator[str]:
    """Yield the cells of one row: its kind, its name or values, what changes, and why."""
    yield example.kind
    values = [f"{name} = {format_cell(value)}" for name, value in example.list_values().items()]
    yield _escape_markdown(": ".join(filter(None, (example.name, ", ".join(_cut_cells(values))))))
    changes = [f"{name} {' → '.join(format_pair(*pair))}" for name, *pair in example.list_updated_columns()]
    yield _escape_markdown("; ".join(filter(None, (example.members, *_cut_cells(changes)))))
    yield _escape_markdown("" if example.why == example.kind else example.why)


def _cut_cells(cells: list[str]) -> list[str]:
    """Return the texts of at most so many columns as a question shows, and how many more there are."""
    more_count = len(cells) - _COLUMNS_MAX
    more = [f"and {format_count(more_count, 'more column')}"] if more_count > 0 else []
    return [*cells[:_COLUMNS_MAX], *more]


def _find_report_url(instance: Any, task_id: str | None) -> str:
    """Return the address of the merge report of a task instance, or of another task of its run."""
    base_url = conf.get("api", "base_url", fallback="/") or "/"
    path = MergeReportLink.build_path(instance, task_id)
    return urljoin(base_url if base_url.endswith("/") else f"{base_url}/", path)


def _escape_markdown(value: object) -> str:
    """Escape a value for Markdown text and tables, because names and values may come from data."""
    return _MARKDOWN.sub(r"\\\g<0>", " ".join(str(value).split()))
