"""Open a session of a Spark Connect server: dial one address only, and give up on a server that is lost."""

from __future__ import annotations

import atexit
import os
from typing import cast

import grpc  # type: ignore[import-untyped]
from pyspark.sql import SparkSession
from pyspark.sql.connect.client.core import DefaultChannelBuilder
from pyspark.sql.connect.client.retries import DefaultPolicy, RetryPolicyState
from pyspark.sql.connect.session import SparkSession as ConnectSession

# The name has two addresses, and anyone on the machine may listen on the one that the server does not use.
_LOCALHOST, _LOOPBACK = "localhost", ("127.0.0.1", "[::1]")
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
            self.setChannelOption("grpc.enable_http_proxy", 0)

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
        # PySpark closes the channel without the threads of gRPC, and waits for ever for an unfinished call.
        atexit.register(session.client.close)
        atexit.register(policy.give_up)
    return cast("SparkSession", session)
