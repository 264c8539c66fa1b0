"""Set the table property that marks the output of a run as populated.

A table that a run creates has the property from its first commit; an existing table gets it by a separate
commit, after the run's commit or, with ``initially``, just before it: a run that is refused sets nothing. The
property is level-triggered: if a run was killed before it set the property, the next run sets it, even if
nothing else has changed. The side tables of a target change their properties with it.
Source: docs/semantics/merge_source.md, Population.
"""

from __future__ import annotations

from functools import partial

from pyspark.sql import SparkSession

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.population import WRITER
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.report import Report
from airflow_merge_provider.core.run import steps
from airflow_merge_provider.core.run.previous_run import load_previous_run
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.core.undo.choice import list_side_tables
from airflow_merge_provider.jobs.delta.table import SparkLog
from airflow_merge_provider.jobs.delta.writer import change_flag
from airflow_merge_provider.jobs.run.retry import Run


def run_with_population(spark: SparkSession, request: JobRequest, progress: Progress, run: Run) -> Report:
    """Run a job and mark its output as populated if the request requires it; the report contains the status.

    :raises DataError: if the source must be populated and is not; the job has not started then.
    """
    log = SparkLog(spark)
    return steps.run_with_population(
        log, request, progress, lambda checked: run(spark, checked, progress), partial(change_flags, log)
    )


def change_flags(log: SparkLog, target: Dataset, *, is_set: bool) -> None:
    """Set or unset the flag of a target and of the side tables that its newest commit names."""
    # The target comes last: if the run is killed, the next one repeats this.
    for dataset in (*_list_side_tables(log, target), target):
        change_flag(log.spark, dataset, is_set=is_set)


def _list_side_tables(log: SparkLog, target: Dataset) -> list[Dataset]:
    writer = log.read_properties(target).get(WRITER)
    previous_run = None if writer is None else load_previous_run(log, target, writer)
    state = {} if previous_run is None else previous_run.state
    return [side_table.dataset for side_table in list_side_tables(target, state, {}, None)]
