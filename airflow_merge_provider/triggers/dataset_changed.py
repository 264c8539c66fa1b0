"""Watches a table that others change outside Airflow, so that its changes start DAGs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.hooks.warehouse import WarehouseHook

_SEEN = "watched"


class DatasetChangedTrigger(BaseEventTrigger):
    """Fire whenever a Delta table has another version than the last time; for an ``AssetWatcher``.

    A table that was dropped and made anew counts, too, whatever its version is. What was seen is kept in the
    state store of the watched asset, after its event has gone out: a triggerer that is restarted may repeat
    an event, and loses none. Versions that follow each other within one interval are one event; a run takes
    everything since its last one anyway.

    :param dataset: a bare id or a location; a catalog table can only be read by Spark.
    :param warehouse: where bare ids lie; by default the connection says it, then ``[merge] warehouse``.
    :param merge_store_conn_id: the connection of the warehouse; it may be missing.
    :param poke_interval: the seconds between two looks.
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

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what makes this trigger again in the triggerer; the dataset keeps it apart from others."""
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
        """Look for ever, and tell of every version that was not seen before."""
        store = self.asset_state_store
        seen: Any = None if store is None else await store.aget(_SEEN)
        told = ""
        while True:
            try:
                newest = await self._read_newest()
            except SetupError as error:
                newest = None
                if str(error) != told:
                    told = str(error)
                    self.log.warning("%s", told)
            if newest is not None and newest != seen:
                before = seen["version"] if seen else None
                said = {"dataset": self.dataset, "version": newest["version"], "before": before}
                yield TriggerEvent(said)  # type: ignore[no-untyped-call]
                seen = newest
                if store is not None:
                    await store.aset(_SEEN, newest)
            await asyncio.sleep(self.poke_interval)

    async def _read_newest(self) -> dict[str, Any] | None:
        hook = WarehouseHook(self.merge_store_conn_id, warehouse=self.warehouse)
        await hook.fetch_connection()
        # Files and object stores are read in a thread: other triggers live in this event loop.
        found = await asyncio.to_thread(hook.read_identity, self.dataset)
        return None if found is None else {"version": found[0], "table": found[1]}
