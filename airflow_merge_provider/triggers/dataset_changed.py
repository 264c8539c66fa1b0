"""Define the trigger that starts DAGs when a table is changed outside Airflow."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_merge_provider.core.errors import MergeError
from airflow_merge_provider.hooks._airflow_api import translate_api_errors
from airflow_merge_provider.hooks.warehouse import WarehouseHook

_SEEN = "watched"


class DatasetChangedTrigger(BaseEventTrigger):
    """Fire whenever the version of a Delta table differs from the last one seen; for an ``AssetWatcher``.

    A table that was dropped and created again also counts as changed, whatever its version is. The last seen
    version is stored in the state store of the watched asset after the event was sent: a restarted triggerer
    may repeat an event, but does not lose one. Several versions within one interval cause one event, because
    a run reads all changes since the last run. Errors, and a table that does not exist, are logged once, and
    the table is checked again.

    :param dataset: a bare id or a location; catalog tables are not supported, because only Spark reads them.
    :param warehouse: the location of bare ids; by default that of the connection, then ``[merge] warehouse``.
    :param merge_store_conn_id: the connection of the warehouse; the default one may not exist.
    :param poke_interval: the seconds between two checks.
    """

    def __init__(
        self,
        *,
        dataset: str,
        warehouse: str | None = None,
        merge_store_conn_id: str = WarehouseHook.default_conn_name,
        poke_interval: float = 60.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dataset = dataset
        self.warehouse = warehouse
        self.merge_store_conn_id = merge_store_conn_id
        self.poke_interval = poke_interval
        self._logged_message = ""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and arguments to recreate this trigger; the dataset makes it distinct."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "dataset": self.dataset,
                "warehouse": self.warehouse,
                "merge_store_conn_id": self.merge_store_conn_id,
                "poke_interval": self.poke_interval,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Check the table repeatedly, and yield an event for every new version."""
        is_loaded, stored, last_seen = False, None, None
        while True:
            try:
                if not is_loaded:
                    stored = last_seen = await self._load_last_seen()
                    is_loaded = True
                newest = await self._read_newest()
                if newest is None:
                    self._log_once(f"waiting for {self.dataset}: it does not exist yet")
                if newest is not None and newest != last_seen:
                    yield self._build_event(newest, last_seen)
                    last_seen = newest
                if last_seen != stored:
                    await self._store_last_seen(last_seen)
                    stored = last_seen
            except MergeError as error:
                self._log_once(str(error), logging.WARNING)
            await asyncio.sleep(self.poke_interval)

    def _log_once(self, message: str, level: int = logging.INFO) -> None:
        if message != self._logged_message:
            self.log.log(level, "%s", message)
        self._logged_message = message

    def _build_event(self, newest: Mapping[str, Any], last_seen: Mapping[str, Any] | None) -> TriggerEvent:
        before = last_seen["version"] if last_seen else None
        payload = {"dataset": self.dataset, "version": newest["version"], "before": before}
        return TriggerEvent(payload)  # type: ignore[no-untyped-call]

    async def _load_last_seen(self) -> Any:
        """Return what the state store of the asset holds; None if it holds nothing, or there is none."""
        if self.asset_state_store is None:
            return None
        with translate_api_errors("the last seen version"):
            return await self.asset_state_store.aget(_SEEN)

    async def _store_last_seen(self, last_seen: Any) -> None:
        if self.asset_state_store is not None:
            with translate_api_errors("the last seen version"):
                await self.asset_state_store.aset(_SEEN, last_seen)

    async def _read_newest(self) -> dict[str, Any] | None:
        hook = WarehouseHook(self.merge_store_conn_id, warehouse=self.warehouse)
        await hook.fetch_connection()
        # Files and object stores are read in a thread, so that other triggers in this event loop can run.
        identity = await asyncio.to_thread(hook.read_identity, self.dataset)
        return None if identity is None else {"version": identity[0], "table": identity[1]}
