"""Build task groups of operators."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from airflow.sdk import TaskGroup, TriggerRule

from airflow_merge_provider.core.errors import ConfigError, Problem
from airflow_merge_provider.operators._arguments import RefusedArgumentsError
from airflow_merge_provider.operators._spark_job import SparkJobOperator
from airflow_merge_provider.operators.approve_plan import ApprovePlanOperator

# Arguments that the group sets in each of its tasks.
_SET_BY_GROUP = ("task_id", "plan", "approve", "dry_run")


def build_reviewed_merge(
    operator: Callable[..., SparkJobOperator],
    *,
    group_id: str = "reviewed_merge",
    on_reject: str = "skip",
    approval_timeout: timedelta | None = None,
    emit_asset: bool = True,
    **arguments: Any,
) -> TaskGroup:
    """Build the tasks check, plan, approve and apply of a merge that a person has to approve.

    ``check`` compares the configuration with the tables and reads no rows. ``plan`` saves the rows that would
    change. ``approve`` shows them to a person and waits. ``apply`` commits exactly the plan that was shown,
    or fails without a commit if it is outdated. If nothing would change, nobody is asked. Only ``apply``
    updates the asset of the target.

    :param operator: the class of an operator that has plans, or a function that takes the same arguments and
        returns the operator.
    :param group_id: the ID of the group.
    :param on_reject: what happens if the plan is rejected, or not approved in time: ``skip`` the tasks
        ``approve`` and ``apply``, and those that require their success, or ``fail``.
    :param approval_timeout: how long a person has for the answer; by default ``execution_timeout``.
    :param emit_asset: update the target's asset when ``apply`` changed it.
    :param arguments: the arguments of the operator, and of its tasks. ``trigger_rule`` is that of ``check``,
        and ``outlets`` are those of ``apply``.
    :raises RefusedArgumentsError: for arguments that the group sets itself, and for operators without plans.
    """
    problems = [
        Problem(name, "group", "is set by the task group", "leave it out")
        for name in _SET_BY_GROUP
        if name in arguments
    ]
    if problems:
        message = f"task group {group_id!r}: {ConfigError.from_problems(problems).message}"
        raise RefusedArgumentsError(message, problems)
    timeout = approval_timeout or arguments.get("execution_timeout")
    review: dict[str, Any] = {"on_reject": on_reject, "approval_timeout": timeout}
    # Set explicitly, because default_args of the DAG may have other values.
    in_order: dict[str, Any] = {"trigger_rule": TriggerRule.ALL_SUCCESS}
    no_commit: dict[str, Any] = {"approve": None, "emit_asset": False, "outlets": None}
    of_check = {name: arguments.pop(name) for name in ("trigger_rule",) if name in arguments}
    of_apply = {name: arguments.pop(name) for name in ("outlets",) if name in arguments}
    with TaskGroup(group_id, tooltip="check, plan, approve, apply") as group:
        check = operator(task_id="check", plan="check", **of_check, **no_commit, **arguments)
        plan = operator(task_id="plan", plan="save", **in_order, **no_commit, **arguments)
        approve = ApprovePlanOperator(task_id="approve", plan_task_id=plan.task_id, **review, **in_order)
        # If there was no plan, and there is one now, the task asks itself: nothing is committed unseen.
        settings: dict[str, Any] = {"plan": approve.output, "approve": None, "emit_asset": emit_asset}
        apply = operator(task_id="apply", **settings, **review, **in_order, **of_apply, **arguments)
        check >> plan >> approve >> apply
    return group
