"""Read and set the table property that marks the output of a run as populated.

A table that a run creates has the property from its first commit; an existing table gets it after the run's
commit, by a separate commit. The property is level-triggered: if a run was killed before it set the
property, the next run sets it, even if nothing else has changed.
Source: docs/semantics/merge_source.md, Population.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from airflow_merge_provider.core.dataset import Dataset, resolve_dataset
from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.population import (
    FLAG,
    Population,
    State,
    list_unpopulated,
    output_populated,
    table_state,
)
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.jobs.delta.log import read_properties
from airflow_merge_provider.jobs.delta.table import count_records, pin_dataset
from airflow_merge_provider.jobs.delta.writer import BORN_POPULATED
from airflow_merge_provider.jobs.run.progress import Progress
from airflow_merge_provider.jobs.spark import sql
from airflow_merge_provider.jobs.spark.errors import NOT_FOUND_CONDITIONS, error_condition
from airflow_merge_provider.jobs.spark.session import override_settings

Run = Callable[[SparkSession, JobRequest, Progress], dict[str, Any]]

# The run itself reports all other problems of a table.
_ABSENT = (*NOT_FOUND_CONDITIONS, "DELTA_")


def run_with_population(
    spark: SparkSession, request: JobRequest, progress: Progress, run: Run
) -> dict[str, Any]:
    """Run a job and mark its output as populated if the request requires it; the report contains the status.

    :raises DataError: if the source must be populated and is not; the job has not started then.
    """
    population = request.population
    if population is None or request.until != "commit":
        return run(spark, request, progress)
    flag = _PopulationFlag(
        spark, population, resolve_dataset(population.target, request.warehouse, at="target")
    )
    with progress.time_step("check population"):
        is_populated = was_populated = flag.is_set()
        source_populated = not _needs_source(population, is_populated=is_populated) or _source_populated(
            spark, population, request.warehouse
        )
    if population.required and not source_populated:
        raise _not_yet(population)
    if not is_populated and output_populated(
        population.set_initial_offset, source_populated=source_populated, run="started"
    ):
        is_populated = flag.set_flag()
    becomes_populated = output_populated(
        population.set_initial_offset, source_populated=source_populated, run="success"
    )
    with override_settings(spark, {BORN_POPULATED: "true" if becomes_populated else "false"}):
        report = run(spark, request, progress)
    if population.reset and is_populated and not becomes_populated:
        is_populated = flag.unset_flag()
    elif becomes_populated and not is_populated:
        is_populated = flag.set_flag()
    return {
        **report,
        "populated": is_populated,
        **({"became_populated": True} if is_populated and not was_populated else {}),
    }


@dataclass(frozen=True, slots=True)
class _PopulationFlag:
    """The populated property of one target; ``set`` and ``unset`` describe it afterwards."""

    spark: SparkSession
    population: Population
    target: Dataset

    def is_set(self) -> bool:
        properties = _read_properties(self.spark, self.target)
        return properties is not None and properties.get(FLAG, "").lower() == "true"

    def set_flag(self) -> bool:
        """Set the property on a table that lacks it; do nothing if the table does not exist yet."""
        properties = _read_properties(self.spark, self.target)
        if properties is None or properties.get(FLAG) == "true":
            return properties is not None
        self.spark.sql(
            f"ALTER TABLE {sql.quote_table(self.target)} SET TBLPROPERTIES ('{FLAG}' = 'true')"
        ).collect()
        return True

    def unset_flag(self) -> bool:
        statement = f"ALTER TABLE {sql.quote_table(self.target)} UNSET TBLPROPERTIES IF EXISTS ('{FLAG}')"
        self.spark.sql(statement).collect()
        return False


def _needs_source(population: Population, *, is_populated: bool) -> bool:
    """Return whether the status of the source affects the result: most runs need not read it."""
    return population.required or (
        (not is_populated or population.reset) and population.set_initial_offset == "if-source-populated"
    )


def _source_populated(spark: SparkSession, population: Population, warehouse: str | None) -> bool:
    """Read the status before the job pins the datasets: a later change counts for the next run."""
    marked = {resolve_dataset(ref, warehouse).uri for ref in population.marked}
    state: dict[str, State] = {}
    datasets = [resolve_dataset(ref, warehouse, at="datasets") for ref in population.datasets]
    for dataset in datasets:
        status: State | None = "populated" if dataset.uri in marked else _read_state(spark, dataset)
        if status is not None:
            state[dataset.uri] = status
    uris = [dataset.uri for dataset in datasets]
    return not list_unpopulated(uris, state, ignore_non_existent=population.ignore_non_existent_datasets)


def _read_state(spark: SparkSession, dataset: Dataset) -> State | None:
    """Return the population state of a dataset; None if it does not exist."""
    if dataset.format != "delta":
        return "populated" if pin_dataset(spark, dataset).exists else None
    properties = _read_properties(spark, dataset)
    if properties is None:
        return None
    return table_state(properties, lambda: _has_rows(spark, dataset))


def _has_rows(spark: SparkSession, dataset: Dataset) -> bool:
    row_count = count_records(spark, pin_dataset(spark, dataset))
    if row_count is not None:
        return row_count > 0
    return bool(spark.sql(f"SELECT 1 FROM {sql.quote_table(dataset)} LIMIT 1").collect())


def _read_properties(spark: SparkSession, dataset: Dataset) -> Mapping[str, str] | None:
    """Return the properties of a Delta table; None if there is no table."""
    try:
        return read_properties(spark, dataset)
    except AnalysisException as error:
        if error_condition(error).startswith(_ABSENT):
            return None
        raise


def _not_yet(population: Population) -> DataError:
    message = (
        f"the source is not populated yet: it requires all of {', '.join(map(str, population.datasets))}"
    )
    hint = "run the task again later, or add a DatasetPopulatedSensor upstream"
    return DataError.from_problems([Problem("require_populated_input", "unpopulated", message, hint)])
