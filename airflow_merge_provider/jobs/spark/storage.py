"""Access object stores with Spark's credentials, and remove folders that Spark still writes into."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from airflow_merge_provider.core.object_store.azure_settings import AzureSettings, find_account
from airflow_merge_provider.core.object_store.clients import (
    complete_arguments,
    complete_options,
    is_gcs,
    is_s3,
)
from airflow_merge_provider.core.object_store.gcs_settings import GcsSettings
from airflow_merge_provider.core.object_store.s3_settings import S3Settings

_REMOVALS_MAX = 5


def build_arguments(spark: SparkSession, location: str) -> dict[str, Any]:
    """Return fsspec's arguments for a location; what Spark does not set comes from the environment."""
    if account := find_account(location):
        return complete_arguments(location, _read_azure_settings(spark, account))
    if is_gcs(location):
        return complete_arguments(location, _read_gcs_settings(spark))
    return complete_arguments(location, _read_settings(spark)) if is_s3(location) else {}


def build_options(spark: SparkSession, location: str) -> dict[str, str]:
    """Return the options of delta-rs for a location; what Spark does not set comes from the environment."""
    if account := find_account(location):
        return _read_azure_settings(spark, account).as_delta_rs()
    if is_gcs(location):
        return _read_gcs_settings(spark).as_delta_rs()
    return complete_options(location, _read_settings(spark).as_delta_rs()) if is_s3(location) else {}


def _read_azure_settings(spark: SparkSession, account: str) -> AzureSettings:
    return AzureSettings.from_spark(lambda name: spark.conf.get(name, None), account)


def _read_gcs_settings(spark: SparkSession) -> GcsSettings:
    return GcsSettings.from_spark(lambda name: spark.conf.get(name, None))


def _read_settings(spark: SparkSession) -> S3Settings:
    return S3Settings.from_spark(lambda name: spark.conf.get(name, None))


def remove_busy_folder(remove: Callable[[], object]) -> None:
    """Remove a folder while a job whose run was killed or overtaken may still write into it.

    The last files of that job may remain until the next run; a missing folder does not raise an error.

    :param remove: removes the folder, and raises the errors of the file system.
    :raises OSError: if the process may not remove the folder.
    """
    for _ in range(_REMOVALS_MAX):
        try:
            remove()
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EISDIR):
                raise
        else:
            return
