"""Tests of the jar of the log store, and of the jars that a run over S3 adds."""

from __future__ import annotations

import os
import re
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.core.object_store.azure_settings import AzureSettings
from airflow_merge_provider.core.object_store.clients import add_spark_settings
from airflow_merge_provider.core.object_store.gcs_settings import GcsSettings
from airflow_merge_provider.core.object_store.s3_settings import S3Settings
from airflow_merge_provider.core.spark_conf import session_conf
from airflow_merge_provider.spark_process import launch
from airflow_merge_provider.spark_process.jvm import jars
from airflow_merge_provider.spark_process.jvm.jars import delta_jars, find_java, spark_home
from airflow_merge_provider.spark_process.jvm.log_store import jar


@pytest.mark.spark
def test_two_builds_give_the_same_jar(tmp_path: Path) -> None:
    """The jar depends on the sources and the compiler only, and contains the classes of the settings."""
    first, second = tmp_path / "first.jar", tmp_path / "other" / "second.jar"
    conf = session_conf(local=True, jars=[], user=add_spark_settings({}, "s3://lake", S3Settings()))

    jar.build_jar(first)
    jar.build_jar(second)

    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as archive:
        classes = {name.removesuffix(".class").replace("/", ".") for name in archive.namelist()}
        assert {value for value in conf.values() if value.startswith("airflow_merge_provider.")} <= classes
        assert archive.infolist()[0].date_time == (1980, 1, 1, 0, 0, 0)


