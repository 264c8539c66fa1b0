"""Tests of the events of a watcher on a table that others write, and of its stored state."""

from __future__ import annotations

import asyncio
import importlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from airflow_merge_provider.triggers.dataset_changed import DatasetChangedTrigger
from tests.tables import create_table


class Store(dict[str, Any]):
    """Replacement of the state store that the triggerer injects."""

    async def aget(self, key: Any) -> Any:
        return self.get(key)

    async def aset(self, key: Any, value: Any) -> None:
        self[key] = value


@pytest.fixture(autouse=True)
def no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(self: Any) -> None:
        self.__dict__["_connection"] = None

    monkeypatch.setattr("airflow_merge_provider.hooks.warehouse.WarehouseHook.fetch_connection", connect)


@pytest.fixture
def watch(tmp_path: Path) -> Any:
    """Return some events of one watcher; before each event, one change is made to the table."""

    def take_events(store: Any, *changes: Any) -> Any:
        async def watch_events() -> Any:
            trigger = DatasetChangedTrigger(dataset="crm", warehouse=str(tmp_path), poke_interval=0.01)
            trigger.asset_state_store = store
            events, versions = trigger.run(), []
            for change in changes:
                waiting = asyncio.ensure_future(anext(events))
                await asyncio.sleep(0.05)
                change()
                try:
                    versions.append((await asyncio.wait_for(waiting, 0.5)).payload["version"])
                except TimeoutError:
                    versions.append(None)
                    break
            return versions

        return asyncio.run(watch_events())

    return take_events


def do_nothing() -> None:
    pass


def test_it_is_made_again_from_what_it_serialises() -> None:
    """A serialised trigger can be created again. Two tables have two triggers, the same table has one."""
    trigger = DatasetChangedTrigger(dataset="crm", poke_interval=5.0)

    path, arguments = trigger.serialize()
    module, _, name = path.rpartition(".")

    assert getattr(importlib.import_module(module), name)(**arguments).serialize() == (path, arguments)
    assert arguments["dataset"] == "crm"


def test_every_new_version_is_an_event(watch: Any, tmp_path: Path) -> None:
    """Every new version is an event, also the first. Without changes there is no event."""

    def grow_table() -> None:
        create_table(tmp_path / "crm")

    assert watch(Store(), grow_table, grow_table, do_nothing) == [0, 1, None]


def test_a_table_that_does_not_exist_is_logged_once(watch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The log of a watcher that waits says so, however often it checks."""
    assert watch(Store(), do_nothing) == [None]
    assert capsys.readouterr().out.count("waiting for crm: it does not exist yet") == 1


def test_a_restart_goes_on_where_it_was(watch: Any, tmp_path: Path) -> None:
    """After a restart, reported changes are not reported again, and changes made meanwhile are reported."""
    create_table(tmp_path / "crm")
    store = Store()

    assert watch(store, do_nothing, do_nothing) == [0, None]
    assert store["watched"]["version"] == 0
    assert watch(store, do_nothing) == [None]
    create_table(tmp_path / "crm")
    assert watch(store, do_nothing) == [1]


def test_a_table_that_was_made_anew_is_a_change(watch: Any, tmp_path: Path) -> None:
    """A recreated table is a change, with a lower or the same version."""
    create_table(tmp_path / "crm")
    store = Store(watched={"version": 7, "table": "another"})
    assert watch(store, do_nothing) == [0]

    shutil.rmtree(tmp_path / "crm")
    create_table(tmp_path / "crm")

    assert watch(store, do_nothing, do_nothing) == [0, None]
