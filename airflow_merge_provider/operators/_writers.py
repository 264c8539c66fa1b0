"""Find tasks of a DAG that write the same target and would conflict if they ran at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_merge_provider.core.errors import Problem


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
