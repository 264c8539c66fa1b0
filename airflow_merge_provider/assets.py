"""Map datasets to Airflow assets and assets back to datasets.

The mapping is computed while a DAG is parsed, without connections, configuration or files:

* a bare id is ``merge://warehouse/<id>``, whichever warehouse the deployment configures;
* a catalog table is ``merge://catalog/<name in lower case>``;
* a location, or a bare id with an explicit warehouse, is that location as a URI.

Every asset gets both a name and a URI: Airflow normalises only the URI, so two spellings of a name would make
two assets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import SplitResult, urlsplit

from airflow.sdk import Asset, AssetWatcher

from airflow_merge_provider.core.dataset import (
    Dataset,
    format_file_uri,
    is_bare_id,
    is_table_name,
    resolve_dataset,
)

GROUP = "merge"
WAREHOUSE_ASSET = "merge://warehouse"
CATALOG = "merge://catalog"
# What Airflow removes from a URI or refuses.
_NOT_IN_URIS = re.compile(r"[?#]|[^\x00-\x7f]")


def dataset_asset(
    ref: str | Mapping[str, Any] | Asset,
    *,
    warehouse: str | None = None,
    extra: dict[str, Any] | None = None,
    watchers: Sequence[AssetWatcher] = (),
) -> Asset:
    """Return the asset of a dataset. The same dataset has the same asset in every DAG.

    ``watchers`` report changes that are made outside Airflow.

    >>> dataset_asset("customers").uri
    'merge://warehouse/customers'
    >>> dataset_asset("/lake/customers") == dataset_asset("customers", warehouse="/lake")
    True

    :raises ConfigError: when ``ref`` is not a valid dataset reference.
    :raises ValueError: when Airflow has no URI for its location.
    """
    if isinstance(ref, Asset):
        return ref
    uri = _asset_uri(resolve_dataset(ref, warehouse or WAREHOUSE_ASSET, at="dataset"))
    return Asset(name=_build_name(uri), uri=uri, group=GROUP, extra=extra, watchers=list(watchers))


def dataset_text(asset: Asset) -> str:
    """Return the dataset of an asset as text that operators accept.

    >>> dataset_text(dataset_asset("lake.crm.customers"))
    'lake.crm.customers'
    """
    for root in (WAREHOUSE_ASSET, CATALOG):
        if asset.uri.startswith(f"{root}/"):
            return asset.uri.removeprefix(f"{root}/")
    return asset.uri


def is_catalog(asset: Asset) -> bool:
    """Return whether an asset represents a catalog table, which only Spark can read."""
    return asset.uri.startswith(f"{CATALOG}/")


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Normalise a ``merge`` URI. Airflow calls this function for every asset of the scheme.

    :raises ValueError: when the URI is neither ``merge://warehouse/<id>`` nor ``merge://catalog/<table>``.
    """
    root, name = uri.netloc.lower(), uri.path.removeprefix("/")
    if root == "warehouse" and is_bare_id(name) and not uri.query:
        return uri._replace(netloc=root)
    if root == "catalog" and is_table_name(name) and not uri.query:
        # Spark resolves table names case-insensitively, so the URI uses lower case only.
        return uri._replace(netloc=root, path=uri.path.lower())
    raise ValueError(
        f"{uri.geturl()!r} is not a valid dataset URI: use merge://warehouse/<id> or "
        "merge://catalog/<catalog.schema.table>"
    )


def create_asset(*, dataset: str, extra: dict[str, Any] | None = None) -> Asset:
    """Create an asset of the ``merge`` scheme for callers that have only the scheme (hook lineage)."""
    return dataset_asset(dataset, extra=extra)


def _asset_uri(dataset: Dataset) -> str:
    if dataset.table is not None:
        return f"{CATALOG}/{dataset.table.lower()}"
    path = dataset.path or ""
    if path.startswith("/"):
        return format_file_uri(path)
    if wrong := _NOT_IN_URIS.search(path):
        raise ValueError(f"{path}: the URI of an Airflow asset cannot hold {wrong[0]!r}: use another name")
    return path


def _build_name(uri: str) -> str:
    """Return a readable asset name such as ``warehouse.customers``; the name of a location is its URI."""
    parts = urlsplit(uri)
    return f"{parts.netloc}.{parts.path.removeprefix('/')}" if parts.scheme == "merge" else uri
