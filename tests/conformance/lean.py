"""Spark sessions for runs on few rows, with settings that change the cost but never the result.

Tests use Spark through Spark Connect; with ``TESTS_SPARK=classic`` Spark runs in their own process.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from airflow_merge_provider.core.object_store.clients import add_spark_settings
from airflow_merge_provider.core.object_store.s3_settings import S3Settings
from airflow_merge_provider.jobs.spark.connect_client import open_session
from airflow_merge_provider.jobs.spark.session import get_session, local_session
from airflow_merge_provider.spark_process.connect_token import add_token
from airflow_merge_provider.spark_process.launch import submit_conf

# Whether the tests use Spark through Spark Connect.
OVER_CONNECT = os.environ.get("TESTS_SPARK", "connect") == "connect"
_SERVER = Path(__file__).with_name("server.py")

# The JVM of a suite runs for minutes, so both compilers save time; the JVM of a single job ends soon and uses
# one. By default the second compiler takes a third of the processor time: it compiles ten times later here.
COMPILERS = (
    "-XX:TieredStopAtLevel=4 -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
# Most objects die young. The data that Spark keeps for its UI is never used.
_PROCESS = {
    "spark.driver.extraJavaOptions": f"{COMPILERS} -XX:+UseSerialGC -Xmn1g -XX:MetaspaceSize=256m",
    # Delta caches tables for an hour, and a thousand fill the heap; 50 for each of two processes.
    "spark.databricks.delta.delta.log.cacheSize": "100",
    "spark.driver.memory": "3g",
    # By default every aggregate and every sort of ten rows allocates 64 MB, filled with zeros.
    "spark.buffer.pageSize": "256k",
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "100",
    "spark.sql.ui.retainedExecutions": "5",
}

# Settings of a session for runs on few rows.
FEW_ROWS = {
    # By default VACUUM lists ten files in ten thousand tasks.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "1",
    # Spark checks the plan after each batch of rules, and keeps its text for a UI that tests do not have.
    "spark.sql.lightweightPlanChangeValidation": "false",
    "spark.sql.ui.explainMode": "simple",
    # Compiling a generated class costs more than interpreting ten rows.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def start_session(folder: Path) -> SparkSession:
    """Start Spark with its files in a folder and otherwise the settings of a local run, and return a session.

    With Spark Connect, all processes with the same folder share one server, which ends with the last of them.
    """
    user = {
        **_PROCESS,
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "scratch"),
        "spark.app.name": "tests",
    }
    # With Hadoop's client for S3 and the log store, as in a run that uses S3; tests set the address.
    user = add_spark_settings(user, "s3://", S3Settings())
    if OVER_CONNECT:
        return activate_session(_connect_to_server(folder, user))
    return activate_session(local_session(submit_conf(user, local=True)))


def _connect_to_server(folder: Path, conf: Mapping[str, str]) -> SparkSession:
    """Return a session of the server of a folder, which is started unless another process has done so."""
    folder.mkdir(exist_ok=True)
    address, users = folder / "address", (folder / "users").open("w")
    # As long as this process holds it, the server does not end.
    fcntl.flock(users, fcntl.LOCK_SH)
    atexit.register(users.close)
    with (folder / "starting").open("w") as starting:
        fcntl.flock(starting, fcntl.LOCK_EX)
        if not address.exists():
            address.write_text(_start_server(users.name, str(address), conf))
    url, token = add_token(address.read_text())
    os.environ.update(token, SPARK_REMOTE=url)
    return get_session()


def _start_server(users: str, address: str, conf: Mapping[str, str]) -> str:
    """Start a server as users do, and return its address."""
    settings = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    command = [
        *(sys.executable, str(_SERVER), users, address),
        *(sys.executable, "-m", "airflow_merge_provider", "connect-server", "--port", str(_find_free_port())),
    ]
    server = subprocess.Popen(
        [*command, *settings], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    # Whoever collects the object of a running process gives a warning, which would fail a test.
    atexit.register(server.poll)
    match = re.search(r"sc://\S+", server.stdout.readline() if server.stdout else "")
    assert match is not None
    return match[0]


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def new_session(spark: SparkSession) -> SparkSession:
    """Return a session of the same Spark with its own settings, for concurrent writers."""
    if not OVER_CONNECT:
        return spark.newSession()
    return open_session(os.environ["SPARK_REMOTE"])


def lean_session(spark: SparkSession) -> SparkSession:
    """Return a session for tiny inputs; with Spark Connect it is the session of the calling thread.

    A Connect client looks up checkpoints in the session of the thread, whichever session created them.
    """
    session = (SparkSession.getActiveSession() if OVER_CONNECT else None) or new_session(spark)
    for name, value in FEW_ROWS.items():
        session.conf.set(name, value)
    return activate_session(session)


def forget_tables(spark: SparkSession) -> None:
    """Clear Delta's cache, which keeps each table for an hour: a thousand tables fill the heap."""
    if not OVER_CONNECT:
        spark.sparkContext._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def activate_session(session: SparkSession) -> SparkSession:
    """Activate a session for Delta's catalog, which keeps the session that is active on first use."""
    session.sql("SHOW NAMESPACES").collect()
    return session
