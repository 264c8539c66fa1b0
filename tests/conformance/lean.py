"""Spark sessions for runs on a handful of rows: their settings change the cost, never the result."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from airflow_merge_provider.jobs.spark.session import local_session
from airflow_merge_provider.launch import submit_conf

# A suite keeps its JVM for minutes, so both compilers pay (the JVM of one job, which ends soon, has one), and
# most objects die young. What Spark keeps for its pages is never looked at.
_PROCESS = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=4 -XX:+UseSerialGC -Xmn1g -XX:MetaspaceSize=256m",
    "spark.driver.memory": "3g",
    # By default every aggregate and every sort of ten rows gets 64 MB, filled with zeros.
    "spark.buffer.pageSize": "256k",
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "100",
    "spark.sql.ui.retainedExecutions": "5",
}

_SETTINGS = {
    # VACUUM would list ten files in ten thousand tasks.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "1",
    # Compiling a generated class costs more than interpreting ten rows.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def start_session(folder: Path) -> SparkSession:
    """Start Spark in this process, with its files in a folder and otherwise the settings of a local run."""
    user = {
        **_PROCESS,
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "scratch"),
        "spark.app.name": "tests",
    }
    return awake(local_session(submit_conf(user, local=True)))


def lean_session(spark: SparkSession) -> SparkSession:
    """Return a session beside the given one, for tiny inputs."""
    session = spark.newSession()
    for name, value in _SETTINGS.items():
        session.conf.set(name, value)
    return awake(session)


def awake(session: SparkSession) -> SparkSession:
    """Let Delta's catalog meet its session: it keeps the one that is active when it is first asked."""
    session.sql("SHOW NAMESPACES").collect()
    return session
