"""Tests of the names of assets in lineage events."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_merge_provider.assets import dataset_asset
from airflow_merge_provider.lineage import assets


@pytest.mark.parametrize(
    ("ref", "warehouse", "name"),
    [
        ("customers", "/lake/", ("file", "/lake/customers")),
        ("customers", "s3a://lake/warehouse", ("s3://lake", "warehouse/customers")),
        ("customers", None, ("merge://warehouse", "customers")),
        ("lake.crm.People", None, ("merge://catalog", "lake.crm.people")),
    ],
)
def test_an_asset_is_named_as_tasks_name_its_dataset(
    ref: str, warehouse: Any, name: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An asset of the warehouse is its location; without a warehouse, it is known by its own name."""
    monkeypatch.setattr(assets, "find_warehouse", lambda: warehouse)

    dataset = assets.convert_asset(dataset_asset(ref), None)

    assert (dataset.namespace, dataset.name) == name
