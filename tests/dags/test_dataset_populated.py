"""Test the populated-dataset sensor in a DAG run with real tables, marks, events and metadata database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, task

from airflow_merge_provider.assets import dataset_asset
from airflow_merge_provider.sensors.dataset_populated import DatasetPopulatedSensor
from tests.tables import FLAGGED, OURS, create_table

pytestmark = pytest.mark.airflow


def read_outcome(run: Any) -> Any:
    task_instance = run.get_task_instance("wait")
    return str(task_instance.state), task_instance.xcom_pull(task_ids="wait")


def build_sensor(datasets: Any, **arguments: Any) -> Any:
    options = {"deferrable": False, "poke_interval": 0.1, "timeout": 0.2, **arguments}
    return DatasetPopulatedSensor(task_id="wait", datasets=datasets, **options)


def test_populated_datasets_are_not_waited_for(run_dag: Any, tmp_path: Path) -> None:
    """The sensor succeeds on the worker if the datasets are populated.

    Its result has versions and reasons.
    """
    create_table(tmp_path / "flagged", properties=FLAGGED)
    create_table(tmp_path / "theirs")
    with DAG("wait_not", schedule=None) as dag:
        build_sensor(["flagged", "theirs", "nothing"], warehouse=str(tmp_path), deferrable=True)

    assert read_outcome(run_dag(dag)) == (
        "success",
        {
            "flagged": {"version": 1, "origin": "flag"},
            "theirs": {"version": 0, "origin": "rows"},
            "nothing": {"version": None, "origin": "missing"},
        },
    )


def test_a_deferred_sensor_ends_when_the_dataset_is_populated(
    run_dag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the dataset is not populated, the sensor defers to the triggerer until it is."""
    from airflow_merge_provider.hooks import population
    from airflow_merge_provider.triggers import dataset_populated as trigger

    create_table(tmp_path / "late", properties=OURS)
    original_get_status = population.get_status

    def look_later(*args: Any, **kwargs: Any) -> Any:
        create_table(tmp_path / "late", properties=FLAGGED)
        return original_get_status(*args, **kwargs)

    monkeypatch.setattr(trigger, "get_status", look_later)
    with DAG("wait_deferred", schedule=None) as dag:
        build_sensor(["late"], warehouse=str(tmp_path), deferrable=True, timeout=60)

    state, value = read_outcome(run_dag(dag))

    assert state == "success"
    assert value["late"]["origin"] == "flag"


@pytest.mark.parametrize(("mark", "state"), [({"by": "hand"}, "success"), (False, "failed")])
def test_a_mark_in_the_asset_counts(run_dag: Any, tmp_path: Path, mark: Any, state: Any) -> None:
    """A mark in the asset, set by a person or another system, decides whether a dataset is populated."""
    name = f"marked_{state}"
    asset = dataset_asset(name, warehouse=str(tmp_path))
    with DAG(f"wait_{name}", schedule=None) as dag:

        @task(outlets=[asset])
        def mark_it(asset_state_store: Any = None) -> None:
            asset_state_store[asset].set("populated", mark)

        sensor = build_sensor([name], warehouse=str(tmp_path), ignore_non_existent_datasets=False)
        mark_it() >> sensor

    task_state, value = read_outcome(run_dag(dag))

    assert task_state == state
    assert state == "failed" or value == {name: {"version": None, "origin": "mark"}}


@pytest.mark.parametrize(("populated", "state"), [(True, "success"), (False, "failed"), (None, "success")])
def test_the_last_event_speaks_for_a_catalog_table(run_dag: Any, populated: Any, state: Any) -> None:
    """The last event decides for a catalog table, which only Spark can read.

    The writer of the table can mark it as populated or as not populated, others only as populated.
    """
    ref = f"lake.events.told_{populated}".lower()
    with DAG(f"wait_event_{populated}", schedule=None) as dag:

        @task(outlets=[dataset_asset(ref)])
        def write_event(outlet_events: Any = None) -> None:
            extra = {"version": 4} | ({} if populated is None else {"populated": populated})
            outlet_events[dataset_asset(ref)].extra = extra

        write_event() >> build_sensor([ref])

    task_state, value = read_outcome(run_dag(dag))

    assert task_state == state
    assert state == "failed" or value == {ref: {"version": 4, "origin": "event"}}


