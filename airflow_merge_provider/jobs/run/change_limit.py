"""What stops a run that would change too much of its target, before it writes anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.risk import Risk


def check_change_limit(
    request: JobRequest,
    target: Dataset,
    risk: Callable[[], Risk],
    found: Mapping[str, Any],
) -> list[str]:
    """Hold a run against the limit that it was given; a dry run gets a warning where another is stopped.

    ``risk`` counts what has to be counted, and is asked only where there is a limit; ``found`` is what a
    person needs to judge the run.

    :raises RiskError: when the run would change too much.
    """
    limit = request.max_change_ratio
    if limit is None:
        return []
    weighed = risk()
    if request.until != "commit":
        return weighed.warnings(limit)
    weighed.check(limit, {"target": {"dataset": target.id}, **found})
    return []
