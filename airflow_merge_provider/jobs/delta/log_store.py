"""Refuse to write a table on S3 if two writers could overwrite each other's commits."""

from __future__ import annotations

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from airflow_merge_provider.core.dataset import Dataset, resolve_dataset
from airflow_merge_provider.core.errors import ConfigError, Problem, SetupError
from airflow_merge_provider.core.object_store.clients import LOG_STORE, is_s3
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.jobs.spark import sql

# Delta's own log store for S3 overwrites a log entry that another writer has just written.
_SAFE_STORES = (LOG_STORE, "io.delta.storage.S3DynamoDBLogStore")
# The runtime of Databricks has a commit service of its own.
_DATABRICKS = "spark.databricks.clusterUsageTags.clusterId"


def require_safe_commits(spark: SparkSession, request: JobRequest) -> None:
    """Check that Spark refuses a commit to the target of a run if another writer was faster.

    :raises SetupError: if it does not, and the request does not allow it.
    """
    if request.allow_single_writer or (request.until != "commit" and not request.save_plan):
        return
    target = request.config.get("target")
    if target is None or request.config.get("target_format", "delta") != "delta":
        # Folders of files have no log.
        return
    try:
        dataset = resolve_dataset(target, request.warehouse, at="target")
    except ConfigError:
        # The job reports all problems of its configuration.
        return
    location = _find_location(spark, dataset) if dataset.format == "delta" else None
    if location is None or not is_s3(location) or spark.conf.get(_DATABRICKS, None):
        return
    name = f"spark.delta.logStore.{location.partition('://')[0]}.impl"
    store = spark.conf.get(name, None) or "Delta's own"
    if store not in _SAFE_STORES:
        message = f"Spark writes the log of {location} with the log store {store}, which can lose commits"
        hint = (
            f"set {name}={LOG_STORE} where Spark starts and add the jar of this package; if this task is the "
            "only writer, set allow_single_writer=True"
        )
        raise SetupError.from_problems([Problem("target", "unsafe-log-store", message, hint)])


def _find_location(spark: SparkSession, dataset: Dataset) -> str | None:
    """Return where a table is; None for a table of a catalog that does not exist yet."""
    if dataset.path is not None:
        return dataset.path
    try:
        rows = spark.sql(f"DESCRIBE DETAIL {sql.quote_table(dataset)}").collect()
    except AnalysisException:
        return None
    return str(rows[0]["location"])