@pytest.fixture
def inline_triggers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let triggers ask the API of Airflow, which the runs of a test otherwise support in tasks only."""
    from airflow.sdk.execution_time.supervisor import InProcessSupervisorComms

    async def asend(self: Any, message: Any) -> Any:
        return self.send(message)

    monkeypatch.setattr(InProcessSupervisorComms, "asend", asend, raising=False)


@pytest.mark.usefixtures("inline_triggers")
def test_a_deferred_sensor_sees_the_event_of_a_catalog_table(
    run_dag: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trigger cannot read events, so a task looks for them at each interval until the timeout.

    The event comes after the first look, and the other dataset has none.
    """
    ref = "lake.events.told_late"
    asset = dataset_asset(ref)
    look_count = 0
    original = DatasetPopulatedSensor._by_events

    def look_late(self: Any, status: Any, context: Any) -> Any:
        nonlocal look_count
        look_count += 1
        return status if look_count == 1 else original(self, status, context)

    monkeypatch.setattr(DatasetPopulatedSensor, "_by_events", look_late)
    with DAG("wait_event_late", schedule=None) as dag:

        @task(outlets=[asset])
        def write_event() -> None:
            pass

        write_event() >> build_sensor([ref], deferrable=True, timeout=60)

    state, value = read_outcome(run_dag(dag))

    assert (state, value) == ("success", {ref: {"version": None, "origin": "event"}})
    assert look_count == 2


@pytest.mark.usefixtures("inline_triggers")
@pytest.mark.parametrize(("soft_fail", "state"), [(False, "failed"), (True, "skipped")])
def test_a_deferred_sensor_of_a_catalog_table_ends_in_time(run_dag: Any, soft_fail: Any, state: Any) -> None:
    """The timeout counts from the first look, however often a task looks."""
    options = {"deferrable": True, "timeout": 0.5, "soft_fail": soft_fail}
    with DAG(f"wait_event_never_{state}", schedule=None) as dag:
        build_sensor([f"lake.events.never_{state}"], **options)

    assert read_outcome(run_dag(dag))[0] == state


def test_a_wrong_warehouse_is_not_waited_for(run_dag: Any) -> None:
    """The sensor fails at once if the warehouse is wrong: waiting does not correct a configuration."""
    with DAG("wait_nowhere", schedule=None) as dag:
        build_sensor(["customers"], deferrable=True, timeout=60, retries=2)

    run = run_dag(dag)

    assert read_outcome(run)[0] == "failed"
    assert run.get_task_instance("wait").try_number == 1


def test_templates_are_rendered_before_the_look(run_dag: Any, tmp_path: Path) -> None:
    """Templates are rendered before the first check.

    One template may render to the whole list of datasets.
    """
    create_table(tmp_path / "theirs")
    with DAG("wait_templated", schedule=None, params={"names": ["theirs"], "strict": True}) as dag:
        build_sensor(
            "{{ params.names | tojson }}",
            warehouse="{{ var.value.get('lake', '" + str(tmp_path) + "') }}",
            ignore_non_existent_datasets="{{ not params.strict }}",
        )

    assert read_outcome(run_dag(dag)) == ("success", {"theirs": {"version": 0, "origin": "rows"}})


def test_a_dataset_that_no_dag_names_has_no_mark(run_dag: Any, tmp_path: Path) -> None:
    """A dataset whose name comes from a template has no asset and no mark; this is not an error."""
    with DAG("wait_unnamed", schedule=None, params={"names": ["late"]}) as dag:
        build_sensor(
            "{{ params.names | tojson }}",
            warehouse=str(tmp_path),
            ignore_non_existent_datasets=False,
            soft_fail=True,
        )

    assert read_outcome(run_dag(dag))[0] == "skipped"
