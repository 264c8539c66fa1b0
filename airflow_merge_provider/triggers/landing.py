"""Define the trigger that waits until MergeRecord has work: new files, or a bin that has expired."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_merge_provider.core.merge_record.config import MISSING_SOURCE, MergeRecordConfig
from airflow_merge_provider.core.merge_record.journal import JournalReader, plan_file
from airflow_merge_provider.core.merge_record.landing import (
    FileEntry,
    find_reason_to_run,
    sort_listing,
    walk_folder,
)
from airflow_merge_provider.core.object_store.clients import StoreSettings, complete_arguments
from airflow_merge_provider.core.run.previous_run import TOKEN
from airflow_merge_provider.file_store.folder import open_folder
from airflow_merge_provider.hooks._airflow_api import AirflowApiError
from airflow_merge_provider.hooks.warehouse import WarehouseHook


class LandingTrigger(BaseTrigger):
    """Wait until a run has something to do: new files, an expired bin, or an unfinished plan.

    Folders are read with fsspec, without Spark.

    :param config: the arguments of the operator, with its folders as absolute locations.
    :param poll_interval: seconds between two checks.
    :param token: the run that waits; if an earlier try of it has completed, the trigger fires at once.
    :param merge_store_conn_id: the connection with the credentials of the object store.
    :param warehouse: the warehouse of the operator, whose store has the credentials if the connection names
        no warehouse.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        poll_interval: float = 60.0,
        token: Mapping[str, Any] | None = None,
        merge_store_conn_id: str = WarehouseHook.default_conn_name,
        warehouse: str | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # untyped in Airflow
        self.config = dict(config)
        self.poll_interval = poll_interval
        self.token = token
        self.merge_store_conn_id = merge_store_conn_id
        self.warehouse = warehouse
        self._has_warned = False

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and arguments from which Airflow creates this trigger again."""
        name = f"{type(self).__module__}.{type(self).__qualname__}"
        return name, {
            "config": self.config,
            "poll_interval": self.poll_interval,
            "token": self.token,
            "merge_store_conn_id": self.merge_store_conn_id,
            "warehouse": self.warehouse,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Check at every interval; the event contains the reason to run."""
        while (reason := await self._find_reason_async()) is None:  # noqa: ASYNC110 - polls files
            await asyncio.sleep(self.poll_interval)
        yield TriggerEvent(reason)  # type: ignore[no-untyped-call] # untyped in Airflow

    def find_reason(self) -> str | None:
        """Return the reason to run, or None; for use in a task.

        A read error is a reason to run, so that the run reports it.
        """
        hook = self._create_hook()
        try:
            return self._find_reason(hook.store_settings)
        except AirflowApiError as error:
            self.log.warning("%s", error)
            return None
        except Exception as error:  # noqa: BLE001 - the run reports the error
            return _describe_error(error)

    async def _find_reason_async(self) -> str | None:
        hook = self._create_hook()
        try:
            await hook.fetch_connection()
            return await asyncio.to_thread(self._find_reason, hook.store_settings)
        except AirflowApiError as error:
            self.log.warning("%s", error)
            return None
        except Exception as error:  # noqa: BLE001 - the run reports the error
            return _describe_error(error)

    def _create_hook(self) -> WarehouseHook:
        return WarehouseHook(self.merge_store_conn_id, warehouse=self.warehouse)

    def _find_reason(self, settings: StoreSettings) -> str | None:
        config, now = MergeRecordConfig.parse(self.config), time.time_ns() // 1000
        location, source = str(config.state_path), str(config.source)
        files, folder = open_folder(location, complete_arguments(location, settings))
        files.invalidate_cache()
        paths = files.ls(folder, detail=False) if files.exists(folder) else ()
        names = [str(path).rstrip("/").rpartition("/")[2] for path in paths]
        reader = JournalReader(location, lambda: names, partial(_read_file, files, folder))
        state, commit = reader.read_state()
        if self.token and commit.state.get(TOKEN) == self.token:
            return "an earlier try has already completed the run"
        if plan_file(state.generation + 1) in names:
            return "a previous run left an unfinished plan"
        # In an object store, a folder without files is like none.
        if source.startswith("/") and not Path(source).is_dir():
            if MISSING_SOURCE in config.fail_on:
                return f"{source} does not exist"
            self._warn_once(f"{source} does not exist: check the path, or create it")
        listing = sort_listing(_list_entries(source, settings), source, config, now)
        return find_reason_to_run(state, listing, now, config)

    def _warn_once(self, message: str) -> None:
        if not self._has_warned:
            self.log.warning("%s", message)
        self._has_warned = True


def _describe_error(error: Exception) -> str:
    return f"the landing folder cannot be checked: {error}"


def _list_entries(location: str, settings: StoreSettings) -> list[FileEntry]:
    if location.startswith("/"):
        return list(walk_folder(location))
    files, folder = open_folder(location, complete_arguments(location, settings))
    files.invalidate_cache()
    if not files.exists(folder):
        return []
    stats = files.find(folder, detail=True)
    return [FileEntry.from_stat(path[len(folder) + 1 :], stat) for path, stat in stats.items()]


def _read_file(files: Any, folder: str, name: str) -> bytes | None:
    with suppress(FileNotFoundError):
        content: bytes = files.cat_file(f"{folder}/{name}")
        return content
    return None
