"""Define the trigger that waits until datasets are populated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_merge_provider.core.dataset import DatasetRef
from airflow_merge_provider.core.errors import MergeError, SetupError
from airflow_merge_provider.hooks._airflow_api import AirflowApiError
from airflow_merge_provider.hooks.population import (
    PopulationStatus,
    get_status,
    list_missing,
    with_marks_async,
)
from airflow_merge_provider.hooks.warehouse import WarehouseHook


class _UnreadableError(MergeError):
    """Raised when a dataset cannot be read at the moment."""


@dataclass(frozen=True, slots=True)
class _Check:
    """The result of one check: the event that ends the wait, or None with the reason to wait.

    ``has_only_events`` says whether a task has to look for the events of what is missing.
    """

    event: dict[str, Any] | None = None
    message: str = ""
    has_only_events: bool = False


class DatasetPopulatedTrigger(BaseTrigger):
    """Fire once every dataset is populated; the arguments are the sensor's.

    If a store or the API of Airflow cannot be read temporarily, the trigger continues to wait until the
    sensor's timeout.

    :param event_uris: the assets of catalog tables whose events a task can read, which a trigger cannot; if
        only these are missing, the trigger fires after each interval, so that a task checks them.
    :param deadline: the end of the wait, in seconds since the epoch, for such a task.
    """

    def __init__(
        self,
        *,
        datasets: Sequence[DatasetRef],
        ignore_non_existent_datasets: bool = True,
        warehouse: str | None = None,
        merge_store_conn_id: str = WarehouseHook.default_conn_name,
        poke_interval: float = 60.0,
        event_uris: Sequence[str] = (),
        deadline: float = 0.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.datasets = list(datasets)
        self.ignore_non_existent_datasets = ignore_non_existent_datasets
        self.warehouse = warehouse
        self.merge_store_conn_id = merge_store_conn_id
        self.poke_interval = poke_interval
        self.event_uris = list(event_uris)
        self.deadline = deadline

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
                "event_uris": self.event_uris,
                "deadline": self.deadline,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Check the datasets until all are populated, and yield their status.

        The event of a wait that cannot succeed has the error, and that of events that a task has to check
        has the deadline.
        """
        logged_message = ""
        while True:
            check = await self._check_datasets()
            if check.event is not None:
                yield TriggerEvent(check.event)  # type: ignore[no-untyped-call]
                return
            if check.message != logged_message:
                self.log.info("waiting for datasets: %s", check.message)
                logged_message = check.message
            await asyncio.sleep(self.poke_interval)
            if check.has_only_events:
                yield TriggerEvent({"deadline": self.deadline})  # type: ignore[no-untyped-call]
                return

    async def _check_datasets(self) -> _Check:
        hook = WarehouseHook(self.merge_store_conn_id, warehouse=self.warehouse)
        try:
            await hook.fetch_connection()
            statuses = await self._get_status(hook)
        except (AirflowApiError, _UnreadableError) as error:
            return _Check(message=error.message)
        except MergeError as error:
            # Waiting creates no connection, and corrects no configuration.
            return _Check(event={"error": error.message})
        missing = list_missing(statuses, ignore_non_existent=self.ignore_non_existent_datasets)
        if not missing:
            return _Check(event={"datasets": list_found_datasets(statuses)})
        has_only_events = all(status.asset.uri in self.event_uris for status in missing)
        return _Check(message="; ".join(map(str, missing)), has_only_events=has_only_events)

    async def _get_status(self, hook: WarehouseHook) -> list[PopulationStatus]:
        try:
            # Files and object stores are read in a thread, so that other triggers in this event loop can run.
            statuses = await asyncio.to_thread(get_status, hook, self.datasets, warehouse=self.warehouse)
        except SetupError as error:
            raise _UnreadableError(error.message) from error
        return await with_marks_async(statuses, ignore_non_existent=self.ignore_non_existent_datasets)


def list_found_datasets(statuses: Sequence[PopulationStatus]) -> dict[str, dict[str, Any]]:
    """Return the version and the origin of the population status of each dataset."""
    return {status.dataset: {"version": status.version, "origin": status.origin} for status in statuses}
