"""Tests of parsing references to datasets."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.errors import ConfigError


@pytest.mark.parametrize(
    ("ref", "warehouse", "uri"),
    [
        ("customers", "/lake", "/lake/customers"),
        (" customers ", "s3://lake/", "s3://lake/customers"),
        ("customers", "file:///lake", "/lake/customers"),
        ("crm.customers", None, "table:crm.customers"),
        ("lake.crm.customers", "/lake", "table:lake.crm.customers"),
        ("/data/customers/", None, "/data/customers"),
        ("file:///data/customers", None, "/data/customers"),
        ("abfss://c@a/customers/", None, "abfss://c@a/customers"),
        ({"dataset": "customers", "format": "Parquet"}, "/lake", "/lake/customers"),
    ],
)
def test_one_place_has_one_name(ref: Any, warehouse: str | None, uri: str) -> None:
    """A bare ID is in the warehouse, a name with dots is in the catalog, and anything else is a location."""
    assert resolve_dataset(ref, warehouse).uri == uri


def test_another_format_has_its_options_as_text() -> None:
    """An object names dataset, format and options; options are converted to the texts that Spark expects."""
    dataset = resolve_dataset({"dataset": "/data/x.csv", "format": "csv", "options": {"header": True}}, None)

    assert (dataset.format, dataset.options) == ("csv", {"header": "True"})


@pytest.mark.parametrize(
    ("ref", "warehouse", "message"),
    [
        ("customers", None, "at: dataset 'customers' requires a warehouse"),
        ("customers", "lake", "warehouse: 'lake' is not a valid location"),
        ("", "/lake", "at: a dataset must be a non-empty string"),
        (5, "/lake", "at: a dataset must be a non-empty string"),
        ("a b", "/lake", "at: 'a b' is not a valid dataset"),
        ("a.b.c.d", "/lake", "at: 'a.b.c.d' is not a valid dataset"),
        ({"format": "csv"}, "/lake", "at: key 'dataset' is missing"),
        ({"dataset": "a", "fromat": "csv"}, "/lake", "at: unknown key 'fromat'"),
        ({"dataset": "a", "format": "xls"}, "/lake", "at: unknown format 'xls'"),
        ({"dataset": "a", "format": "xml"}, "/lake", "at: format 'xml' requires the option rowTag"),
    ],
)
def test_what_means_nothing_is_refused(ref: Any, warehouse: str | None, message: str) -> None:
    """An invalid reference is rejected with its path and the reason."""
    with pytest.raises(ConfigError) as refused:
        resolve_dataset(ref, warehouse, at="at")

    assert refused.value.message.startswith(message)
