"""Which asset a dataset is, and back."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import Asset

from airflow_merge_provider.assets import create_asset, dataset_asset, dataset_text, lineage_dataset
from airflow_merge_provider.core.errors import ConfigError


@pytest.mark.parametrize(
    ("ref", "warehouse", "name", "uri"),
    [
        ("customers", None, "warehouse.customers", "merge://warehouse/customers"),
        ("Customers", None, "warehouse.Customers", "merge://warehouse/Customers"),
        ("customers", "/lake", "file:///lake/customers", "file:///lake/customers"),
        ("customers", "s3://lake/", "s3://lake/customers", "s3://lake/customers"),
        ("lake.crm.People", None, "catalog.lake.crm.people", "merge://catalog/lake.crm.people"),
        ("lake.crm.people", "/lake", "catalog.lake.crm.people", "merge://catalog/lake.crm.people"),
        ("/lake/customers/", None, "file:///lake/customers", "file:///lake/customers"),
        ("file:///lake/customers", None, "file:///lake/customers", "file:///lake/customers"),
        ("s3://lake/customers/", None, "s3://lake/customers", "s3://lake/customers"),
        ({"dataset": "/in/a", "format": "csv"}, None, "file:///in/a", "file:///in/a"),
    ],
)
def test_a_dataset_has_one_asset(ref: Any, warehouse: Any, name: Any, uri: Any) -> None:
    """Name and URI follow from the reference, and from a warehouse only when it is written beside it."""
    asset = dataset_asset(ref, warehouse=warehouse)

    assert (asset.name, asset.uri, asset.group) == (name, uri, "merge")


def test_an_asset_stays_itself() -> None:
    """A user's own asset keeps its name, and nothing is made beside it."""
    asset = Asset(name="mine", uri="s3://lake/customers")

    assert dataset_asset(asset) is asset


@pytest.mark.parametrize("ref", ["", "a b", "a/b", "a.b.c.d", None, 5])
def test_what_names_no_dataset_has_no_asset(ref: Any) -> None:
    """The error names the dataset and what can be written instead."""
    with pytest.raises(ConfigError):
        dataset_asset(ref)


@pytest.mark.parametrize("ref", ["customers", "lake.crm.people", "s3://lake/customers"])
def test_the_text_of_an_asset_is_the_dataset_it_was_made_of(ref: Any) -> None:
    """An asset given as dataset means what its text meant."""
    assert dataset_text(dataset_asset(ref)) == ref


def test_an_asset_with_a_name_only_is_the_dataset_of_that_name() -> None:
    """Airflow makes the name the URI when no URI is given."""
    assert dataset_text(Asset("customers")) == "customers"


@pytest.mark.parametrize(
    ("written", "uri"),
    [
        ("MERGE://Warehouse/Customers", "merge://warehouse/Customers"),
        ("merge://catalog/Lake.Crm.People", "merge://catalog/lake.crm.people"),
        ("merge://warehouse/customers/", "merge://warehouse/customers"),
    ],
)
def test_airflow_normalises_the_scheme_by_our_rule(written: Any, uri: Any) -> None:
    """The sanitizer is registered through the provider info."""
    assert Asset(uri=written).uri == uri


@pytest.mark.parametrize(
    "uri",
    ["merge://elsewhere/a", "merge://warehouse/a/b", "merge://warehouse", "merge://catalog/a", "merge:///a"],
)
def test_a_wrong_uri_of_the_scheme_says_what_is_right(uri: Any) -> None:
    """It becomes an import error of the DAG, with our words."""
    with pytest.raises(ValueError, match="write merge://warehouse/<id>"):
        Asset(uri=uri)


def test_the_factory_makes_the_same_asset() -> None:
    """Code that knows only the scheme gets the asset that operators use."""
    assert create_asset(dataset="customers", extra={"a": 1}) == dataset_asset("customers", extra={"a": 1})


def test_an_asset_is_a_dataset_of_lineage() -> None:
    """OpenLineage sees the root as namespace and the rest as name."""
    found = lineage_dataset(dataset_asset("lake.crm.people"), None)

    assert (found.namespace, found.name) == ("merge://catalog", "lake.crm.people")
