"""Tests of waits while the API of Airflow fails, and while connections are missing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk.exceptions import TaskDeferred

from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.hooks._airflow_api import AirflowApiError
from airflow_merge_provider.hooks.spark_job import SparkJobHook
from airflow_merge_provider.hooks.warehouse import WarehouseHook
from airflow_merge_provider.sensors.dataset_populated import DatasetPopulatedSensor
from airflow_merge_provider.triggers.dataset_changed import DatasetChangedTrigger
from airflow_merge_provider.triggers.dataset_populated import DatasetPopulatedTrigger
from airflow_merge_provider.triggers.landing import LandingTrigger
from tests.airflow_api import AirflowApi, answer_api
from tests.tables import create_table

MISSING: dict[str, Mapping[str, Any]] = {"merge_store_default": {"extra": '{"aws_conn_id": "aws_lake"}'}}
NAMED = "connection 'aws_lake' does not exist.*aws_conn_id of connection 'merge_store_default'"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[AirflowApi]:
    """Answer with a connection whose host is the folder of the test."""
    with answer_api(merge_store_default={"host": str(tmp_path)}) as api:
        yield api


def build_landing(folder: Path) -> LandingTrigger:
    """Create a trigger of a folder with a file, for which a run is due."""
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / "a.json").write_text("{}")
    config = {"source": str(folder / "in"), "state_path": str(folder / "state"), "reader": "json"}
    return LandingTrigger({**config, "original_action": "keep"}, poll_interval=0.01)


def build_populated(folder: Path) -> DatasetPopulatedTrigger:
    """Create a trigger of a table that has rows."""
    create_table(folder / "crm")
    return DatasetPopulatedTrigger(datasets=["crm"], poke_interval=0.01)


def build_changed(folder: Path) -> DatasetChangedTrigger:
    """Create a watcher of a table with one version."""
    create_table(folder / "crm")
    return DatasetChangedTrigger(dataset="crm", poke_interval=0.01)


BUILDERS = {"landing": build_landing, "populated": build_populated, "changed": build_changed}


@pytest.mark.parametrize("name", BUILDERS)
def test_an_api_that_fails_does_not_end_a_wait(name: str, api: AirflowApi, tmp_path: Path) -> None:
    """A wait goes on while the API fails; the connection is not taken for one that does not exist."""
    build: Callable[[Path], Any] = BUILDERS[name]
    trigger = build(tmp_path)

    async def wait_for_event() -> Any:
        api.is_down = True
        events = trigger.run()
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        api.is_down = False
        return (await asyncio.wait_for(waiting, 5)).payload

    assert asyncio.run(wait_for_event())


def test_an_api_that_fails_does_not_end_the_wait_for_a_mark(api: AirflowApi, tmp_path: Path) -> None:
    """The connection is read, but the mark is not."""
    trigger = DatasetPopulatedTrigger(
        datasets=["late"], ignore_non_existent_datasets=False, poke_interval=0.01, warehouse=str(tmp_path)
    )
    api.connections = {}
    real_send = api.send

    def fail_once(message: Any) -> Any:
        api.is_down = "StateStore" in type(message).__name__ and not api.marks
        return real_send(message)

    api.send = fail_once

    async def wait_for_event() -> Any:
        waiting = asyncio.ensure_future(anext(trigger.run()))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        api.marks[f"file://{tmp_path}/late"] = {"by": "hand"}
        return (await asyncio.wait_for(waiting, 5)).payload

    assert asyncio.run(wait_for_event())["datasets"]["late"]["origin"] == "mark"


def test_a_store_of_a_watcher_that_fails_is_read_again(api: AirflowApi, tmp_path: Path) -> None:
    """The last seen version is unknown while the API fails; the watcher does not take it for none."""

    class Store(dict[str, Any]):
        is_down = True

        async def aget(self, key: str) -> Any:
            api.is_down = self.is_down
            api.send(None)
            return self.get(key)

        async def aset(self, key: str, value: Any) -> None:
            self[key] = value

    trigger: Any = build_changed(tmp_path)
    identity = WarehouseHook(warehouse=str(tmp_path)).read_identity("crm")
    assert identity is not None
    store = Store(watched={"version": identity[0], "table": identity[1]})
    trigger.asset_state_store = store

    async def wait_for_event() -> Any:
        waiting = asyncio.ensure_future(anext(trigger.run()))
        await asyncio.sleep(0.1)
        store.is_down = api.is_down = False
        await asyncio.sleep(0.1)
        assert not waiting.done()
        create_table(tmp_path / "crm")
        return (await asyncio.wait_for(waiting, 5)).payload

    assert asyncio.run(wait_for_event()) == {"dataset": "crm", "version": 1, "before": 0}


def test_a_missing_connection_ends_a_wait_with_its_name(api: AirflowApi, tmp_path: Path) -> None:
    """Waiting does not create a connection: the task fails, or the run says what is missing."""
    triggers: list[Any] = [build_landing(tmp_path), build_populated(tmp_path)]
    (tmp_path / "in" / "a.json").unlink()
    api.connections = MISSING

    events = [asyncio.run(anext(trigger.run())).payload for trigger in triggers]

    assert "connection 'aws_lake' does not exist" in events[0]
    sensor = DatasetPopulatedSensor(task_id="wait", datasets=["crm"])
    with pytest.raises(AirflowFailException, match=NAMED):
        sensor.execute_complete({}, events[1])


def test_a_connection_that_a_task_names_has_to_exist(api: AirflowApi) -> None:
    """Only the default connection may be missing: a typo is not a store without credentials."""
    api.connections = {}
    assert WarehouseHook().warehouse is None

    with pytest.raises(
        SetupError, match="connection 'lake' does not exist: create it, or leave out merge_st"
    ):
        _ = WarehouseHook("lake").warehouse
    api.connections = MISSING
    with pytest.raises(SetupError, match=NAMED):
        _ = WarehouseHook().store_settings
    google = {"host": "gs://lake", "extra": '{"google_cloud_conn_id": "google"}'}
    api.connections = {"merge_store_default": google}
    with pytest.raises(SetupError, match="connection 'google' does not exist"):
        _ = WarehouseHook().store_settings


def test_a_task_does_not_run_elsewhere_because_the_api_fails(api: AirflowApi) -> None:
    """A connection that cannot be read is not one that does not exist: another try may read it."""
    api.is_down = True

    with pytest.raises(AirflowApiError, match=r"connection 'merge_store_default' cannot be read.*503"):
        _ = WarehouseHook().warehouse
    with pytest.raises(AirflowApiError, match="connection 'spark_default' cannot be read"):
        SparkJobHook()._find_connection()
    assert AirflowApiError.retryable


def test_the_first_look_of_a_sensor_waits_for_the_api(api: AirflowApi, tmp_path: Path) -> None:
    """The sensor defers, or looks again, instead of failing."""
    create_table(tmp_path / "crm")
    api.is_down = True

    with pytest.raises(TaskDeferred):
        DatasetPopulatedSensor(task_id="wait", datasets=["crm"]).execute({})
    assert not DatasetPopulatedSensor(task_id="poke", datasets=["crm"], deferrable=False).poke({}).is_done
