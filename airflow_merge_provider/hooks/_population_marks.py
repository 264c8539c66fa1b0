"""Read and write population marks in the asset state store of Airflow.

Users and jobs mark a dataset as populated there if its table cannot record it. The accessor is a class of
Airflow's SDK that is not part of its public exports; only this module uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from airflow.sdk import Asset, Context
from airflow.sdk.execution_time.context import AssetStateStoreAccessor

from airflow_merge_provider.assets import dataset_text, is_catalog
from airflow_merge_provider.hooks._airflow_api import translate_api_errors

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


def mark_populated(asset: Asset, report: Mapping[str, Any], context: Context) -> None:
    """Mark a populated catalog table, for readers without Spark; remove only marks set by this package."""
    store = context.get("asset_state_store")
    if store is None or report.get("populated") is None or not is_catalog(asset):
        return
    if report["populated"]:
        store[asset].set(MARK, {"run_id": context["run_id"], "job": report.get("job")})
    elif _is_own(store[asset].get(MARK)):
        store[asset].delete(MARK)


def _is_mark(value: Any) -> bool:
    """Return whether a value marks a dataset as populated: any value except None, False and "false"."""
    return value not in (None, False, "false")


def _is_own(value: Any) -> bool:
    return isinstance(value, Mapping) and "job" in value
