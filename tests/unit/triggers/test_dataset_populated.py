"""Tests of the trigger alone: serialisation, conditions and errors."""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path
from typing import Any

import pytest

from airflow_merge_provider.hooks import population
from airflow_merge_provider.triggers.dataset_populated import DatasetPopulatedTrigger
from tests.tables import FLAGGED, create_table


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replace the state store of assets, which only a triggerer can reach."""
    marked: set[str] = set()

    async def is_marked(asset: Any) -> Any:
        return asset.uri in marked

    monkeypatch.setattr(population, "is_marked_async", is_marked)
    return marked


def build_trigger(tmp_path: Path, *datasets: Any, **options: Any) -> Any:
    return DatasetPopulatedTrigger(
        datasets=datasets,
        warehouse=str(tmp_path),
        ignore_non_existent_datasets=False,
        **{"poke_interval": 0.01, **options},
    )


async def read_first_event(trigger: Any, then: Any = None) -> Any:
    """Return the first event of the trigger; ``then`` is called once the trigger waits."""
    events = trigger.run()
    answer = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0.05)
    assert then is None or not answer.done()
    if then:
        then()
    return (await asyncio.wait_for(answer, 10)).payload


@pytest.fixture(autouse=True)
def no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(self: Any) -> None:
        self.__dict__["_connection"] = None

    monkeypatch.setattr("airflow_merge_provider.hooks.warehouse.WarehouseHook.fetch_connection", connect)


def test_it_is_made_again_from_what_it_serialises() -> None:
    """A serialised trigger can be created again after a restart of the triggerer."""
    trigger = DatasetPopulatedTrigger(datasets=["A", {"dataset": "B", "format": "json"}], warehouse="/lake")

    path, arguments = trigger.serialize()
    module, _, name = path.rpartition(".")
    again = getattr(importlib.import_module(module), name)(**arguments)

    assert again.serialize() == (path, arguments)


def test_it_fires_at_once_when_nothing_is_waited_for(tmp_path: Path, marks: Any) -> None:
    """The trigger fires at once if all datasets are populated.

    The event has the version and the reason for each.
    """
    create_table(tmp_path / "flagged", properties=FLAGGED)

    event = asyncio.run(read_first_event(build_trigger(tmp_path, "flagged")))

    assert event == {"datasets": {"flagged": {"version": 1, "origin": "flag"}}}


def test_it_fires_when_the_table_comes(
    tmp_path: Path, marks: Any, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The trigger waits for a missing table, which it logs once, and fires when it is created."""
    caplog.set_level("INFO")
    event = asyncio.run(
        read_first_event(build_trigger(tmp_path, "late"), lambda: create_table(tmp_path / "late"))
    )

    assert event["datasets"]["late"] == {"version": 0, "origin": "rows"}
    output = capsys.readouterr()
    logged = f"{caplog.text}{output.out}{output.err}"
    assert logged.count("waiting for datasets: late does not exist") == 1


def test_it_fires_when_a_person_marks_the_dataset(tmp_path: Path, marks: Any) -> None:
    """A manual mark of a missing dataset fires the trigger."""
    uri = f"file://{tmp_path}/elsewhere"

    event = asyncio.run(read_first_event(build_trigger(tmp_path, "elsewhere"), lambda: marks.add(uri)))

    assert event["datasets"]["elsewhere"] == {"version": None, "origin": "mark"}


def test_a_store_that_cannot_be_read_is_asked_again(tmp_path: Path, marks: Any) -> None:
    """After an error of the store the trigger polls again.

    A temporarily unreadable folder does not end the wait.
    """
    path = tmp_path / "late"
    path.write_text("no folder")

    def mend_table() -> None:
        path.unlink()
        create_table(path)

    event = asyncio.run(read_first_event(build_trigger(tmp_path, "late"), mend_table))

    assert event["datasets"]["late"]["origin"] == "rows"
