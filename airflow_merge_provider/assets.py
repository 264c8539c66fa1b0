"""Which Airflow asset stands for a dataset, and which dataset an asset stands for.

Decided while a DAG is parsed, so without connections, configuration or files:

* a bare id is ``merge://warehouse/<id>``, whichever warehouse the deployment configures;
* a catalog table is ``merge://catalog/<name in lower case>``;
* a location, or a bare id with a warehouse given beside it, is that location as a URI.

Name and URI are always both given: Airflow normalises only the URI, and two spellings would be two assets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from airflow.sdk import Asset, AssetWatcher

from airflow_merge_provider.core.dataset import Dataset, resolve_dataset

if TYPE_CHECKING:
    from airflow.providers.common.compat.openlineage.facet import Dataset as LineageDataset

GROUP = "merge"
WAREHOUSE = "merge://warehouse"
CATALOG = "merge://catalog"
_BARE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-]*\Z")
_TABLE = re.compile(r"[A-Za-z0-9_\-]+(\.[A-Za-z0-9_\-]+){1,2}\Z")


def dataset_asset(
    ref: str | Mapping[str, Any] | Asset,
    *,
    warehouse: str | None = None,
    extra: dict[str, Any] | None = None,
    watchers: Sequence[AssetWatcher] = (),
) -> Asset:
    """Return the asset of a dataset: the same one for the same dataset, in every DAG.

    ``watchers`` tell of changes that are made outside Airflow.

    >>> dataset_asset("customers").uri
    'merge://warehouse/customers'
    >>> dataset_asset("/lake/customers") == dataset_asset("customers", warehouse="/lake")
    True

    :raises ConfigError: when ``ref`` names no dataset.
    """
    if isinstance(ref, Asset):
        return ref
    uri = _asset_uri(resolve_dataset(ref, warehouse or WAREHOUSE, at="dataset"))
    return Asset(name=_build_name(uri), uri=uri, group=GROUP, extra=extra, watchers=list(watchers))


def dataset_text(asset: Asset) -> str:
    """Write the dataset behind an asset as text that operators understand.

    >>> dataset_text(dataset_asset("lake.crm.customers"))
    'lake.crm.customers'
    """
    for root in (WAREHOUSE, CATALOG):
        if asset.uri.startswith(f"{root}/"):
            return asset.uri.removeprefix(f"{root}/")
    return asset.uri


def is_catalog(asset: Asset) -> bool:
    """Return whether a catalog table stands behind an asset: only Spark can read it."""
    return asset.uri.startswith(f"{CATALOG}/")


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Normalise a ``merge`` URI; Airflow calls this for every asset of the scheme.

    :raises ValueError: when the URI is neither ``merge://warehouse/<id>`` nor ``merge://catalog/<table>``.
    """
    root, name = uri.netloc.lower(), uri.path.removeprefix("/")
    if root == "warehouse" and _BARE.match(name) and not uri.query:
        return uri._replace(netloc=root)
    if root == "catalog" and _TABLE.match(name) and not uri.query:
        # Spark finds a table whatever the case of its name, so one spelling stands for all.
        return uri._replace(netloc=root, path=uri.path.lower())
    raise ValueError(
        f"{uri.geturl()!r} is no dataset: write merge://warehouse/<id> or merge://catalog/<catalog.schema.table>"
    )


def create_asset(*, dataset: str, extra: dict[str, Any] | None = None) -> Asset:
    """Make an asset of the ``merge`` scheme for code that knows only the scheme (hook lineage)."""
    return dataset_asset(dataset, extra=extra)


def lineage_dataset(asset: Asset, lineage_context: Any) -> LineageDataset | None:  # noqa: ARG001 - the caller gives it
    """Convert an asset of the ``merge`` scheme to an OpenLineage dataset."""
    from airflow.providers.common.compat.openlineage.facet import (  # noqa: PLC0415 - lineage is optional
        Dataset as LineageDataset,
    )

    parts = urlsplit(asset.uri)
    return LineageDataset(namespace=f"{parts.scheme}://{parts.netloc}", name=parts.path.removeprefix("/"))


def _asset_uri(dataset: Dataset) -> str:
    if dataset.table is not None:
        return f"{CATALOG}/{dataset.table.lower()}"
    path = dataset.path or ""
    return f"file://{path}" if path.startswith("/") else path


def _build_name(uri: str) -> str:
    """Name by what people read: ``warehouse.customers``; a location is its own name."""
    parts = urlsplit(uri)
    return f"{parts.netloc}.{parts.path.removeprefix('/')}" if parts.scheme == "merge" else uri
