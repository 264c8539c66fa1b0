"""Define the trigger that waits until datasets are populated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.hooks.population import (
    PopulationStatus,
    get_status,
    list_missing,
    with_marks_async,
)
from airflow_merge_provider.hooks.warehouse import WarehouseHook


class DatasetPopulatedTrigger(BaseTrigger):
    """Fire once every dataset is populated; the arguments are the sensor's.

    If a store cannot be read temporarily, the trigger continues to wait until the sensor's timeout.
    """

    def __init__(
        self,
        *,
        datasets: Sequence[str | Mapping[str, Any]],
        ignore_non_existent_datasets: bool = True,
        warehouse: str | None = None,
        merge_store_conn_id: str = WarehouseHook.default_conn_name,
        poke_interval: float = 60.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.datasets = list(datasets)
        self.ignore_non_existent_datasets = ignore_non_existent_datasets
        self.warehouse = warehouse
        self.merge_store_conn_id = merge_store_conn_id
        self.poke_interval = poke_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and arguments to recreate this trigger in the triggerer."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "datasets": self.datasets,
                "ignore_non_existent_datasets": self.ignore_non_existent_datasets,
                "warehouse": self.warehouse,
                "merge_store_conn_id": self.merge_store_conn_id,
                "poke_interval": self.poke_interval,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Check the datasets until all are populated, and yield their status."""
        logged_message = ""
        while True:
            try:
                statuses = await self._get_status()
                missing = list_missing(statuses, ignore_non_existent=self.ignore_non_existent_datasets)
                message = "; ".join(map(str, missing))
            except SetupError as error:
                statuses, message = [], str(error)
            if not message:
                yield TriggerEvent({"datasets": list_found_datasets(statuses)})  # type: ignore[no-untyped-call]
                return
            if message != logged_message:
                self.log.info("waiting for datasets: %s", message)
                logged_message = message
            await asyncio.sleep(self.poke_interval)

    async def _get_status(self) -> list[PopulationStatus]:
        hook = WarehouseHook(self.merge_store_conn_id, warehouse=self.warehouse)
        await hook.fetch_connection()
        # Files and object stores are read in a thread, so that other triggers in this event loop can run.
        statuses = await asyncio.to_thread(get_status, hook, self.datasets, warehouse=self.warehouse)
        return await with_marks_async(statuses, ignore_non_existent=self.ignore_non_existent_datasets)


def list_found_datasets(statuses: Sequence[PopulationStatus]) -> dict[str, dict[str, Any]]:
    """Return the version and the origin of the population status of each dataset."""
    return {status.dataset: {"version": status.version, "origin": status.origin} for status in statuses}
