"""Read from the settings of Airflow what logs and XComs may show of the rows of a run."""

from __future__ import annotations

from airflow.providers.common.compat.sdk import conf

from airflow_merge_provider.core.capabilities import list_key_columns
from airflow_merge_provider.core.change_plan.shown_rows import ShownRows, parse_shown_rows
from airflow_merge_provider.core.protocol import JobRequest


def choose_shown_rows(request: JobRequest) -> ShownRows:
    """Return what everything that a run leaves in Airflow may show of its rows.

    :raises ConfigError: if a setting of section ``[merge]`` is not valid.
    """
    keys = list_key_columns(request.job, request.config)
    return parse_shown_rows(lambda name: conf.get("merge", name, fallback=None), keys)
