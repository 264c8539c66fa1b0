"""Test the client of a Spark Connect server: where it sends the token, and how long it waits for a server."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.connect.client.core import DefaultChannelBuilder

from airflow_merge_provider.jobs.spark.connect_client import LossPolicy, OneAddressChannel
from airflow_merge_provider.spark_process.connect_token import add_token


class TokenServer(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A server on one address, and whoever listens on the other one with the same port."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.intruded = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(1), handlers=[self])
        self.port = self._server.add_secure_port("127.0.0.1:0", grpc.local_server_credentials())
        self._server.start()
        self._listener = socket.create_server(("::1", self.port), family=socket.AF_INET6)
        threading.Thread(target=self._accept, daemon=True).start()

    def service(self, details: Any) -> Any:
        self.tokens.append(dict(details.invocation_metadata).get("authorization"))
        return grpc.unary_unary_rpc_method_handler(lambda request, _: request)

    def stop(self) -> None:
        self._server.stop(None).wait()
        self._listener.close()

    def _accept(self) -> None:
        try:
            self._listener.accept()
        except OSError:
            return
        self.intruded.set()


@pytest.fixture
def server() -> Iterator[TokenServer]:
    """Start both."""
    servers = TokenServer()
    yield servers
    servers.stop()


def call_server(builder: DefaultChannelBuilder) -> None:
    """Call the server once."""
    with builder.toChannel() as channel:
        channel.unary_unary("/service/method")(b"", timeout=10)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_the_token_goes_to_one_address(
    server: TokenServer, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process with the same port on the other loopback address sees neither token nor connection."""
    # A proxy would see them, too.
    monkeypatch.setenv("http_proxy", f"http://[::1]:{server.port}")
    url = f"sc://{host}:{server.port}/;token=hush"

    call_server(OneAddressChannel(url))
    call_server(OneAddressChannel(add_token(url)[0]))

    assert server.tokens == ["Bearer hush"] * 2
    assert not server.intruded.is_set()


def test_a_server_is_lost_after_some_seconds() -> None:
    """One call waits less than twenty seconds for a server, and later calls do not wait for it again."""
    policy, refused = LossPolicy(), _Unavailable()
    state = policy.to_state()
    assert policy.can_retry(refused)

    waits = list(iter(state.next_attempt, None))

    assert 10_000 < sum(waits) < 20_000
    assert not policy.can_retry(refused)
    assert not policy.to_state().can_retry(refused)


class _Unavailable(grpc.RpcError):  # type: ignore[misc]
    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE


# A session of a thread whose call is not finished, in a cycle that Python collects when the process ends.
_SCRIPT = """
import gc, os, threading
from airflow_merge_provider.jobs.spark.connect_client import open_session
gc.disable()
first = open_session(os.environ["SPARK_REMOTE"])

def leave_session():
    session = open_session(os.environ["SPARK_REMOTE"])
    session.rows = session.range(1000000).toLocalIterator()
    session.cycle = session
    print(next(session.rows).id, flush=True)

thread = threading.Thread(target=leave_session)
thread.start()
thread.join()
"""


def test_a_process_with_an_unfinished_call_ends(spark: SparkSession) -> None:
    """No session has to be stopped: its channel is closed before the threads of gRPC have ended."""
    with subprocess.Popen([sys.executable, "-c", _SCRIPT], stdout=subprocess.PIPE, text=True) as script:
        assert script.stdout is not None
        assert script.stdout.readline() == "0\n"
        try:
            assert script.wait(20) == 0
        finally:
            script.kill()
