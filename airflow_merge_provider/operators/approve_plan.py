"""Define the operator that asks a person to approve the plan of another task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import BaseOperator, Context

from airflow_merge_provider.core import risk
from airflow_merge_provider.core.change_plan.saved_plan import PlanChoice
from airflow_merge_provider.core.change_plan.summary import ChangeSummary
from airflow_merge_provider.core.report import PLAN_KEY, REPORT_KEY, Report
from airflow_merge_provider.operators import _review
from airflow_merge_provider.operators._arguments import (
    RefusedArgumentsError,
    check_argument_names,
    is_literal,
)


class ApprovePlanOperator(BaseOperator):
    """Show the plan that another task has saved to a person, who approves or rejects it.

    The task waits in the Airflow UI without a process. It returns the approved plan, which the argument
    ``plan`` of an operator takes: that task commits exactly this plan, in the name of the person. If the plan
    changes no rows, nobody is asked. If the task has saved no plan because it had nothing to do, the result
    says so, and the task that applies it asks itself if there is work since then.

    :param plan_task_id: the task with ``plan="save"``, in the same DAG run. (templated)
    :param on_reject: what happens if the plan is rejected, or not approved in time: ``skip`` this task, and
        with it those that require its success, or ``fail``. (templated)
    :param approval_timeout: how long a person has for the answer; by default ``execution_timeout``.
    """

    template_fields: Sequence[str] = ("plan_task_id", "on_reject")
    ui_color = "#e3edf9"

    def __init__(
        self,
        *,
        plan_task_id: str,
        on_reject: str = "skip",
        approval_timeout: timedelta | None = None,
        **kwargs: Any,
    ) -> None:
        check_argument_names(type(self), BaseOperator, kwargs)
        super().__init__(**kwargs)
        self.plan_task_id = plan_task_id
        self.on_reject = on_reject
        self.approval_timeout = approval_timeout
        if is_literal(on_reject):
            self._check_on_reject()

    def execute(self, context: Context) -> dict[str, Any]:
        """Ask a person about the plan, if it changes rows.

        :raises AirflowFailException: if the other task has no report, or if it has not saved its plan.
        """
        self._check_on_reject()
        value = self._pull_xcom(context, REPORT_KEY)
        if value is None:
            raise AirflowFailException(
                f"plan_task_id: task {self.plan_task_id!r} has no merge report in this run (run it before; "
                "if it is mapped, put both tasks into a mapped task group)"
            )
        report = Report.model_validate(value)
        plan = report.plan
        if plan is None and report.run_mode == "noop":
            self.log.info("Nothing to approve: %s", report.run_mode_reason)
            return PlanChoice(exists=False).model_dump(exclude_defaults=True)
        if plan is None or plan.saved is None:
            raise AirflowFailException(
                f"plan_task_id: task {self.plan_task_id!r} has not saved its plan (set plan='save' in it)"
            )
        if not plan.has_changes:
            self.log.info("Nothing to approve: the plan changes no rows and no columns")
            return _review.name_plan(plan).model_dump(exclude_defaults=True)
        # The report may have been truncated: this XCom has more rows.
        plan = ChangeSummary.model_validate(self._pull_xcom(context, PLAN_KEY) or plan)
        reason = "; ".join(["the run needs the approval of a person", *report.warnings])
        question = _review.build_question(context, report, plan, reason, self.plan_task_id)
        timeout = self.approval_timeout or self.execution_timeout
        return _review.ask_for_approval(context, question, timeout, self.after_review.__name__)

    def after_review(
        self, context: Context, event: Mapping[str, Any], reviewed: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the approved plan.

        :raises AirflowSkipException: if the plan is rejected, or nobody answered in time.
        :raises AirflowFailException: the same, if ``on_reject`` is ``fail``.
        """
        self._check_on_reject()
        return _review.choose_plan(event, reviewed, self.on_reject).model_dump(exclude_defaults=True)

    def _check_on_reject(self) -> None:
        """Check what happens after a rejection.

        :raises RefusedArgumentsError: if it is neither to skip nor to fail.
        """
        if problems := risk.find_problems(None, "fail", on_reject=self.on_reject):
            raise RefusedArgumentsError.from_task(self.task_id, problems)

    def _pull_xcom(self, context: Context, key: str) -> Any:
        """Return an XCom of the other task, in a mapped task group that of the same instance of the group."""
        instance = context["ti"]
        return instance.xcom_pull(
            task_ids=self.plan_task_id, key=key, map_indexes=getattr(instance, "map_index", None)
        )
