"""The application of a Spark Connect server, which is a plug-in of its Spark context."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from pyspark import SparkContext

from airflow_merge_provider.core.child_process import die_with_parent, write_server_answer

_SERVICE = "org.apache.spark.sql.connect.service.SparkConnectService$"
_TOKEN_SETTING = "spark.connect.authenticate.token"  # noqa: S105 - the name of a setting, not a token


def answer_parent(context: SparkContext, file: Path) -> None:
    """Write the port on which the JVM listens, for the process that has started this one."""
    service = getattr(getattr(context._jvm, _SERVICE), "MODULE$")  # noqa: SLF001 - no public name
    write_server_answer(file, str(context.getConf().get(_TOKEN_SETTING)), service.localPort())


if __name__ == "__main__":
    die_with_parent()
    # The plug-in has bound its port when the context is there.
    answer_parent(SparkContext.getOrCreate(), Path(sys.argv[1]))
    # The server ends with its JVM, which receives the signals too.
    signal.pause()
