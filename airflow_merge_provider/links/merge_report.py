"""Provide the task instance button that opens the merge report."""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import BaseOperator, BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk.types import TaskInstanceKey


def find_error_page() -> str | None:
    """Return the address of the page about errors; None if the package was built without addresses."""
    try:
        urls = importlib.metadata.metadata("airflow-merge-provider").get_all("Project-URL") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    pages = dict(url.split(", ", 1) for url in map(str, urls) if ", " in url)
    documentation = pages.get("Documentation")
    return f"{documentation}/errors.md" if documentation else None


class MergeReportLink(BaseOperatorLink):
    """Opens the merge report tab of the task instance."""

    name = "Merge report"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return a URL relative to the page's base address, so that it also works behind a URL prefix."""
        return self.build_path(ti_key)

    @staticmethod
    def build_path(ti_key: Any, task_id: str | None = None) -> str:
        """Return the path of the tab of a task instance, or of another task of its run, as in its key."""
        ids = (ti_key.dag_id, ti_key.run_id, task_id or ti_key.task_id)
        dag, run, task = (quote(part, safe="") for part in ids)
        is_mapped = ti_key.map_index is not None and ti_key.map_index >= 0
        mapped = f"/mapped/{ti_key.map_index}" if is_mapped else ""
        return f"dags/{dag}/runs/{run}/tasks/{task}{mapped}/plugin/merge-report"
