"""Decide whether a run may start, and whether its output is populated after it.

Source: docs/semantics/merge_source.md, Population.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_merge_provider.core.dataset import Dataset, resolve_dataset
from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.population import (
    FLAG,
    Population,
    Progressed,
    State,
    list_unpopulated,
    output_populated,
    table_state,
)
from airflow_merge_provider.core.run.table_log import TableLog


@dataclass(frozen=True, slots=True)
class PopulationCheck:
    """The populated flag of a target before a run, and the status of its source."""

    population: Population
    target: Dataset
    is_set: bool
    source_populated: bool

    @property
    def is_set_before(self) -> bool:
        """Whether the output is populated as soon as the run begins its commit."""
        return self.is_set or self._is_populated_after("started")

    @property
    def is_set_after(self) -> bool:
        """Whether the output is populated after the run has succeeded."""
        if self.becomes_populated:
            return True
        return self.is_set_before and not self.population.reset

    @property
    def parts_population(self) -> Population:
        """What determines the flags of the tables that rows name; the source is checked once."""
        offset = self.population.set_initial_offset
        if offset == "if-source-populated":
            offset = "always" if self.source_populated else "never"
        return self.population.model_copy(update={"set_initial_offset": offset})

    @property
    def becomes_populated(self) -> bool:
        """Whether a successful run makes its output populated."""
        return self._is_populated_after("success")

    def _is_populated_after(self, run: Progressed) -> bool:
        return output_populated(
            self.population.set_initial_offset, source_populated=self.source_populated, run=run
        )


def check_population(log: TableLog, population: Population, warehouse: str | None) -> PopulationCheck:
    """Read the flag of the target, and the status of its source if the flag depends on it.

    :raises DataError: if the source must be populated and is not.
    """
    target = resolve_dataset(population.target, warehouse, at="target")
    is_set = has_flag(log, target)
    source_populated = not _needs_source(population, is_set=is_set) or _is_source_populated(
        log, population, warehouse
    )
    if population.required and not source_populated:
        raise _refuse_unpopulated(population)
    return PopulationCheck(population, target, is_set, source_populated)


def check_part(log: TableLog, population: Population, part: Dataset) -> PopulationCheck:
    """Read the flag of one of the tables of a target, for a run whose source has been checked."""
    return PopulationCheck(population, part, has_flag(log, part), source_populated=True)


def has_flag(log: TableLog, dataset: Dataset) -> bool:
    """Return whether a table exists and has the populated flag."""
    properties = log.find_properties(dataset)
    return properties is not None and properties.get(FLAG, "").lower() == "true"


def _needs_source(population: Population, *, is_set: bool) -> bool:
    """Return whether the status of the source affects the result: most runs need not read it."""
    return population.required or (
        (not is_set or population.reset) and population.set_initial_offset == "if-source-populated"
    )


def _is_source_populated(log: TableLog, population: Population, warehouse: str | None) -> bool:
    """Read the status before the run pins the datasets: a later change counts for the next run."""
    marked = {resolve_dataset(ref, warehouse).uri for ref in population.marked}
    state: dict[str, State] = {}
    datasets = [resolve_dataset(ref, warehouse, at="datasets") for ref in population.datasets]
    for dataset in datasets:
        status: State | None = "populated" if dataset.uri in marked else _read_state(log, dataset)
        if status is not None:
            state[dataset.uri] = status
    uris = [dataset.uri for dataset in datasets]
    return not list_unpopulated(uris, state, ignore_non_existent=population.ignore_non_existent_datasets)


def _read_state(log: TableLog, dataset: Dataset) -> State | None:
    """Return the population state of a dataset; None if it does not exist."""
    if dataset.format != "delta":
        return None if log.find_files_version(dataset) is None else "populated"
    properties = log.find_properties(dataset)
    return None if properties is None else table_state(properties, lambda: log.has_rows(dataset))


def _refuse_unpopulated(population: Population) -> DataError:
    message = (
        f"the source is not populated yet: it requires all of {', '.join(map(str, population.datasets))}"
    )
    hint = "run the task again later, or add a DatasetPopulatedSensor upstream"
    return DataError.from_problems([Problem("require_populated_input", "unpopulated", message, hint)])
