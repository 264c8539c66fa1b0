"""Tests of references to datasets and of the names of datasets in lineage events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_merge_provider.core.dataset import name_dataset, resolve_dataset
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

    assert (dataset.format, dataset.options) == ("csv", {"header": "true"})


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


# The expected names are those of OpenLineage's naming conventions, and of the tests of its Java client
# (FilesystemDatasetUtilsTestFor*.java), which its Spark integration uses.
@pytest.mark.parametrize(
    ("uri", "namespace", "name"),
    [
        ("/lake/golden", "file", "/lake/golden"),
        ("/lake//crm/../golden/", "file", "/lake/golden"),
        ("file:///lake/golden", "file", "/lake/golden"),
        ("file:/lake/golden", "file", "/lake/golden"),
        ("/lake/a#b?c", "file", "/lake/a#b?c"),
        ("/", "file", "/"),
        ("s3://lake/crm/golden", "s3://lake", "crm/golden"),
        ("s3a://lake/crm/golden/", "s3://lake", "crm/golden"),
        ("s3n://lake/crm/./golden", "s3://lake", "crm/golden"),
        ("s3://lake", "s3://lake", "/"),
        ("gs://lake/golden", "gs://lake", "golden"),
        ("abfs://box@acc.dfs.core.windows.net/golden", "abfss://box@acc.dfs.core.windows.net", "golden"),
        ("wasb://box@acc.dfs.core.windows.net/golden", "wasbs://box@acc.dfs.core.windows.net", "golden"),
        ("hdfs://node:8020/lake/golden/", "hdfs://node:8020", "/lake/golden"),
        ("hdfs:///lake/golden", "hdfs", "/lake/golden"),
        ("dbfs:/mnt/golden", "dbfs", "/mnt/golden"),
        ("table:lake.crm.Golden", "merge://catalog", "lake.crm.golden"),
    ],
)
def test_a_dataset_has_the_name_that_other_tools_give_it(uri: str, namespace: str, name: str) -> None:
    """Each notation of a location gives the one name of OpenLineage's conventions."""
    assert name_dataset(uri) == (namespace, name)


def test_a_symbolic_link_is_a_name(tmp_path: Path) -> None:
    """Symbolic links are not resolved, because other tools do not resolve them."""
    (tmp_path / "link").symlink_to(tmp_path / "real")

    assert name_dataset(f"{tmp_path}/link/a").name == f"{tmp_path}/link/a"
