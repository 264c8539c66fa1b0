"""Which session settings make runs on a handful of rows cheap: they change the way, never the result."""

from __future__ import annotations

from pyspark.sql import SparkSession

_SETTINGS = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "1",
    # Compiling a generated class costs more than interpreting ten rows.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def lean_session(spark: SparkSession) -> SparkSession:
    """Give a session beside the given one, for tiny inputs."""
    session = spark.newSession()
    for name, value in _SETTINGS.items():
        session.conf.set(name, value)
    return awake(session)


def awake(session: SparkSession) -> SparkSession:
    """Let Delta's catalog meet its session: it keeps the one that is active when it is first asked."""
    session.sql("SHOW NAMESPACES").collect()
    return session
