"""What each client of an object store needs for a location: Spark, delta-rs and fsspec."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.core.object_store.azure_settings import AzureSettings, find_account
from airflow_merge_provider.core.object_store.gcs_settings import AUTH_TYPE_SETTING, KEY_SETTING, GcsSettings
from airflow_merge_provider.core.object_store.s3_settings import S3Settings

# The settings of the store of a warehouse.
StoreSettings = S3Settings | AzureSettings | GcsSettings

# Delta asks this class of the package to write a log entry unless there is one already.
LOG_STORE = "airflow_merge_provider.ConditionalWriteLogStore"
_LOG_STORE_SETTING = "spark.delta.logStore"
_S3_SCHEMES = ("s3", "s3a")
_S3_LOCATION = re.compile(r"\bs3a?://")
# Hadoop has its S3 client under s3a only.
_S3_CLIENT = {"spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem"}
_AZURE_SCHEMES = ("abfs", "abfss")
_AZURE_LOCATION = re.compile(r"\babfss?://")
_AZURE_CLIENT = {
    "spark.hadoop.fs.abfs.impl": "org.apache.hadoop.fs.azurebfs.AzureBlobFileSystem",
    "spark.hadoop.fs.abfss.impl": "org.apache.hadoop.fs.azurebfs.SecureAzureBlobFileSystem",
}
_GCS_SCHEME = "gs"
_GCS_LOCATION = re.compile(r"\bgs://")
# Delta's own log store, which never overwrites a log entry. Hadoop finds its client without a setting.
GCS_LOG_STORE = "io.delta.storage.GCSLogStore"
_GCS_CLIENT = {f"{_LOG_STORE_SETTING}.{_GCS_SCHEME}.impl": GCS_LOG_STORE}
# What the errors of delta-rs and of Hadoop's client contain, and what a user can do.
_STORE_ERRORS = {
    "NoSuchBucket|UnknownStoreException": "the bucket does not exist: create it, or correct the location",
    "ContainerNotFound": "the container does not exist: create it, or correct the location",
    "tcp connect error|dns error|operation timed out": (
        "the object store cannot be reached: check its address in the connection, and the network"
    ),
}
_CREDENTIALS = ("AWS_", "AZURE_", "GOOGLE_")
# As Spark finds them (spark.redaction.regex).
_CONFIDENTIAL = re.compile(r"(?i)secret|password|token|access[.]?key")
_SECRET = re.compile(r"fs\.(s3a|azure)\.(.*\.)?(access\.key|secret\.key|session\.token|account\.key)")


def is_s3(location: str | None) -> bool:
    """Return whether a location is on S3.

    >>> is_s3("s3a://lake/customers"), is_s3("/lake/customers")
    (True, False)
    """
    return location is not None and location.startswith(tuple(f"{scheme}://" for scheme in _S3_SCHEMES))


def is_azure(location: str | None) -> bool:
    """Return whether a location is on Azure Data Lake Storage.

    >>> is_azure("abfss://lake@shop.dfs.core.windows.net/customers"), is_azure("s3://lake/customers")
    (True, False)
    """
    return location is not None and location.startswith(tuple(f"{scheme}://" for scheme in _AZURE_SCHEMES))


def is_gcs(location: str | None) -> bool:
    """Return whether a location is on Google Cloud Storage.

    >>> is_gcs("gs://lake/customers"), is_gcs("s3://lake/customers")
    (True, False)
    """
    return location is not None and location.startswith(f"{_GCS_SCHEME}://")


def find_extra(location: str | None) -> str | None:
    """Return the extra of this package with the library of a location's store; None for other locations.

    >>> find_extra("gs://lake/customers"), find_extra("/lake/customers")
    ('gcs', None)
    """
    extras = {"s3": is_s3, "azure": is_azure, "gcs": is_gcs}
    return next((extra for extra, is_on in extras.items() if is_on(location)), None)


def names_s3(values: Any) -> bool:
    """Return whether a text in nested values names a location on S3.

    >>> names_s3({"sources": [{"dataset": "s3://lake/a"}]}), names_s3(["/lake", None])
    (True, False)
    """
    return any(_S3_LOCATION.search(text) for text in _iterate_texts(values))


def read_environment(warehouse: str | None) -> StoreSettings:
    """Return the settings of the store of a warehouse, from the environment."""
    if is_gcs(warehouse):
        return GcsSettings.from_environment()
    return AzureSettings.from_environment() if is_azure(warehouse) else S3Settings.from_environment()


def add_spark_settings(conf: Mapping[str, str], values: Any, settings: StoreSettings) -> dict[str, str]:
    """Return the Spark settings of a run, with the clients of its object stores and the credentials.

    On S3 and Google Cloud Storage they include the log store.

    :param conf: the settings of the user, which win.
    :param values: the warehouse and the configuration of the run.
    :param settings: the settings of the store of the warehouse.
    """
    added: dict[str, str] = {}
    if names_s3(values):
        s3_settings = settings if isinstance(settings, S3Settings) else S3Settings.from_environment()
        stores = {f"{_LOG_STORE_SETTING}.{scheme}.impl": LOG_STORE for scheme in _S3_SCHEMES}
        added |= {**_S3_CLIENT, **stores, **s3_settings.as_spark()}
    if any(_AZURE_LOCATION.search(text) for text in _iterate_texts(values)):
        is_own = isinstance(settings, AzureSettings)
        azure_settings = settings if is_own else AzureSettings.from_environment()
        added |= {**_AZURE_CLIENT, **azure_settings.as_spark()}
    if any(_GCS_LOCATION.search(text) for text in _iterate_texts(values)):
        is_own = isinstance(settings, GcsSettings)
        gcs_settings = settings if is_own else GcsSettings.from_environment()
        # With another way to authenticate, a key would have no effect.
        added |= {**_GCS_CLIENT, **({} if AUTH_TYPE_SETTING in conf else gcs_settings.as_spark())}
    return {**added, **conf}


def has_credentials(options: Mapping[str, str] | None) -> bool:
    """Return whether options or environment have credentials; without any, delta-rs searches for seconds."""
    return bool(options) or any(name.startswith(_CREDENTIALS) for name in os.environ)


def complete_options(location: str, options: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the storage options of delta-rs for a location, with what the environment adds to them."""
    if not is_s3(location):
        return dict(options or {})
    settings = S3Settings.from_options(options or {}).fill_missing(S3Settings.from_environment())
    return {**settings.as_delta_rs(), **(options or {})}


