"""Manage the token of a Spark Connect server and the file in which local clients find it."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.jvm.jars import cache_folder

# The name of PySpark's own environment variable.
TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105 - the name of a variable, not a token
TOKEN_SETTING = "spark.connect.authenticate.token"  # noqa: S105 - the name of a setting, not a token
CONNECT_PORT = 15002
# PySpark sends a token without TLS only to a host with this name.
LOCALHOST = "localhost"
_LOOPBACK = (LOCALHOST, "127.0.0.1", "::1")


def is_loopback(host: str | None) -> bool:
    """Return whether a host is the loopback address of this machine, which only local processes can reach."""
    return host in _LOOPBACK


def get_token_file(port: int) -> Path:
    """Return the file in which a server on a local port stores its token for clients of the same user."""
    return cache_folder() / "connect" / f"{port}.token"


@contextmanager
def offer_token(port: int, token_file: Path | None = None) -> Iterator[tuple[str, Path]]:
    """Yield the token of a server that starts, and the file that contains it.

    Without ``token_file``, a new token is generated and its file is removed when the server ends. With
    ``token_file``, an existing token is read, or a new one is written; the file is kept.

    :raises SetupError: if other users may read the file, or if it cannot be written.
    """
    file = token_file or get_token_file(port)
    try:
        if token_file is None:
            file.unlink(missing_ok=True)
        if not file.exists():
            _write_token(file)
        token = read_token(file)
    except OSError as error:
        raise SetupError(
            f"The token file {file} cannot be used: set another file with --token-file ({error})"
        ) from None
    try:
        yield token, file
    finally:
        if token_file is None:
            with suppress(OSError):
                file.unlink(missing_ok=True)


def read_token(file: Path) -> str:
    """Return the token in a file.

    :raises SetupError: if other users may read it, or if it is empty.
    """
    if file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise SetupError(f"The token file {file} can be read by other users: run chmod 600 {file}")
    token = file.read_text(encoding="ascii").strip()
    if not token:
        raise SetupError(f"The token file {file} is empty: remove it, so that the server creates a new one")
    return token


def add_token(url: str) -> tuple[str, dict[str, str]]:
    """Return the server address for a client, and the environment variables that the client needs.

    The token comes from the address, from a server of this user on this machine, or from the environment.

    :raises SetupError: if the token file exists but cannot be read, or if other users may read it.
    """
    address = urlsplit(url)
    if not is_loopback(address.hostname) or "use_ssl=true" in address.path.lower():
        return url, {}
    port = address.port or CONNECT_PORT
    local, file = urlunsplit(address._replace(netloc=f"{LOCALHOST}:{port}")), get_token_file(port)
    if ";token=" in address.path:
        return local, {}
    try:
        return local, {TOKEN_VARIABLE: read_token(file)}
    except FileNotFoundError:
        # No server of this user is running, or it has just ended.
        return local, {}
    except OSError as error:
        raise SetupError(f"The token file {file} cannot be read: {error}") from None


def _write_token(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as stream:
        stream.write(secrets.token_urlsafe(32))
