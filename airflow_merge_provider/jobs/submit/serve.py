"""The application of a Spark Connect server, which is a service in its JVM."""

from __future__ import annotations

import signal
from typing import Any

import pyspark
from pyspark import SparkContext

from airflow_merge_provider.core.child_process import die_with_parent

if __name__ == "__main__":
    die_with_parent()
    context: Any = SparkContext.getOrCreate()
    sql = context._jvm.org.apache.spark.sql  # noqa: SLF001 - PySpark has no other way to start the service
    if pyspark.__version__.startswith("4.0."):
        # The sessions of clients are made from a default session; later versions create it with the service.
        sql.classic.SparkSession.builder().getOrCreate()
    sql.connect.service.SparkConnectService.start(context._jsc.sc())  # noqa: SLF001
    # The server ends with its JVM, which receives the signals too.
    signal.pause()
