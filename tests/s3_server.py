"""An S3 server on this machine behind a proxy that disturbs the writes of log entries."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from http import HTTPStatus
from typing import Any

from airflow_merge_provider.core.object_store.s3_settings import S3Settings
from tests.s3_proxy import CONTROL, HOST, Behaviour

_START_SECONDS = 60.0
_AUTHORIZATION = "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request"


@dataclass(frozen=True)
class S3Server:
    """The server as clients reach it, through the proxy."""

    port: int
    store_port: int

    @property
    def settings(self) -> S3Settings:
        """The settings of clients."""
        return S3Settings(access_key="key", secret_key="secret", endpoint=f"http://{HOST}:{self.port}")  # noqa: S106

    @property
    def store_url(self) -> str:
        """The address of the store behind the proxy, for what is not to be disturbed."""
        return f"http://{HOST}:{self.store_port}"

    def make_bucket(self) -> str:
        """Create a bucket with a name of its own, and return its location."""
        name = f"lake-{uuid.uuid4().hex[:12]}"
        self._send("PUT", f"/{name}")
        return f"s3://{name}"

    def read_behaviour(self) -> Behaviour:
        """Return what the proxy does, and what it has seen."""
        return Behaviour(**json.loads(self._send("GET", CONTROL)))

    def change_behaviour(self, **changes: Any) -> None:
        """Set what the proxy does; by default it passes everything on."""
        self._send("POST", CONTROL, json.dumps(asdict(replace(Behaviour(), **changes))).encode())

    def _send(self, method: str, path: str, body: bytes | None = None) -> bytes:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=60)
        try:
            connection.request(method, path, body=body, headers={"Authorization": _AUTHORIZATION})
            answer = connection.getresponse()
            assert answer.status == HTTPStatus.OK, answer.read()
            return answer.read()
        finally:
            connection.close()


@contextmanager
def run_s3() -> Iterator[S3Server]:
    """Start a server and the proxy before it, and end both afterwards."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        store_port = probe.getsockname()[1]
    module = [sys.executable, "-W", "ignore", "-m"]
    quiet: Any = {"stderr": subprocess.DEVNULL, "text": True}
    store = subprocess.Popen(
        [*module, "moto.server", "-H", HOST, "-p", str(store_port)], stdout=subprocess.DEVNULL, **quiet
    )
    proxy = subprocess.Popen([*module, "tests.s3_proxy", str(store_port)], stdout=subprocess.PIPE, **quiet)
    try:
        _wait_for_port(store_port)
        assert proxy.stdout is not None
        yield S3Server(int(proxy.stdout.readline()), store_port)
    finally:
        for process in (proxy, store):
            process.terminate()
            process.wait()
        if proxy.stdout is not None:
            proxy.stdout.close()


def _wait_for_port(port: int) -> None:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            socket.create_connection((HOST, port), timeout=1).close()
            return
        time.sleep(0.1)
    raise TimeoutError(f"the S3 server has not started within {_START_SECONDS:.0f} s")