@pytest.mark.spark
def test_a_log_entry_is_durable_and_whole(tmp_path: Path) -> None:
    """An entry is on the disk before it has its name, and a write that fails leaves no part of an entry.

    Without hard links it is refused, or moved if there is only one writer.
    """
    class_path = os.pathsep.join([str(jar.find_log_store_jar()), *delta_jars(), f"{spark_home()}/jars/*"])
    java, source = str(find_java()), str(Path(__file__).with_name("LogStoreProbe.java"))
    compiler = [java, "-jar", str(jar._find_compiler()), "-nowarn", "-proc:none", "-source", "17"]
    api_jar = next(spark_home().glob("jars/hadoop-client-api-*.jar"))
    compile_path = class_path.replace("/*", f"/{api_jar.name}")
    subprocess.run([*compiler, "-classpath", compile_path, "-d", str(tmp_path), source], check=True)

    command = [java, "-cp", f"{tmp_path}:{class_path}", "airflow_merge_provider.LogStoreProbe", str(tmp_path)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()

    assert (tmp_path / "0.json").read_text() == "{}\n{}\n"
    forced = [line for line in output if line.startswith("forced ")]
    assert len(forced) == 1
    assert re.fullmatch(r"forced \.0\.json\..*\.tmp", forced[0])
    refused, linked = (line for line in output if line.startswith(("refused ", "linked ")))
    assert "is on a file system without hard links" in refused
    assert linked == "linked true"
    assert output[-2:] == ["[abort] part 1 is lost"] * 2


@pytest.mark.spark
def test_a_source_that_cannot_be_compiled_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has the message of the compiler, and no jar is written."""
    source = tmp_path / "ConditionalWriteLogStore.java"
    source.write_text("class ConditionalWriteLogStore { int number = text; }")
    monkeypatch.setattr(jar, "SOURCE_FOLDER", tmp_path)

    with pytest.raises(SetupError, match=r"log stores cannot be compiled: (.|\n)*text"):
        jar.build_jar(tmp_path / "log_store.jar")
    assert not (tmp_path / "log_store.jar").exists()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a machine whose Spark has no jars, and whose other jars are found."""
    (tmp_path / "jars").mkdir()
    monkeypatch.setattr(launch, "spark_home", lambda: tmp_path)
    monkeypatch.setattr(launch, "delta_jars", lambda: ("/delta.jar",))
    monkeypatch.setattr(launch, "find_log_store_jar", lambda: Path("/log_store.jar"))
    monkeypatch.setattr(jars.HadoopClient, "find_jars", lambda client: (f"/{client.artifact}.jar",))
    return tmp_path


def _list_jars(conf: dict[str, str], **more: Any) -> tuple[str, ...]:
    return launch.list_jars(add_spark_settings(conf, "s3://lake", S3Settings()), **more)


def test_a_run_over_s3_adds_its_jars(machine: Path) -> None:
    """A run on this machine gets the log store and the S3 client; a cluster has a client of its own."""
    assert _list_jars({}) == ("/delta.jar", "/log_store.jar", "/hadoop-aws.jar")
    assert _list_jars({}, local=False) == ("/delta.jar", "/log_store.jar")
    assert launch.list_jars({}) == ("/delta.jar", "/log_store.jar")


@pytest.mark.parametrize("setting", ["spark.delta.logStore.{}.impl", "spark.delta.logStore.class"])
def test_another_log_store_needs_the_client_too(machine: Path, setting: str) -> None:
    """A run with a log store of the user reads and writes S3, too."""
    conf = {setting.format(scheme): "io.delta.storage.S3DynamoDBLogStore" for scheme in ("s3", "s3a")}

    assert _list_jars(conf) == ("/delta.jar", "/log_store.jar", "/hadoop-aws.jar")


def test_a_run_over_google_cloud_adds_its_jar(machine: Path) -> None:
    """A run on this machine gets the client of Google Cloud Storage; Delta has the log store."""
    conf = add_spark_settings({}, "gs://lake", GcsSettings())

    assert launch.list_jars(conf) == ("/delta.jar", "/log_store.jar", "/hadoop-gcp.jar")
    assert launch.list_jars(conf, local=False) == ("/delta.jar", "/log_store.jar")


def test_a_run_over_azure_adds_its_jar(machine: Path) -> None:
    """A run on this machine gets the client of Azure; a cluster provides it."""
    conf = add_spark_settings({}, "abfss://lake@a.dfs.core.windows.net", AzureSettings())

    assert launch.list_jars(conf) == ("/delta.jar", "/log_store.jar", "/hadoop-azure.jar")
    assert launch.list_jars(conf, local=False) == ("/delta.jar", "/log_store.jar")


def test_jars_of_the_user_are_not_added_again(machine: Path) -> None:
    """Neither jars of the settings nor those of Spark's own folder are added."""
    packages = {"spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.5.0"}
    assert _list_jars(packages) == ("/delta.jar", "/log_store.jar")
    assert _list_jars({"spark.driver.extraClassPath": "/mine/delta-spark_4.2.jar"})[0] == "/log_store.jar"
    (machine / "jars" / "hadoop-aws-3.5.0.jar").touch()
    assert _list_jars({}) == ("/delta.jar", "/log_store.jar")


def test_a_spark_with_another_hadoop_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The S3 client has to be of the version of Hadoop: the error names the setting."""
    monkeypatch.setattr(jars, "spark_home", lambda: tmp_path)

    with pytest.raises(
        SetupError,
        match=r"does not have Hadoop 3\.5\.0 or 3\.4\.2: .* add hadoop-aws .*allow_single_writer",
    ):
        jars.S3_CLIENT.find_jars()


def test_jars_that_cannot_be_downloaded_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the exact packages."""
    (tmp_path / "bin").mkdir()
    submit = tmp_path / "bin" / "spark-submit"
    submit.write_text("#!/bin/sh\necho 'unresolved dependency: not found'; exit 1\n")
    submit.chmod(0o755)
    (tmp_path / "jars").mkdir()
    for name in ("hadoop-client-api-3.5.0.jar", "spark-core_2.13-4.2.0.jar"):
        (tmp_path / "jars" / name).touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.setenv("AIRFLOW_MERGE_PROVIDER_CACHE", str(tmp_path / "cache"))

    with pytest.raises(
        SetupError, match=r"Hadoop's S3 client cannot be downloaded from Maven Central: .*hadoop-aws:3\.5\.0"
    ):
        jars.S3_CLIENT.find_jars()
