"""Set the table property that marks the output of a run as populated.

A table that a run creates has the property from its first commit; an existing table gets it by a separate
commit, after the run's commit or, with ``initially``, just before it: a run that is refused sets nothing. The
property is level-triggered: if a run was killed before it set the property, the next run sets it, even if
nothing else has changed. The side tables of a target change their properties with it.
Source: docs/semantics/merge_source.md, Population.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from airflow_merge_provider.core.dataset import Dataset, resolve_dataset
from airflow_merge_provider.core.population import WRITER
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.run.population_check import PopulationCheck, check_part, check_population
from airflow_merge_provider.core.run.previous_run import load_previous_run
from airflow_merge_provider.core.run.progress import Progress
from airflow_merge_provider.core.undo.choice import list_side_tables
from airflow_merge_provider.jobs.delta.table import SparkLog
from airflow_merge_provider.jobs.delta.writer import BORN_POPULATED, FLAGGED_FIRST, change_flag
from airflow_merge_provider.jobs.spark.session import override_settings

Run = Callable[[SparkSession, JobRequest, Progress], dict[str, Any]]


def run_with_population(
    spark: SparkSession, request: JobRequest, progress: Progress, run: Run
) -> dict[str, Any]:
    """Run a job and mark its output as populated if the request requires it; the report contains the status.

    If the rows name the tables of the target, each of them has a flag of its own, which its part sets.

    :raises DataError: if the source must be populated and is not; the job has not started then.
    """
    population = request.population
    if population is None or request.until != "commit":
        return run(spark, request, progress)
    log, target = SparkLog(spark), resolve_dataset(population.target, request.warehouse, at="target")
    with progress.time_step("check population"):
        check = check_population(log, population, request.warehouse)
    if request.config.get("dispatch_by") is not None:
        return run(spark, request.model_copy(update={"population": check.parts_population}), progress)
    return _run_checked(spark, target, check, partial(run, spark, request, progress))


def run_part(
    spark: SparkSession, request: JobRequest, part: Dataset, run: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Run the part of a job that writes one of the tables of its target, with the flag of this table."""
    if request.population is None or request.until != "commit":
        return run()
    return _run_checked(spark, part, check_part(SparkLog(spark), request.population, part), run)


def _run_checked(
    spark: SparkSession, target: Dataset, check: PopulationCheck, run: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    settings = {BORN_POPULATED: str(check.becomes_populated).lower()}
    if check.is_set_before and not check.is_set:
        settings[FLAGGED_FIRST] = target.uri
    with override_settings(spark, settings):
        report = run()
    log = SparkLog(spark)
    is_populated = check.is_set_after and (check.is_set or log.find_properties(target) is not None)
    if is_populated != check.is_set:
        # The target comes last: if the run is killed, the next one repeats this.
        for dataset in (*_list_side_tables(log, target), target):
            change_flag(spark, dataset, is_set=is_populated)
    return {
        **report,
        "populated": is_populated,
        **({"became_populated": True} if is_populated and not check.is_set else {}),
    }


def _list_side_tables(log: SparkLog, target: Dataset) -> list[Dataset]:
    """Return the side tables that the newest commit of a target names."""
    writer = log.read_properties(target).get(WRITER)
    previous_run = None if writer is None else load_previous_run(log, target, writer)
    state = {} if previous_run is None else previous_run.state
    return [side_table.dataset for side_table in list_side_tables(target, state, {}, None)]
