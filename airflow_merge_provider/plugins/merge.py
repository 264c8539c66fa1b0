"""What this provider adds to the Airflow UI."""

from __future__ import annotations

from airflow.providers.common.compat.sdk import AirflowPlugin


class MergePlugin(AirflowPlugin):
    """Registers the merge report pages."""

    name = "merge"
