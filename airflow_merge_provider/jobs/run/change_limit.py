"""Stop a run that would change too much of its target before it writes anything."""

from __future__ import annotations

from collections.abc import Callable

from airflow_merge_provider.core.risk import Risk
from airflow_merge_provider.jobs.run.report import RunReporter, RunResult


def check_change_limit(reporter: RunReporter, risk: Callable[[], Risk], result: RunResult) -> None:
    """Compare a run with the limit that it was given; a dry run gets a warning where another is stopped.

    ``risk`` counts what has to be counted, and is called only if there is a limit. ``result`` is what the run
    would do: a person who is asked reads its report.

    :raises RiskError: if the run would change too much.
    """
    limit = reporter.request.max_change_ratio
    if limit is None:
        return
    weighed = risk()
    if reporter.is_dry_run:
        reporter.warn(weighed.warnings(limit))
    elif weighed.exceeds(limit):
        weighed.check(limit, reporter.build(result))
