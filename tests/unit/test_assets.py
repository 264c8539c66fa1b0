"""Tests of mapping datasets to assets and back."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import Asset

from airflow_merge_provider.assets import create_asset, dataset_asset, dataset_text
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
    """Name and URI of an asset depend on the reference, and on the warehouse only if it is given with it."""
    asset = dataset_asset(ref, warehouse=warehouse)

    assert (asset.name, asset.uri, asset.group) == (name, uri, "merge")


def test_an_asset_stays_itself() -> None:
    """An asset of the user keeps its name and gets no second asset."""
    asset = Asset(name="mine", uri="s3://lake/customers")

    assert dataset_asset(asset) is asset


@pytest.mark.parametrize("ref", ["", "a b", "a/b", "a.b.c.d", None, 5])
def test_what_names_no_dataset_has_no_asset(ref: Any) -> None:
    """A reference without an asset is rejected with the dataset and valid alternatives."""
    with pytest.raises(ConfigError):
        dataset_asset(ref)


@pytest.mark.parametrize("ref", ["customers", "lake.crm.people", "s3://lake/customers"])
def test_the_text_of_an_asset_is_the_dataset_it_was_made_of(ref: Any) -> None:
    """An asset given as dataset is the dataset whose text it was created from."""
    assert dataset_text(dataset_asset(ref)) == ref


def test_an_asset_with_a_name_only_is_the_dataset_of_that_name() -> None:
    """An asset without a URI is the dataset of its name, because Airflow uses the name as URI."""
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
    """Airflow normalises URIs of the scheme with the sanitizer that the provider info registers."""
    assert Asset(uri=written).uri == uri


@pytest.mark.parametrize(
    "uri",
    ["merge://elsewhere/a", "merge://warehouse/a/b", "merge://warehouse", "merge://catalog/a", "merge:///a"],
)
def test_a_wrong_uri_of_the_scheme_says_what_is_right(uri: Any) -> None:
    """An invalid URI of the scheme is a DAG import error with the message of this package."""
    with pytest.raises(ValueError, match="use merge://warehouse/<id>"):
        Asset(uri=uri)


def test_the_factory_makes_the_same_asset() -> None:
    """The asset factory returns the same asset as the operators, for code that only uses the scheme."""
    assert create_asset(dataset="customers", extra={"a": 1}) == dataset_asset("customers", extra={"a": 1})
