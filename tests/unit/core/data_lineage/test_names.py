"""Tests of the names of datasets in lineage events."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_merge_provider.core.data_lineage.names import name_dataset


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
