"""Set the table property that marks the output of a run as populated.

A table that a run creates has the property from its first commit; an existing table gets it after the run's
commit, by a separate commit. The property is level-triggered: if a run was killed before it set the
property, the next run sets it, even if nothing else has changed.
Source: docs/semantics/merge_source.md, Population.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from airflow_merge_provider.core.dataset import Dataset, resolve_dataset
from airflow_merge_provider.core.population import FLAG
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.run.population_check import check_population
from airflow_merge_provider.core.run.progress import Progress
from airflow_merge_provider.jobs.delta.table import SparkLog
from airflow_merge_provider.jobs.delta.writer import BORN_POPULATED
from airflow_merge_provider.jobs.spark import sql
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
    is_populated = check.is_set
    if check.is_set_before and not is_populated:
        is_populated = _set_flag(log, target)
    with override_settings(spark, {BORN_POPULATED: "true" if check.becomes_populated else "false"}):
        report = run(spark, request, progress)
    if is_populated and not check.is_set_after:
        unset_flag(spark, target)
        is_populated = False
    elif check.becomes_populated and not is_populated:
        is_populated = _set_flag(log, target)
    return {
        **report,
        "populated": is_populated,
        **({"became_populated": True} if is_populated and not check.is_set else {}),
    }


def _set_flag(log: SparkLog, target: Dataset) -> bool:
    """Set the property on a table that lacks it, and return whether there is a table."""
    properties = log.find_properties(target)
    if properties is None or properties.get(FLAG) == "true":
        return properties is not None
    log.spark.sql(f"ALTER TABLE {sql.quote_table(target)} SET TBLPROPERTIES ('{FLAG}' = 'true')").collect()
    return True


def unset_flag(spark: SparkSession, target: Dataset) -> None:
    """Unset the property, in a commit of its own that changes no rows."""
    spark.sql(f"ALTER TABLE {sql.quote_table(target)} UNSET TBLPROPERTIES IF EXISTS ('{FLAG}')").collect()
