"""Find the settings of a Spark that starts on this machine, and those of its Hadoop and Hive."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.spark_process.jvm.jars import spark_home
from airflow_merge_provider.spark_process.jvm.spark_defaults import read_spark_defaults

_FOLDERS = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")


def read_settings() -> dict[str, str]:
    """Return the settings of spark-defaults.conf; none without Spark, which no run starts then."""
    with suppress(SetupError):
        return read_spark_defaults()
    return {}


def find_site_file(name: str) -> Path | None:
    """Return the file of Hadoop's or Hive's settings that Spark reads: the first one of its class path."""
    return next((folder / name for folder in _list_folders() if (folder / name).is_file()), None)


def _list_folders() -> Iterator[Path]:
    if folder_name := os.environ.get("SPARK_CONF_DIR"):
        yield Path(folder_name)
    else:
        with suppress(SetupError):
            yield spark_home() / "conf"
    yield from (Path(folder) for name in _FOLDERS if (folder := os.environ.get(name)))
