"""Find the name of a file format in Spark: avro has two names, and only one works in a plain installation."""

from __future__ import annotations

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

_AVRO = ("avro", "org.apache.spark.sql.avro.AvroFileFormat")


def spark_format(spark: SparkSession, kind: str) -> str:
    """Return Spark's name of a format; for Avro the class name if its short name is not registered."""
    if kind != "avro":
        return kind
    short, long = _AVRO
    try:
        spark.read.format(short).schema("x int").load([]).schema  # noqa: B018 - resolves the source
    except AnalysisException as error:
        return long if "avro" in str(error).lower() else short
    return short
