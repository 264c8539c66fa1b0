"""Reach object stores with the credentials that Spark has."""

from __future__ import annotations

from pyspark.sql import SparkSession

# The settings of Hadoop's S3 client, and what fsspec calls them.
_S3_OPTIONS = {
    "access.key": "key",
    "secret.key": "secret",
    "session.token": "token",
    "endpoint": "endpoint_url",
}


def build_storage_options(spark: SparkSession, location: str) -> dict[str, str]:
    """Return fsspec's options for a location; what Spark's settings do not say comes from the environment."""
    if not location.startswith(("s3://", "s3a://")):
        return {}
    options = {
        ours: spark.conf.get(f"spark.hadoop.fs.s3a.{name}", None) for name, ours in _S3_OPTIONS.items()
    }
    return {name: value for name, value in options.items() if value}
