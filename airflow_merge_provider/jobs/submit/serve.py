"""The application of a Spark Connect server, which is a plug-in of its Spark context."""

from __future__ import annotations

import signal

from pyspark import SparkContext

from airflow_merge_provider.core.child_process import die_with_parent

if __name__ == "__main__":
    die_with_parent()
    SparkContext.getOrCreate()
    # The server ends with its JVM, which receives the signals too.
    signal.pause()
