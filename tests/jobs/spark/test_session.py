"""Test the Spark session of jobs: its settings, and that it prints nothing."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from airflow_merge_provider.jobs.spark.session import is_local


@pytest.mark.classic
def test_a_local_session_is_lean_and_strict(spark: SparkSession) -> None:
    """A local session has UTC, ANSI mode, few partitions and no UI."""
    # The session of the tests has settings of its own; a new one has those of the process.
    conf = spark.newSession().conf
    assert conf.get("spark.sql.session.timeZone") == "UTC"
    assert conf.get("spark.sql.ansi.enabled") == "true"
    assert conf.get("spark.databricks.delta.snapshotPartitions") == "2"
    # Spark's own ports are open to every process of the machine, which lacks the secret of this Spark.
    assert conf.get("spark.authenticate") == "true"
    assert spark.sparkContext._jvm.org.apache.spark.SparkEnv.get().securityManager().getSecretKey()
    assert spark.sparkContext.uiWebUrl is None


@pytest.mark.classic
def test_a_session_finds_the_classes_of_its_last_run(spark: SparkSession) -> None:
    """A session finds the classes that its last run generated, because its cache is larger.

    By default Spark keeps a hundred, so that a run of more leaves none for the next run.
    """
    jvm = spark._jvm
    generated = jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME().getCount
    codegen = jvm.org.apache.spark.sql.catalyst.expressions.codegen
    no_comments = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap({})

    counts = [generated()]
    for _ in range(2):
        for number in range(150):
            body = f"public Object generate(Object[] references) {{ return {number}; }}"
            codegen.CodeGenerator.compile(codegen.CodeAndComment(body, no_comments))
        counts.append(generated())

    assert counts[1] - counts[0] == 150
    assert counts[2] == counts[1]


def test_a_failed_statement_prints_nothing(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    """A failed statement prints nothing, because the job reports its errors itself, once."""
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        spark.sql("SELECT 1 / id FROM range(1)").collect()
    with pytest.raises(Exception, match="UNRESOLVED_COLUMN"):
        spark.sql("SELECT nobody")

    assert capfd.readouterr() == ("", "")


@pytest.mark.classic
def test_another_default_file_system_is_not_that_of_this_process(spark: SparkSession) -> None:
    """Absolute paths are in the default file system of Hadoop, wherever it was set."""
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    usual = hadoop.get("fs.defaultFS")
    assert is_local(spark)

    hadoop.set("fs.defaultFS", "hdfs://node:8020")
    try:
        assert not is_local(spark)
    finally:
        hadoop.set("fs.defaultFS", usual)
    assert is_local(spark)
