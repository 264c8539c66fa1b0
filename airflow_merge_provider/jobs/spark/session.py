"""Return the Spark session of a job: the one its process was started for, or a new one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from airflow_merge_provider.core.child_process import FILESYSTEM_SETTING, get_filesystem_id

# These loggers print each failed statement with its whole stack as JSON; the job reports its errors itself.
_TALKATIVE = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_REMOTE = "SPARK_REMOTE"
# Up to this many shuffle partitions cost less than coalescing the small ones.
_FEW_PARTS = 16


def get_session(conf: Mapping[str, str] | None = None) -> SparkSession:
    """Return the session of this process: of its spark-submit, or of the server that SPARK_REMOTE names."""
    for logger_name in _TALKATIVE:
        PySparkLogger.getLogger(logger_name).disabled = True
    url = os.environ.get(_REMOTE)
    if url is not None and url.startswith("sc://"):
        from airflow_merge_provider.jobs.spark.connect_client import find_session  # noqa: PLC0415 - needs grpc

        find_session(url)
    builder = SparkSession.builder
    for name, value in (conf or {}).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def local_session(conf: Mapping[str, str], master: str = "local[2]") -> SparkSession:
    """Start Spark inside this process, for tests and benchmarks; ``conf`` as returned by ``session_conf``."""
    # Python workers on this machine use this Python, not the first one on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return get_session({"spark.master": master, **conf})


def is_local(spark: SparkSession) -> bool:
    """Return whether Spark reads and writes the files that this process sees."""
    if is_remote():
        return _sees_same_files(spark)
    master = str(spark.conf.get("spark.master", ""))
    if not master.startswith("local"):
        return False
    # Hadoop takes it from the settings or from core-site.xml.
    default_store = spark.sparkContext._jsc.hadoopConfiguration().get("fs.defaultFS")  # noqa: SLF001
    return str(default_store).startswith("file:")


@lru_cache(maxsize=8)
def _sees_same_files(spark: SparkSession) -> bool:
    """Query a server of this package once; another server does not report which files it sees."""
    filesystem = spark.conf.get(FILESYSTEM_SETTING, None)
    return filesystem is not None and filesystem == get_filesystem_id()


def adaptive_execution_disabled(spark: SparkSession) -> dict[str, str]:
    """Return the settings that plan a query on few rows once, without adaptive execution.

    With many shuffle partitions, as on clusters, adaptive execution pays off: it reduces the number of
    partitions, and of files, for few rows.
    """
    parts = int(spark.conf.get("spark.sql.shuffle.partitions", None) or 200)
    return {"spark.sql.adaptive.enabled": "false"} if parts <= _FEW_PARTS else {}


@contextmanager
def override_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change settings of the session inside the block, and restore them afterwards."""
    previous_values = {key: spark.conf.get(key, None) for key in settings}
    try:
        for key, value in settings.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, previous_value in previous_values.items():
            if previous_value is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, previous_value)
