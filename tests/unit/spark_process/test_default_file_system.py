"""Tests of the default file system of Hadoop, in which Spark looks for absolute paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_merge_provider import before_spark
from airflow_merge_provider.core.child_process import FILESYSTEM_SETTING
from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.spark_process.connect_server import build_server_conf
from airflow_merge_provider.spark_process.jvm.spark_defaults import has_local_paths
from tests.tables import create_table

HDFS = "hdfs://node:8020"
INCLUDE = '<xi:include xmlns:xi="http://www.w3.org/2001/XInclude" href="more.xml"/>'


@pytest.fixture
def hadoop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of Hadoop's settings; that of Spark is empty."""
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_CONF_DIR"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))
    return tmp_path / "HADOOP_CONF_DIR"


def write_site(folder: Path, value: str, name: str = "fs.defaultFS") -> None:
    entry = f"<property><name> {name} </name>\n<value>\n{value}\n</value></property>"
    (folder / "core-site.xml").write_text(f"<configuration>{entry}</configuration>")


def test_without_settings_paths_are_local(hadoop: Path) -> None:
    """Folders without the file, and files without the setting, leave the default of Hadoop."""
    assert has_local_paths({})
    write_site(hadoop, "other", "hadoop.tmp.dir")
    assert has_local_paths({})
    write_site(hadoop, "file:///")
    assert has_local_paths({})


@pytest.mark.parametrize("name", ["fs.defaultFS", "fs.default.name"])
def test_every_place_of_the_setting_counts(hadoop: Path, name: str) -> None:
    """The settings of the run win over spark-defaults.conf, and both over core-site.xml."""
    spark_folder, yarn_folder = (hadoop.parent / f"{kind}_CONF_DIR" for kind in ("SPARK", "YARN"))
    assert not has_local_paths({f"spark.hadoop.{name}": HDFS})
    write_site(yarn_folder, HDFS, name)
    assert not has_local_paths({})
    assert has_local_paths({f"spark.hadoop.{name}": "file:///"})
    write_site(hadoop, "file:///", name)
    assert has_local_paths({})
    write_site(spark_folder, HDFS, name)
    assert not has_local_paths({})
    (spark_folder / "spark-defaults.conf").write_text(f"spark.hadoop.{name} file:///\n")
    assert has_local_paths({})


@pytest.mark.parametrize("text", ["<configuration>", "", f"<configuration>{INCLUDE}</configuration>"])
def test_what_only_hadoop_can_read_is_left_to_spark(hadoop: Path, text: str) -> None:
    """A file that cannot be read, or that includes others, may name another file system."""
    (hadoop / "core-site.xml").write_text(text)

    assert not has_local_paths({})


def test_absolute_paths_of_hdfs_are_not_looked_for_on_this_machine(hadoop: Path, tmp_path: Path) -> None:
    """A run on this machine starts Spark, and its server does not say that it sees the files of the task."""
    create_table(tmp_path / "t")
    token = RunToken(dag_id="d", run_id="r", task_id="t")
    config = {"strategy": "upsert", "source": str(tmp_path / "none"), "target": "t", "primary_key": ["_id"]}
    request = JobRequest(job="merge_load", config=config, run=token, warehouse=str(tmp_path), started_at=7)
    with pytest.raises(DataError, match="was written by another writer"):
        before_spark.find_result(request, conf={}, is_local=True, on_line=print)

    write_site(hadoop, HDFS)

    assert before_spark.find_result(request, conf={}, is_local=True, on_line=print) is None
    assert FILESYSTEM_SETTING not in build_server_conf({}, master="local[1]")
