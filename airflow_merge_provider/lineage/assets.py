"""Name the assets of this package in lineage events as the tasks of this package name their datasets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow.sdk import Asset

from airflow_merge_provider.assets import dataset_text
from airflow_merge_provider.core.dataset import name_dataset, resolve_dataset
from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.hooks.warehouse import find_warehouse

if TYPE_CHECKING:
    from airflow.providers.common.compat.openlineage.facet import Dataset as LineageDataset


def convert_asset(asset: Asset, lineage_context: Any) -> LineageDataset:  # noqa: ARG001 - Airflow passes it
    """Convert an asset of the ``merge`` scheme to an OpenLineage dataset.

    A dataset of the warehouse has the name of its location, as in the events of the tasks that use it.
    Without a configured warehouse, it has the name of the asset.
    """
    from airflow.providers.common.compat.openlineage.facet import (  # noqa: PLC0415 - lineage is optional
        Dataset as LineageDataset,
    )

    try:
        name = name_dataset(resolve_dataset(dataset_text(asset), find_warehouse()).uri)
    except ConfigError:
        parts = urlsplit(asset.uri)
        return LineageDataset(f"{parts.scheme}://{parts.netloc}", parts.path.removeprefix("/"))
    return LineageDataset(*name)
