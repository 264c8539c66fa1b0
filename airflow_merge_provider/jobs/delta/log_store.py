"""Refuse to write a table on an object store if two writers could overwrite each other's commits."""

from __future__ import annotations

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from airflow_merge_provider.core.dataset import Dataset, parse_hadoop_path, resolve_dataset
from airflow_merge_provider.core.errors import ConfigError, Problem, SetupError
from airflow_merge_provider.core.object_store.clients import GCS_LOG_STORE, LOG_STORE, is_gcs, is_s3
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.jobs.spark import sql

# Delta's own log store for S3 overwrites a log entry that another writer has just written.
_SAFE_ON_S3 = (LOG_STORE, "io.delta.storage.S3DynamoDBLogStore")
# The setting of the log store for schemes without one of their own.
_FOR_ALL_SCHEMES = "spark.delta.logStore.class"
# The runtime of Databricks has a commit service of its own.
_DATABRICKS = "spark.databricks.clusterUsageTags.clusterId"


def require_safe_commits(spark: SparkSession, request: JobRequest) -> None:
    """Check that Spark refuses a commit to the target of a run if another writer was faster.

    :raises SetupError: if it does not, and the request does not allow it.
    """
    if request.allow_single_writer or (request.until != "commit" and not request.save_plan):
        return
    target = request.config.get("target")
    if target is None:
        # Folders of files have no log.
        return
    try:
        dataset = resolve_dataset(target, request.warehouse, at="target")
    except ConfigError:
        # The job reports all problems of its configuration.
        return
    location = _find_location(spark, dataset) if dataset.format == "delta" else None
    if location is None or spark.conf.get(_DATABRICKS, None):
        return
    name = f"spark.delta.logStore.{location.partition('://')[0]}.impl"
    store = spark.conf.get(name, None) or spark.conf.get(_FOR_ALL_SCHEMES, None)
    if is_s3(location) and store not in _SAFE_ON_S3:
        hint = (
            f"set {name}={LOG_STORE} where Spark starts and add the jar of this package; if this task is the "
            "only writer, set allow_single_writer=True"
        )
    elif is_gcs(location) and store not in {GCS_LOG_STORE, None}:
        hint = (
            f"set {name}={GCS_LOG_STORE} where Spark starts; if this task is the only writer, set "
            "allow_single_writer=True"
        )
    else:
        return
    used = store or "Delta's own"
    message = f"Spark writes the log of {location} with the log store {used}, which can lose commits"
    raise SetupError.from_problems([Problem("target", "unsafe-log-store", message, hint)])


def _find_location(spark: SparkSession, dataset: Dataset) -> str | None:
    """Return where a table is; None for a table of a catalog that does not exist yet."""
    if dataset.path is not None:
        return dataset.path
    try:
        rows = spark.sql(f"DESCRIBE DETAIL {sql.quote_table(dataset)}").collect()
    except AnalysisException:
        return None
    return parse_hadoop_path(str(rows[0]["location"]))
