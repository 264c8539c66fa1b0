"""Read what an operator needs to know of its DAG and its run: schedule, other writers, token and time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from airflow.sdk import Context

from airflow_merge_provider.core.errors import Problem
from airflow_merge_provider.core.protocol import RunToken

_FIRES = 50


def longest_pause(timetable: Any) -> timedelta | None:
    """Return the longest time between two runs of a timetable; None when it is not known.

    For a schedule by assets or time only the time is used, because asset events are not predictable.
    """
    timetable = getattr(timetable, "timetable", timetable)
    delta = getattr(timetable, "delta", None)
    if isinstance(delta, timedelta):
        return delta
    expression = getattr(timetable, "expression", None)
    if not isinstance(expression, str):
        return None
    from croniter import croniter  # type: ignore[import-untyped] # noqa: PLC0415 - only for cron

    fires = croniter(expression, datetime(2024, 1, 1, tzinfo=UTC), ret_type=datetime)
    times = [fires.get_next() for _ in range(_FIRES)]
    return max((later - sooner for sooner, later in pairwise(times)), default=None)


def is_by_assets_alone(timetable: Any) -> bool:
    """Return whether only asset events start the DAG."""
    return type(timetable).__name__ == "AssetTriggeredTimetable"


def list_conflicts(task: Any) -> Iterator[Problem]:
    """Yield a problem for each task of the DAG that can write the task's target at the same time.

    Of two tasks, the later one in the DAG gets the problem. A target that is a template is not known while
    the DAG is parsed and is not checked.
    """
    dag, uri = task.get_dag(), task.written_uri
    if dag is None or uri is None or task.allow_concurrent_writes:
        return
    ordered_ids = task.get_flat_relative_ids(upstream=True) | task.get_flat_relative_ids(upstream=False)
    for other_task in dag.tasks:
        if other_task.task_id == task.task_id:
            return
        if getattr(other_task, "written_uri", None) != uri or other_task.task_id in ordered_ids:
            continue
        if not other_task.allow_concurrent_writes:
            message = f"task {other_task.task_id!r} also writes {uri}, and neither task runs before the other"
            hint = f"order them: {other_task.task_id} >> {task.task_id}, or set allow_concurrent_writes=True"
            yield Problem("target", "concurrent-writes", message, hint)


def run_token(context: Context) -> RunToken:
    """Return the token of the run that a task is part of; it is the same in every try."""
    task = context["ti"]
    return RunToken(
        dag_id=task.dag_id,
        run_id=task.run_id,
        task_id=task.task_id,
        map_index=-1 if task.map_index is None else task.map_index,
        clear_number=int(getattr(context.get("dag_run"), "clear_number", 0) or 0),
    )


def find_run_after(context: Context) -> int | None:
    """Return the earliest possible start of any try of the run, in microseconds since 1970 UTC."""
    run_after = getattr(context.get("dag_run"), "run_after", None)
    return int(run_after.timestamp() * 1_000_000) if isinstance(run_after, datetime) else None
