"""What each client of an object store needs for a location: Spark, delta-rs and fsspec."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.core.object_store.s3_settings import S3Settings

# Delta asks this class of the package to write a log entry unless there is one already.
LOG_STORE = "airflow_merge_provider.ConditionalWriteLogStore"
_LOG_STORES = "spark.delta.logStore"
_S3_SCHEMES = ("s3", "s3a")
_S3_LOCATION = re.compile(r"\bs3a?://")
# Hadoop has its S3 client under s3a only.
_S3_CLIENT = {"spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem"}
# What the errors of delta-rs and of Hadoop's client contain, and what a user can do.
_STORE_ERRORS = {
    "NoSuchBucket|UnknownStoreException": "the bucket does not exist: create it, or correct the location",
    "tcp connect error|dns error|operation timed out": (
        "the object store cannot be reached: check its address in the connection, and the network"
    ),
}
_SECRET = re.compile(r"fs\.(s3a|azure)\.(.*\.)?(access\.key|secret\.key|session\.token|account\.key)")


def is_s3(location: str | None) -> bool:
    """Return whether a location is on S3.

    >>> is_s3("s3a://lake/customers"), is_s3("/lake/customers")
    (True, False)
    """
    return location is not None and location.startswith(tuple(f"{scheme}://" for scheme in _S3_SCHEMES))


def names_s3(values: Any) -> bool:
    """Return whether a text in nested values names a location on S3.

    >>> names_s3({"sources": [{"dataset": "s3://lake/a"}]}), names_s3(["/lake", None])
    (True, False)
    """
    return any(_S3_LOCATION.search(text) for text in _iterate_texts(values))


def add_spark_settings(conf: Mapping[str, str], values: Any, settings: S3Settings) -> dict[str, str]:
    """Return the Spark settings of a run: if it uses S3, with the client, the log store, and the credentials.

    :param conf: the settings of the user, which win.
    :param values: the warehouse and the configuration of the run.
    """
    if not names_s3(values):
        return dict(conf)
    stores = {f"{_LOG_STORES}.{scheme}.impl": LOG_STORE for scheme in _S3_SCHEMES}
    return {**_S3_CLIENT, **stores, **settings.as_spark(), **conf}


def complete_options(location: str, options: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the storage options of delta-rs for a location, with what the environment adds to them."""
    if not is_s3(location):
        return dict(options or {})
    settings = S3Settings.from_options(options or {}).fill_missing(S3Settings.from_environment())
    return {**settings.as_delta_rs(), **(options or {})}


def complete_arguments(location: str, settings: S3Settings | None = None) -> dict[str, Any]:
    """Return the arguments of fsspec for a location, with what the environment adds to the settings.

    Listings are not cached: another process may have written since.
    """
    if not is_s3(location):
        return {}
    completed = (settings or S3Settings()).fill_missing(S3Settings.from_environment())
    return {**completed.as_fsspec(), "use_listings_cache": False}


def find_store_error(location: str, text: str) -> SetupError | None:
    """Return the error of a store that no client can use, from the text of an error of delta-rs or Spark.

    >>> find_store_error("s3://lake/t", "tcp connect error: Connection refused").message
    's3://lake/t: the object store cannot be reached: check its address in the connection, and the network'
    """
    if not is_s3(location):
        return None
    for pattern, message in _STORE_ERRORS.items():
        if re.search(pattern, text):
            return SetupError(f"{location}: {message}")
    return None


def refuse_location(location: str, error: Exception) -> SetupError:
    """Return the error of a location for which fsspec has no library."""
    remedy = "install airflow-merge-provider[s3]" if is_s3(location) else "install the library of the store"
    return SetupError(f"{location}: no library for this kind of location is installed: {remedy} ({error})")


def is_secret(name: str) -> bool:
    """Return whether a Spark setting contains a key of an object store.

    >>> is_secret("spark.hadoop.fs.s3a.secret.key"), is_secret("spark.hadoop.fs.s3a.endpoint")
    (True, False)
    """
    return _SECRET.search(name) is not None


def has_log_store(conf: Mapping[str, str]) -> bool:
    """Return whether Spark settings name the log store of this package."""
    return any(conf.get(f"{_LOG_STORES}.{scheme}.impl") == LOG_STORE for scheme in _S3_SCHEMES)


def _iterate_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _iterate_texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _iterate_texts(item)
