"""Read the request and write the result of a run at URIs, for a driver that does not run on the worker.

Spark reads and writes them itself: it reaches every location of the cluster, with the credentials of the run.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from airflow_merge_provider.core.dataset import escape_pattern


def read_text(spark: SparkSession, uri: str) -> str:
    """Return the text of a file."""
    return str(spark.read.text(escape_pattern(uri), wholetext=True).collect()[0][0])


def write_text(spark: SparkSession, uri: str, text: str) -> None:
    """Write a text without line breaks into a folder, which has the file ``_SUCCESS`` when it is complete."""
    rows = spark.createDataFrame([(text,)], "value string")
    rows.coalesce(1).write.mode("overwrite").text(uri)
