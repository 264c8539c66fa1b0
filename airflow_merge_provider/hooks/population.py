"""Return which datasets are populated, and the origin of that status, without a JVM.

The dataset's own commits take precedence over a mark in the state store of its asset. Only Spark can read a
catalog table, so its status comes from the mark alone,
which a person sets in Airflow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk import Asset, Context
from airflow.sdk.execution_time.context import AssetStateStoreAccessor

from airflow_merge_provider.assets import dataset_asset, dataset_text, is_catalog
from airflow_merge_provider.core.dataset import Dataset, DatasetRef, is_skipped_by_spark
from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.core.object_store.clients import complete_arguments
from airflow_merge_provider.core.population import FLAG, State, list_unpopulated, table_state
from airflow_merge_provider.core.report import Report
from airflow_merge_provider.file_store.folder import open_folder
from airflow_merge_provider.hooks._airflow_api import translate_api_errors
from airflow_merge_provider.hooks.warehouse import WarehouseHook

if TYPE_CHECKING:
    from deltalake import DeltaTable


Origin = Literal["flag", "rows", "files", "mark", "event", "missing", "catalog"]


@dataclass(frozen=True, slots=True)
class PopulationStatus:
    """The population status of one dataset; ``state`` is None when it does not exist.

    ``origin`` is the source of the state: the table's flag, the rows of a table that others write, existing
    files, or a mark or an event in Airflow.
    """

    dataset: str
    uri: str
    asset: Asset
    state: State | None
    origin: Origin
    version: int | None = None

    def __str__(self) -> str:
        if self.state == "populated":
            return f"{self.dataset} is populated ({self.origin})"
        if self.state is None:
            return f"{self.dataset} does not exist at {self.uri}"
        if self.origin == "catalog":
            return f"{self.dataset} is a catalog table that is not marked as populated"
        version = "" if self.version is None else f" at version {self.version}"
        return f"{self.dataset} exists{version}, but is not populated yet"

    def with_mark(self) -> PopulationStatus:
        """Return the status of the same dataset with the state set by a mark in Airflow."""
        return replace(self, state="populated", origin="mark")


def get_status(
    hook: WarehouseHook, refs: Sequence[DatasetRef], *, warehouse: str | None = None
) -> list[PopulationStatus]:
    """Return the status of each dataset; ``warehouse`` is that of the operator, for the assets.

    :raises ConfigError: when a reference is not a valid dataset reference.
    :raises SetupError: when a location cannot be read.
    """
    return [_get_dataset_status(hook, ref, dataset_asset(ref, warehouse=warehouse)) for ref in refs]


def list_missing(
    statuses: Iterable[PopulationStatus], *, ignore_non_existent: bool
) -> list[PopulationStatus]:
    """Return the datasets that are not populated yet and have to be waited for."""
    by_uri = {status.uri: status for status in statuses}
    state = {uri: status.state for uri, status in by_uri.items() if status.state is not None}
    return [by_uri[uri] for uri in list_unpopulated(by_uri, state, ignore_non_existent=ignore_non_existent)]


def with_marks(statuses: Sequence[PopulationStatus], *, ignore_non_existent: bool) -> list[PopulationStatus]:
    """Apply the marks of datasets that are not populated yet; for use in a task."""
    missing = list_missing(statuses, ignore_non_existent=ignore_non_existent)
    return [
        status.with_mark() if status in missing and is_marked(status.asset) else status for status in statuses
    ]


async def with_marks_async(
    statuses: Sequence[PopulationStatus], *, ignore_non_existent: bool
) -> list[PopulationStatus]:
    """Apply the marks of datasets that are not populated yet; for use in a trigger."""
    missing = list_missing(statuses, ignore_non_existent=ignore_non_existent)
    return [
        status.with_mark() if status in missing and await is_marked_async(status.asset) else status
        for status in statuses
    ]


def _get_dataset_status(hook: WarehouseHook, ref: DatasetRef, asset: Asset) -> PopulationStatus:
    dataset = hook.resolve_dataset(ref)
    if dataset.path is None:
        return PopulationStatus(dataset.id, dataset.uri, asset, "unpopulated", "catalog")
    if dataset.format == "delta":
        return _get_table_status(hook, dataset, asset)
    if _has_files(hook, dataset.path):
        return PopulationStatus(dataset.id, dataset.uri, asset, "populated", "files")
    return PopulationStatus(dataset.id, dataset.uri, asset, None, "missing")


def _get_table_status(hook: WarehouseHook, dataset: Dataset, asset: Asset) -> PopulationStatus:
    table = hook.open_table(dataset)
    if table is None:
        return PopulationStatus(dataset.id, dataset.uri, asset, None, "missing")
    properties = {str(name): str(value) for name, value in table.metadata().configuration.items()}
    state = table_state(properties, lambda: _has_rows(table))
    origin: Origin = "flag" if FLAG in properties else "rows"
    return PopulationStatus(dataset.id, dataset.uri, asset, state, origin, table.version())


def _has_rows(table: DeltaTable) -> bool:
    """Return whether a table has rows, from its log alone; a file without a row count counts as non-empty."""
    counts = table.get_add_actions().column("num_records").to_pylist()
    return any(count is None or count > 0 for count in counts)


def _has_files(hook: WarehouseHook, path: str) -> bool:
    """Return whether the path is a file, or a folder that contains a file that Spark reads."""
    try:
        files, root = open_folder(path, complete_arguments(path, hook.store_settings))
        if files.isfile(root):
            return True
        return files.isdir(root) and any(
            not is_skipped_by_spark(str(file).removeprefix(root).lstrip("/")) for file in files.find(root)
        )
    except OSError as error:
        raise SetupError(f"{path} cannot be read: {error}") from error


MARK = "populated"


def is_marked(asset: Asset) -> bool:
    """Return whether an asset is marked as populated; for use in a task.

    :raises AirflowApiError: when the API of Airflow does not answer.
    """
    with translate_api_errors(f"the mark of {asset.uri}"):
        return _is_mark(AssetStateStoreAccessor(uri=asset.uri).get(MARK))


async def is_marked_async(asset: Asset) -> bool:
    """Return whether an asset is marked as populated; for use in a trigger.

    :raises AirflowApiError: when the API of Airflow does not answer.
    """
    with translate_api_errors(f"the mark of {asset.uri}"):
        return _is_mark(await AssetStateStoreAccessor(uri=asset.uri).aget(MARK))


def find_marked(assets: Iterable[Any], context: Context) -> list[str]:
    """Return the datasets of those of a task's assets that are marked as populated."""
    store = context.get("asset_state_store")
    if store is None:
        return []
    return [
        dataset_text(asset)
        for asset in assets
        if isinstance(asset, Asset) and _is_mark(store[asset].get(MARK))
    ]


def mark_populated(asset: Asset, report: Report, context: Context) -> None:
    """Mark a populated catalog table, for readers without Spark; remove only marks set by this package."""
    store = context.get("asset_state_store")
    if store is None or report.populated is None or not is_catalog(asset):
        return
    if report.populated:
        store[asset].set(MARK, {"run_id": context["run_id"], "job": report.job})
    elif _is_own(store[asset].get(MARK)):
        store[asset].delete(MARK)


def _is_mark(value: Any) -> bool:
    """Return whether a value marks a dataset as populated: any value except None, False and "false"."""
    return value not in (None, False, "false")


def _is_own(value: Any) -> bool:
    return isinstance(value, Mapping) and "job" in value
