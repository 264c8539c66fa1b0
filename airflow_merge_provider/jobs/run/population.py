"""Set the table property that marks the output of a run as populated.

A table that a run creates has the property from its first commit; an existing table gets it by a separate
commit, after the run's commit or, with ``initially``, just before it: a run that is refused sets nothing. The
property is level-triggered: if a run was killed before it set the property, the next run sets it, even if
nothing else has changed.
Source: docs/semantics/merge_source.md, Population.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.run.population_check import check_population
from airflow_merge_provider.core.run.progress import Progress
from airflow_merge_provider.jobs.delta.table import SparkLog
from airflow_merge_provider.jobs.delta.writer import BORN_POPULATED, FLAGGED_FIRST, set_flag, unset_flag
from airflow_merge_provider.jobs.spark.session import override_settings

Run = Callable[[SparkSession, JobRequest, Progress], dict[str, Any]]


def run_with_population(
    spark: SparkSession, request: JobRequest, progress: Progress, run: Run
) -> dict[str, Any]:
    """Run a job and mark its output as populated if the request requires it; the report contains the status.

    :raises DataError: if the source must be populated and is not; the job has not started then.
    """
    population = request.population
    if population is None or request.until != "commit":
        return run(spark, request, progress)
    log, target = SparkLog(spark), resolve_dataset(population.target, request.warehouse, at="target")
    with progress.time_step("check population"):
        check = check_population(log, population, request.warehouse)
    settings = {BORN_POPULATED: str(check.becomes_populated).lower()}
    if check.is_set_before and not check.is_set:
        settings[FLAGGED_FIRST] = target.uri
    with override_settings(spark, settings):
        report = run(spark, request, progress)
    is_populated = check.is_set_after and (check.is_set or log.find_properties(target) is not None)
    if is_populated and not check.is_set:
        set_flag(spark, target)
    elif check.is_set and not is_populated:
        unset_flag(spark, target)
    return {
        **report,
        "populated": is_populated,
        **({"became_populated": True} if is_populated and not check.is_set else {}),
    }