def complete_arguments(location: str, settings: StoreSettings | None = None) -> dict[str, Any]:
    """Return the arguments of fsspec for a location, with what the environment adds to the settings.

    Listings are not cached: another process may have written since.
    """
    if is_azure(location):
        # A key belongs to one account; adlfs reads the environment itself.
        has_key = isinstance(settings, AzureSettings) and settings.account == find_account(location)
        return {**(settings.as_fsspec() if settings and has_key else {}), "use_listings_cache": False}
    if is_gcs(location):
        own_key = settings if isinstance(settings, GcsSettings) else GcsSettings.from_environment()
        return {**own_key.as_fsspec(), "use_listings_cache": False}
    if not is_s3(location):
        return {}
    own_settings = settings if isinstance(settings, S3Settings) else S3Settings()
    completed = own_settings.fill_missing(S3Settings.from_environment())
    return {**completed.as_fsspec(), "use_listings_cache": False}


def find_store_error(location: str, text: str) -> SetupError | None:
    """Return the error of a store that no client can use, from the text of an error of delta-rs or Spark.

    >>> find_store_error("s3://lake/t", "tcp connect error: Connection refused").message
    's3://lake/t: the object store cannot be reached: check its address in the connection, and the network'
    """
    if find_extra(location) is None:
        return None
    for pattern, message in _STORE_ERRORS.items():
        if re.search(pattern, text):
            return SetupError(f"{location}: {message}")
    return None


def refuse_location(location: str, error: Exception) -> SetupError:
    """Return the error of a location for which fsspec has no library."""
    remedy = "install the library of the store"
    if extra := find_extra(location):
        remedy = f"install airflow-merge-provider[{extra}]"
    return SetupError(f"{location}: no library for this kind of location is installed: {remedy} ({error})")


def is_secret(name: str) -> bool:
    """Return whether a Spark setting contains a key of an object store.

    >>> is_secret("spark.hadoop.fs.s3a.secret.key"), is_secret("spark.hadoop.fs.s3a.endpoint")
    (True, False)
    """
    return name == KEY_SETTING or _SECRET.search(name) is not None


def is_confidential(name: str) -> bool:
    """Return whether a Spark setting contains a key, a password or a token, by its name.

    >>> is_confidential("spark.ssl.keyPassword"), is_confidential("spark.sql.shuffle.partitions")
    (True, False)
    """
    return is_secret(name) or _CONFIDENTIAL.search(name) is not None


def has_log_store(conf: Mapping[str, str]) -> bool:
    """Return whether Spark settings name the log store of this package."""
    return any(conf.get(f"{_LOG_STORE_SETTING}.{scheme}.impl") == LOG_STORE for scheme in _S3_SCHEMES)


def has_s3_client(conf: Mapping[str, str]) -> bool:
    """Return whether Spark settings name Hadoop's client of S3, whatever the log store."""
    return any(name in conf for name in _S3_CLIENT)


def has_azure_client(conf: Mapping[str, str]) -> bool:
    """Return whether Spark settings name Hadoop's client of Azure."""
    return any(name in conf for name in _AZURE_CLIENT)


def has_gcs_client(conf: Mapping[str, str]) -> bool:
    """Return whether Spark settings are those of a run over Google Cloud Storage."""
    return any(name in conf for name in _GCS_CLIENT)


def _iterate_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _iterate_texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _iterate_texts(item)
