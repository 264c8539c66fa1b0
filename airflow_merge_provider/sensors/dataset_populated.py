"""Define the sensor that waits until datasets are populated."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSensorTimeout, conf
from airflow.sdk import Asset, BaseSensorOperator, Context, PokeReturnValue

from airflow_merge_provider.assets import dataset_asset, is_catalog
from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.errors import ConfigError, MergeError, Problem
from airflow_merge_provider.hooks._airflow_api import AirflowApiError, translate_api_errors
from airflow_merge_provider.hooks.population import PopulationStatus, get_status, list_missing, with_marks
from airflow_merge_provider.hooks.warehouse import WarehouseHook
from airflow_merge_provider.operators._arguments import (
    RefusedArgumentsError,
    as_text,
    is_literal,
    parse_rendered,
)
from airflow_merge_provider.triggers.dataset_populated import DatasetPopulatedTrigger, list_found_datasets

_ANY_WAREHOUSE = "/"
_DEFAULT_DEFERRABLE = "AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE"


class DatasetPopulatedSensor(BaseSensorOperator):
    """Wait until every dataset is populated: its producer has completed the initial load.

    The first check runs on the worker, all others in the triggerer, where waiting uses no slot. Tables are
    read without a JVM. Returns the version of each dataset, and the origin of its population status.

    :param datasets: the datasets to wait for: bare ids, locations, objects with a format, or assets.
        (templated)
    :param ignore_non_existent_datasets: whether a dataset that does not exist counts as populated.
        (templated)
    :param warehouse: the location of datasets with a bare id; by default that of the connection, then
        ``[merge] warehouse``. (templated)
    :param merge_store_conn_id: the connection of the warehouse; the default one may not exist. (templated)
    :param deferrable: wait in the triggerer; False waits on the worker. By default True, unless the
        environment variable ``AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE`` says False.
    """

    template_fields: Sequence[str] = (
        "datasets",
        "ignore_non_existent_datasets",
        "warehouse",
        "merge_store_conn_id",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"datasets": "json"}
    ui_color = "#e3edf9"

    def __init__(
        self,
        *,
        datasets: Sequence[str | Mapping[str, Any] | Asset],
        ignore_non_existent_datasets: bool | str = True,
        warehouse: str | None = None,
        merge_store_conn_id: str = WarehouseHook.default_conn_name,
        deferrable: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.datasets = as_text(datasets)
        self.ignore_non_existent_datasets = ignore_non_existent_datasets
        self.warehouse = warehouse
        self.merge_store_conn_id = merge_store_conn_id
        self.deferrable = _get_default_deferrable() if deferrable is None else deferrable
        literal = is_literal([self.datasets, ignore_non_existent_datasets])
        problems = self._find_problems() if literal else []
        if self.mode == "reschedule":
            hint = "keep deferrable=True, which occupies no worker slot either, or set mode='poke'"
            problems.append(
                Problem(
                    "mode",
                    "value",
                    "'reschedule' is not supported, because Airflow sometimes fails a sensor that only waits",
                    hint,
                )
            )
        if problems:
            error = ConfigError.from_problems(problems)
            raise RefusedArgumentsError(error.message, error.problems)
        self.add_inlets([asset for asset in map(self._build_asset, _list_datasets(datasets)) if asset])

    def execute(self, context: Context) -> Any:
        """Check once, then wait in the triggerer; without ``deferrable`` wait on the worker.

        :raises AirflowFailException: when waiting cannot help.
        """
        if not self.deferrable:
            self._render_natively()
            return super().execute(context)
        return self._check_or_defer(context, time.time() + self.timeout)

    def _check_or_defer(self, context: Context, deadline: float) -> Any:
        """Check once, then wait in the triggerer until the deadline, in seconds since the epoch."""
        self._render_natively()
        if result := self.poke(context):
            return result.xcom_value
        remaining_seconds = max(deadline - time.time(), 0.0)
        return self.defer(
            trigger=DatasetPopulatedTrigger(
                datasets=self.datasets,
                ignore_non_existent_datasets=bool(self.ignore_non_existent_datasets),
                warehouse=self.warehouse,
                merge_store_conn_id=self.merge_store_conn_id,
                poke_interval=self.poke_interval,
                event_uris=[asset.uri for asset in self.inlets if is_catalog(asset)],
                deadline=deadline,
            ),
            method_name=self.execute_complete.__name__,
            timeout=timedelta(seconds=remaining_seconds),
        )

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Return the result of the trigger; check the events of catalog tables, which it cannot read.

        :raises AirflowFailException: when waiting cannot help.
        :raises AirflowSensorTimeout: when the time is over.
        """
        if "error" in event:
            raise AirflowFailException(event["error"])
        if "datasets" in event:
            self.log.info("populated datasets: %s", ", ".join(event["datasets"]) or "none")
            return event["datasets"]
        if time.time() > event["deadline"]:
            raise AirflowSensorTimeout(f"the datasets are not populated within {self.timeout} seconds")
        return self._check_or_defer(context, event["deadline"])

    def poke(self, context: Context) -> PokeReturnValue:
        """Check once, and log the datasets that are not populated yet, or cannot be checked at the moment."""
        ignore = bool(self.ignore_non_existent_datasets)
        try:
            statuses = self._get_status(context, ignore_non_existent=ignore)
        except AirflowApiError as error:
            self.log.warning("%s", error)
            return PokeReturnValue(is_done=False)
        except MergeError as error:
            raise AirflowFailException(str(error)) from error
        missing = list_missing(statuses, ignore_non_existent=ignore)
        for status in missing or statuses:
            self.log.info("%s", status)
        if statuses and all(status.state is None for status in statuses) and not missing:
            self.log.warning("none of the datasets exists: check the names of the datasets and the warehouse")
        return PokeReturnValue(is_done=not missing, xcom_value=list_found_datasets(statuses))

    def _get_status(self, context: Context, *, ignore_non_existent: bool) -> list[PopulationStatus]:
        hook = WarehouseHook(self.merge_store_conn_id, warehouse=self.warehouse)
        statuses = get_status(hook, self.datasets, warehouse=self.warehouse)
        statuses = with_marks(statuses, ignore_non_existent=ignore_non_existent)
        return [self._by_events(status, context) for status in statuses]

    def _by_events(self, status: PopulationStatus, context: Context) -> PopulationStatus:
        """Use the last asset event as the status of a table that only Spark can read."""
        events = context.get("inlet_events")
        inlet = next((asset for asset in self.inlets if getattr(asset, "uri", "") == status.asset.uri), None)
        if status.origin != "catalog" or events is None or inlet is None:
            return status
        with translate_api_errors(f"the events of {inlet.uri}"):
            newest = iter(events[inlet].ascending(False).limit(1))  # noqa: FBT003 - newest first
            last_event = next(newest, None)
        extra: Any = (last_event and last_event.extra) or {}
        if last_event is None or extra.get("populated") is False:
            return status
        return replace(status, state="populated", origin="event", version=extra.get("version"))

    def _render_natively(self) -> None:
        """Convert rendered text to lists and booleans.

        :raises AirflowFailException: when the text is not a list of datasets.
        """
        for name in ("datasets", "ignore_non_existent_datasets"):
            value = getattr(self, name)
            setattr(self, name, parse_rendered(value) if isinstance(value, str) else as_text(value))
        if problems := self._find_problems():
            raise AirflowFailException(ConfigError.from_problems(problems).message)

    def _find_problems(self) -> list[Problem]:
        problems = []
        if not isinstance(self.datasets, (list, tuple)):
            problems.append(
                Problem("datasets", "value", f"must be a list of datasets, not {self.datasets!r}")
            )
        if not isinstance(self.ignore_non_existent_datasets, bool):
            problems.append(
                Problem(
                    "ignore_non_existent_datasets",
                    "value",
                    f"must be a boolean, not {self.ignore_non_existent_datasets!r}",
                )
            )
        for index, ref in enumerate(_list_datasets(self.datasets)):
            try:
                resolve_dataset(ref, _ANY_WAREHOUSE, at=f"datasets[{index}]")
            except ConfigError as error:
                problems += error.problems
        return problems

    def _build_asset(self, ref: Any) -> Asset | None:
        if isinstance(ref, Asset):
            return ref
        literal = is_literal(ref) and is_literal(self.warehouse)
        return dataset_asset(ref, warehouse=self.warehouse) if literal else None


def _get_default_deferrable() -> bool:
    """Return ``[operators] default_deferrable`` if the environment sets it, else True.

    The airflow.cfg that Airflow writes contains its own default, False, which nobody has chosen.
    """
    return conf.getboolean("operators", "default_deferrable") if _DEFAULT_DEFERRABLE in os.environ else True


def _list_datasets(datasets: Any) -> list[Any]:
    return list(datasets) if isinstance(datasets, (list, tuple)) else []
