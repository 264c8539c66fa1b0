"""Access object stores with Spark's credentials, and remove folders that Spark still writes into."""

from __future__ import annotations

import errno
from collections.abc import Callable

from pyspark.sql import SparkSession

_REMOVALS_MAX = 5
# The settings of Hadoop's S3 client, and their names in fsspec.
_S3_OPTIONS = {
    "access.key": "key",
    "secret.key": "secret",
    "session.token": "token",
    "endpoint": "endpoint_url",
}


def build_storage_options(spark: SparkSession, location: str) -> dict[str, str]:
    """Return fsspec's options for a location; options that Spark does not set come from the environment."""
    if not location.startswith(("s3://", "s3a://")):
        return {}
    options = {
        option: spark.conf.get(f"spark.hadoop.fs.s3a.{name}", None) for name, option in _S3_OPTIONS.items()
    }
    return {name: value for name, value in options.items() if value}


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
