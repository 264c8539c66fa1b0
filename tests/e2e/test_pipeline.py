"""Test the example pipeline in a real scheduler: runs and changes of the first DAG reach the last table."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from demo.local_airflow import ALL, LocalAirflow
from demo.tables import Row, read_rows

from tests.e2e.conftest import MakeHome

HEAD = "example_pipeline"
CHAIN = tuple(f"{HEAD}_{name}" for name in ("airports", "flights", "weather", "departures", "history"))
FLIGHTS = 6_099  # of the first week of the year
TO_BOSTON = 208
READINGS = 498
# Seconds in which no task begins or ends: then the pipeline hangs. How long all takes depends on the machine.
PATIENCE = 420.0


class Pipeline:
    """The pipeline in one Airflow: its runs and the tables that it writes."""

    def __init__(self, airflow: LocalAirflow, warehouse: Path) -> None:
        self.airflow, self.warehouse = airflow, warehouse

    def start_head(self, **params: object) -> None:
        """Start the first DAG, and wait until no DAG runs any more."""
        self.airflow.trigger_run(HEAD, params)
        before, still = self.list_tasks(), time.monotonic()
        while True:
            time.sleep(1)
            runs = {dag_id: self.list_states(dag_id) for dag_id in (HEAD, *CHAIN)}
            rests = {state for states in runs.values() for state in states} <= {"success", "failed"}
            if (tasks := self.list_tasks()) != before:
                before, still = tasks, time.monotonic()
            unchanged = time.monotonic() - still
            assert unchanged < PATIENCE, f"the pipeline does not come to rest: {runs}"
            if rests and unchanged > 15:
                break
        assert {state for states in runs.values() for state in states} == {"success"}, runs

    def list_states(self, dag_id: str) -> list[str]:
        runs = self.airflow.get_json(f"/dags/{dag_id}/dagRuns?order_by=id")["dag_runs"]
        return [run["state"] for run in runs]

    def list_tasks(self) -> list[tuple[str, str, str]]:
        """Return the DAG, the name and the state of each task."""
        # The newest hundred, which is all that Airflow returns at once.
        path = "/dags/~/dagRuns/~/taskInstances?limit=100&order_by=-id"
        tasks = self.airflow.get_json(path)["task_instances"]
        return [(task["dag_id"], task["task_id"], task["state"]) for task in tasks]

    def read_rows(self, table: str, columns: str = "*") -> list[Row]:
        return read_rows(self.warehouse / table, columns)

    def read_version(self, table: str) -> int:
        return DeltaTable(str(self.warehouse / table)).version()


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory, airflow_home: MakeHome) -> Iterator[Pipeline]:
    """Return the pipeline after its first run."""
    home = tmp_path_factory.mktemp("pipeline")
    warehouse = home / "warehouse"
    with LocalAirflow(airflow_home(home), warehouse, parts=ALL) as airflow:
        airflow.wait_until_ready((HEAD, *CHAIN))
        started_pipeline = Pipeline(airflow, warehouse)
        started_pipeline.start_head()
        yield started_pipeline


@pytest.mark.timeout(2400)
# Minutes: each of thirty tasks starts Spark, one after the other where they depend on each other.
def test_what_changes_at_the_head_reaches_the_last_table(pipeline: Pipeline) -> None:
    """Only the first DAG is started by hand; changes reach the last table.

    The first run writes everything, the second one the new name of one airport, the third one nothing.
    """
    _has_every_flight(pipeline)
    quiet = {table: pipeline.read_version(table) for table in ("pipeline_flights", "pipeline_weather")}

    pipeline.start_head(rename={"BOS": "Boston Logan"})

    history = pipeline.read_rows("pipeline_history", "dest, dest_name, is_current")
    to_boston = [row for row in history if row["dest"] == "BOS"]
    assert len(history) == FLIGHTS + TO_BOSTON
    assert {row["dest_name"] for row in to_boston if row["is_current"]} == {"Boston Logan"}
    assert len([row for row in to_boston if not row["is_current"]]) == TO_BOSTON
    assert {table: pipeline.read_version(table) for table in quiet} == quiet
    runs = {dag_id: len(pipeline.list_states(dag_id)) for dag_id in CHAIN[-2:]}

    pipeline.start_head(rename={"BOS": "Boston Logan"})

    assert {dag_id: len(pipeline.list_states(dag_id)) for dag_id in runs} == runs


def _has_every_flight(pipeline: Pipeline) -> None:
    """Check that the history has every flight once, with its weather and destination."""
    flights = pipeline.read_rows("pipeline_flights", "flight_id, tailnum, dep_delay, arr_delay")
    history = pipeline.read_rows("pipeline_history", "flight_id, temp, dest_name, is_current, valid_to")
    assert len(flights) == len({row["flight_id"] for row in flights}) == FLIGHTS
    assert {row["flight_id"] for row in history} == {row["flight_id"] for row in flights}
    assert len(history) == FLIGHTS
    assert all(row["is_current"] and row["valid_to"] is None for row in history)
    assert sum(row["temp"] is not None for row in history) > 0.99 * FLIGHTS
    assert sum(row["dest_name"] is not None for row in history) > 0.95 * FLIGHTS
    assert len(pipeline.read_rows("pipeline_weather", "origin")) == READINGS
    assert not list((pipeline.warehouse / "weather_landing").rglob("*.json"))
