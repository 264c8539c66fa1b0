"""Add pages to the Airflow UI: a merge report tab on task instances and a page with all merges."""

from __future__ import annotations

from typing import Any

from airflow.providers.common.compat.sdk import AirflowPlugin, conf

_TASK = "dag_id={DAG_ID}&run_id={RUN_ID}&task_id={TASK_ID}&map_index={MAP_INDEX}"


class MergePlugin(AirflowPlugin):
    """Registers the merge pages; every Airflow process imports this class, so it imports no web framework."""

    name = "merge"

    @property
    def external_views(self) -> list[dict[str, Any]]:  # type: ignore[override] # plugins are instantiated
        """The pages: one in the Browse menu, and one tab on task instances unless it is switched off."""
        views = [
            {
                "name": "Merged datasets",
                "destination": "nav",
                "category": "browse",
                "url_route": "merged-datasets",
                "href": "merge/datasets.html",
                "icon": "merge/icon.svg",
                "icon_dark_mode": "merge/icon-dark.svg",
            }
        ]
        if conf.getboolean("merge", "show_task_tab", fallback=True):
            views.append(
                {
                    "name": "Merge report",
                    "destination": "task_instance",
                    "url_route": "merge-report",
                    "href": f"merge/report.html?{_TASK}",
                    "icon": "merge/icon.svg",
                    "icon_dark_mode": "merge/icon-dark.svg",
                }
            )
        return views

    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override] # read only by the api-server
        """The app that serves the pages."""
        from airflow_merge_provider.plugins.web import app  # noqa: PLC0415 - 0.6 s CPU time in every process

        return [{"app": app, "url_prefix": "/merge", "name": "Merge"}]
