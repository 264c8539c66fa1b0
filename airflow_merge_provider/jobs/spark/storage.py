"""Reach object stores with Spark's credentials, and remove folders that Spark still writes into."""

from __future__ import annotations

import errno
from collections.abc import Callable

from pyspark.sql import SparkSession

_REMOVALS_MAX = 5
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


def remove_busy_folder(remove: Callable[[], object]) -> None:
    """Remove a folder while a job may still write into it, whose run was killed or overtaken.

    What the job adds at last may stay until the next run; a folder that is gone is no error.

    :param remove: removes the folder, and raises what the file system does.
    :raises OSError: if the folder may not be removed.
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
