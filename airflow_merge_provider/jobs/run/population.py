"""Set the table property that marks the output of a run as populated.

A table that a run creates has the property from its first commit; an existing table gets it by a separate
commit, after the run's commit or, with ``initially``, just before it: a run that is refused sets nothing. The
property is level-triggered: if a run was killed before it set the property, the next run sets it, even if
nothing else has changed.
Source: docs/semantics/merge_source.md, Population.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.run import steps
from airflow_merge_provider.core.run.population_check import PopulationCheck
from airflow_merge_provider.core.run.progress import Progress
from airflow_merge_provider.jobs.delta.table import SparkLog
from airflow_merge_provider.jobs.delta.writer import set_flag, unset_flag

Run = Callable[[SparkSession, JobRequest, Progress], dict[str, Any]]


def run_with_population(
    spark: SparkSession, request: JobRequest, progress: Progress, run: Run
) -> dict[str, Any]:
    """Run a job and mark its output as populated if the request requires it; the report contains the status.

    :raises DataError: if the source must be populated and is not; the job has not started then.
    """

    def run_checked(check: PopulationCheck | None) -> dict[str, Any]:
        if check is None:
            return run(spark, request, progress)
        flagged_uri = check.target.uri if check.is_set_before and not check.is_set else None
        fields = {"creates_populated": check.becomes_populated, "flagged_uri": flagged_uri}
        return run(spark, request.model_copy(update=fields), progress)

    return steps.run_with_population(
        SparkLog(spark), request, progress, run_checked, partial(set_flag, spark), partial(unset_flag, spark)
    )
