"""Return the Spark session of a job: the one its process was started for, one of a server, or a new one."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import cast

import grpc  # type: ignore[import-untyped]
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from pyspark.sql.connect.client.core import DefaultChannelBuilder
from pyspark.sql.connect.client.retries import DefaultPolicy, RetryPolicyState
from pyspark.sql.connect.session import SparkSession as ConnectSession
from pyspark.sql.utils import is_remote

from airflow_merge_provider.core.child_process import FILESYSTEM_SETTING, get_filesystem_id

# The name has two addresses, and anyone on the machine may listen on the one that the server does not use.
_LOCALHOST, _LOOPBACK = "localhost", ("127.0.0.1", "[::1]")
_NO_PROXY = ("grpc.enable_http_proxy", 0)
# These retries wait for 14 seconds together: a proxy or a network may lose its connection for a moment. The
# defaults of PySpark wait for ten minutes, for each call.
_RETRIES_MAX, _FIRST_WAIT_MS, _LONGEST_WAIT_MS = 12, 50, 2000


class OneAddressChannel(DefaultChannelBuilder):
    """A channel that sends a token without TLS to one loopback address of this machine only."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        if self._host == _LOCALHOST:
            self._host = _LOOPBACK[0]
        if self._host in _LOOPBACK:
            self.setChannelOption(*_NO_PROXY)

    def toChannel(self) -> grpc.Channel:  # noqa: N802 - the name of PySpark
        """Return the channel."""
        if self.use_ssl or self.token is None or self._host not in _LOOPBACK:
            return super().toChannel()
        token = grpc.access_token_call_credentials(self.token)
        credentials = grpc.composite_channel_credentials(grpc.local_channel_credentials(), token)
        return self._secure_channel(self.endpoint, credentials)


class LossPolicy(DefaultPolicy):
    """Retry calls until one of them has failed for too long; then the server is lost, for all later calls.

    A client makes several calls when it ends, also after an error.
    """

    def __init__(self) -> None:
        super().__init__(
            max_retries=_RETRIES_MAX,
            initial_backoff=_FIRST_WAIT_MS,
            backoff_multiplier=2.0,
            max_backoff=_LONGEST_WAIT_MS,
        )
        self._is_lost = False

    def give_up(self) -> None:
        """Try each later call once."""
        self._is_lost = True

    def can_retry(self, e: BaseException) -> bool:
        """Return whether a call may be repeated after an error."""
        return not self._is_lost and super().can_retry(e)

    def to_state(self) -> RetryPolicyState:
        """Return the state of one call."""
        return _CallState(self)


class _CallState(RetryPolicyState):
    def next_attempt(self, exception: BaseException | None = None) -> int | None:
        seconds = super().next_attempt(exception)
        if seconds is None and isinstance(self.policy, LossPolicy):
            self.policy.give_up()
        return seconds


def open_session(url: str) -> SparkSession:
    """Open a new session of a server."""
    return _prepare_session(_build_builder(url).create())


def find_session(url: str) -> SparkSession:
    """Return the session of this thread or process if there is one, else open one."""
    return _prepare_session(_build_builder(url).getOrCreate())


def _build_builder(url: str) -> ConnectSession.Builder:
    # PySpark asks this variable which kind of session this process has.
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    return ConnectSession.builder.channelBuilder(OneAddressChannel(url))


def _prepare_session(session: ConnectSession) -> SparkSession:
    if not any(isinstance(policy, LossPolicy) for policy in session.client.get_retry_policies()):
        policy = LossPolicy()
        session.client.set_retry_policies([policy])
        # PySpark cleans up when the process ends, perhaps after the server has ended.
        atexit.register(policy.give_up)
    return cast("SparkSession", session)


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
