"""Where the tables of the demo are: a folder, or a bucket of an S3 server on this machine."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from airflow_merge_provider.core.child_process import die_with_parent
from airflow_merge_provider.core.errors import SetupError
from demo.local_airflow import HOST, free_port

STORES = ("local", "s3")
_BUCKET = "demo"
_START_SECONDS = 60.0


@dataclass(frozen=True)
class Warehouse:
    """The location of the tables, the options of delta-rs for it, and the environment of Airflow."""

    location: str
    options: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    def locate_table(self, name: str) -> str:
        """Return the location of a table."""
        return f"{self.location}/{name}"


@contextlib.contextmanager
def open_warehouse(store: str, home: Path) -> Iterator[Warehouse]:
    """Return the warehouse of a store; the server of ``s3`` runs inside the block and keeps nothing."""
    if store == "local":
        yield Warehouse(str(home / "warehouse"))
        return
    with _run_server(home) as url:
        yield _create_bucket(url)


def _create_bucket(url: str) -> Warehouse:
    """Create the bucket, and return it as a warehouse; Airflow reads the keys from its connection."""
    key, secret = "demo", secrets.token_hex(16)
    # The server accepts every signature. This one names the service, by which it tells S3 from others.
    signature = f"AWS4-HMAC-SHA256 Credential={key}/20260101/us-east-1/s3/aws4_request"
    httpx.put(f"{url}/{_BUCKET}", headers={"Authorization": signature}, trust_env=False).raise_for_status()
    options = {
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": url,
        "AWS_ALLOW_HTTP": "true",
    }
    location = f"s3://{_BUCKET}/warehouse"
    extra = {"region": "us-east-1", "endpoint_url": url}
    connection = {
        "conn_type": "merge_store",
        "host": location,
        "login": key,
        "password": secret,
        "extra": extra,
    }
    return Warehouse(location, options, {"AIRFLOW_CONN_MERGE_STORE_DEFAULT": json.dumps(connection)})


@contextlib.contextmanager
def _run_server(home: Path) -> Iterator[str]:
    """Start an S3 server and return its address.

    :raises SetupError: when it does not start.
    """
    port = free_port()
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", HOST, "-p", str(port)]
    home.mkdir(parents=True, exist_ok=True)
    with (home / "s3.log").open("wb") as log:
        server = subprocess.Popen(  # noqa: S603 - our own command, no shell
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - runs only one system call
        )
        try:
            _wait_for_server(server, port, home / "s3.log")
            yield f"http://{HOST}:{port}"
        finally:
            server.terminate()
            server.wait()


def _wait_for_server(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and server.poll() is None:
        with contextlib.suppress(OSError):
            socket.create_connection((HOST, port), timeout=1).close()
            return
        time.sleep(0.1)
    raise SetupError(f"The S3 server has not started: install airflow-merge-provider[dev], and see {log}")
