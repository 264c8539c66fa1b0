"""Provide the task instance button that opens the merge report."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.sdk import BaseOperator, BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk.types import TaskInstanceKey


class MergeReportLink(BaseOperatorLink):
    """Opens the merge report tab of the task instance."""

    name = "Merge report"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return a URL relative to the page's base address, so that it also works behind a URL prefix."""
        dag, run, task = (quote(part, safe="") for part in (ti_key.dag_id, ti_key.run_id, ti_key.task_id))
        mapped = f"/mapped/{ti_key.map_index}" if ti_key.map_index >= 0 else ""
        return f"dags/{dag}/runs/{run}/tasks/{task}{mapped}/plugin/merge-report"
