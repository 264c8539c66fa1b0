"""Tests of the settings in spark-defaults.conf, which Spark reads beside those of a run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from airflow_merge_provider.core.object_store.clients import LOG_STORE, add_spark_settings
from airflow_merge_provider.core.object_store.s3_settings import S3Settings
from airflow_merge_provider.core.spark_conf import inherit_settings, properties_text, session_conf
from airflow_merge_provider.spark_process.jvm.spark_defaults import parse_properties, read_spark_defaults
from airflow_merge_provider.spark_process.launch import list_jars, submit_conf

FOR_ALL_SCHEMES = "spark.delta.logStore.class"
HDFS = "org.apache.spark.sql.delta.storage.HDFSLogStore"
# Spark trims values, by Java's meaning of blanks.
BLANKS = "".join(map(chr, range(33)))
TEXTS = st.text(st.characters(codec="utf-8")).filter(lambda text: text == text.strip(BLANKS))


@pytest.fixture
def defaults_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path that Spark reads."""
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    return tmp_path / "spark-defaults.conf"


def test_the_file_is_read_as_spark_reads_it() -> None:
    """Names end at a blank, an equals sign or a colon; a backslash continues a line or escapes."""
    text = (
        "# the cluster of the shop\n! too\n\nspark.master            spark://m:7077\r\nspark.a = b = c \n"
        "  spark.jars:/a.jar,\\\n    /b.jar\nspark.empty\n"
        "spark\\ name\\=x \\u0041\\tB\\uD83D\\uDE00\\\\\nspark.last a\\"
    )

    assert parse_properties(text) == {
        "spark.master": "spark://m:7077", "spark.a": "b = c", "spark.jars": "/a.jar,/b.jar",
        "spark.empty": "", "spark name=x": "A\tB😀\\", "spark.last": "a",
    }  # fmt: skip


@given(st.dictionaries(TEXTS.filter(bool), TEXTS))
def test_what_is_written_is_read(settings: dict[str, str]) -> None:
    """The file of settings that a run writes has the same syntax."""
    assert parse_properties(properties_text(settings)) == settings


def test_a_missing_file_has_no_settings(defaults_file: Path) -> None:
    """Spark starts without the file."""
    assert not defaults_file.exists()
    assert read_spark_defaults() == {}


def test_lists_are_appended_and_the_rest_stays_with_spark(defaults_file: Path) -> None:
    """The entries of the cluster come before those of the user."""
    defaults_file.write_text(
        "spark.driver.extraJavaOptions -Dhttps.proxyHost=proxy\nspark.jars /site.jar\n"
        "spark.sql.ansi.enabled false\n"
    )

    conf = session_conf(
        local=False,
        jars=["/delta.jar"],
        user=inherit_settings(read_spark_defaults(), {"spark.jars": "/own.jar"}),
    )

    assert conf["spark.jars"] == "/delta.jar,/site.jar,/own.jar"
    assert conf["spark.driver.extraJavaOptions"].endswith(" -Dhttps.proxyHost=proxy")
    assert conf["spark.sql.ansi.enabled"] == "true"


@pytest.mark.parametrize("of_the_run", [True, False])
def test_one_log_store_for_all_schemes_replaces_those_of_the_package(
    defaults_file: Path, of_the_run: bool
) -> None:
    """Delta refuses to start with both."""
    user = add_spark_settings({FOR_ALL_SCHEMES: HDFS} if of_the_run else {}, "s3://lake", S3Settings())
    defaults_file.write_text("" if of_the_run else f"{FOR_ALL_SCHEMES} {HDFS}\n")

    conf = session_conf(
        local=True, jars=["/log_store.jar"], user=inherit_settings(read_spark_defaults(), user)
    )

    assert [name for name in conf if name.startswith("spark.delta.logStore.")] == [FOR_ALL_SCHEMES]
    assert LOG_STORE not in conf.values()


def test_delta_of_the_cluster_is_not_added_again(defaults_file: Path) -> None:
    """Two versions of Delta on one class path fail in ways that nobody understands."""
    defaults_file.write_text("spark.jars.packages io.delta:delta-spark_4.2_2.13:4.4.0\n")

    assert not any("delta-spark" in jar for jar in list_jars({}))
    conf = submit_conf({}, local=True)
    assert "delta-spark" not in conf.get("spark.driver.extraClassPath", "")
    # What Delta of spark.jars.packages has to see cannot be on the class path of the driver.
    assert "log-store" in conf["spark.jars"]
    assert os.pathsep not in conf["spark.jars"]
