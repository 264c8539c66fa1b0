"""Manage the token of a Spark Connect server, and find a server, its token and its loss as a client."""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from airflow_merge_provider.core.errors import JobError, SetupError
from airflow_merge_provider.spark_process.jvm.jars import cache_folder

# The name of PySpark's own environment variable.
TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105 - the name of a variable, not a token
TOKEN_SETTING = "spark.connect.authenticate.token"  # noqa: S105 - the name of a setting, not a token
CONNECT_PORT = 15002
# PySpark itself sends a token without TLS only to a host with this name, and tries both addresses.
LOCALHOST = "localhost"
LOOPBACK = ("127.0.0.1", "::1")
# A lost server is reported within 30 seconds, also if nothing refuses connections to it.
_LOST_SECONDS = 20.0
_WATCH_SECONDS = 7.0
_CONNECT_SECONDS = 5.0
_FIRST_CONNECT_SECONDS = 10.0


def find_loopback(host: str | None) -> str | None:
    """Return the loopback address that a host means, which only local processes can reach; else None.

    The name ``localhost`` has two addresses. Anyone on the machine can listen on the one that a server does
    not use, and clients that try both would send the token there.
    """
    if host == LOCALHOST:
        return LOOPBACK[0]
    return host if host in LOOPBACK else None


def format_address(host: str, port: int) -> str:
    """Return a host and a port as an address has them.

    >>> format_address("::1", 15002)
    '[::1]:15002'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def generate_token() -> str:
    """Return a new token."""
    return secrets.token_urlsafe(32)


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
        held_file = file.open("rb")
    except OSError as error:
        raise SetupError(
            f"The token file {file} cannot be used: set another file with --token-file ({error})"
        ) from None
    # The kernel releases the lock when this process ends, however it ends.
    with suppress(OSError):
        fcntl.flock(held_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield token, file
    finally:
        held_file.close()
        if token_file is None:
            with suppress(OSError):
                file.unlink(missing_ok=True)


def read_token(file: Path) -> str:
    """Return the token in a file.

    :raises SetupError: if it belongs to another user, if other users may read it, or if it is empty.
    """
    with file.open(encoding="ascii") as stream:
        status = os.fstat(stream.fileno())
        if status.st_uid != os.geteuid():
            raise SetupError(
                f"The token file {file} belongs to another user, who knows its token: remove it, or set "
                "another file"
            )
        if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise SetupError(f"The token file {file} can be read by other users: run chmod 600 {file}")
        token = stream.read().strip()
    if not token:
        raise SetupError(f"The token file {file} is empty: remove it, so that the server creates a new one")
    return token


def add_token(url: str) -> tuple[str, dict[str, str]]:
    """Return the server address for a client, and the environment variables that the client needs.

    The token comes from the address, from a server of this user on this machine, or from the environment.

    :raises SetupError: if the token file exists but cannot be read, or if other users may read it.
    """
    address = urlsplit(url)
    host = find_loopback(address.hostname)
    if host is None or "use_ssl=true" in address.path.lower():
        return url, {}
    port = address.port or CONNECT_PORT
    local, file = urlunsplit(address._replace(netloc=format_address(host, port))), get_token_file(port)
    if ";token=" in address.path:
        return local, {}
    try:
        return local, {TOKEN_VARIABLE: read_token(file)} if _is_offered(file) else {}
    except FileNotFoundError:
        # No server of this user is running, or it has just ended.
        return local, {}
    except OSError as error:
        raise SetupError(f"The token file {file} cannot be read: {error}") from None


def parse_address(url: str) -> tuple[str, int]:
    """Return the host and the port of a server's address.

    :raises SetupError: if it is not the address of a Spark Connect server.
    """
    # Error messages must not contain the URL: its path may contain a token.
    address = urlsplit(url)
    if address.scheme != "sc" or not address.hostname:
        raise SetupError("The address of the Spark Connect server is not valid: use the form sc://host:15002")
    host = find_loopback(address.hostname) or address.hostname
    return host, address.port or CONNECT_PORT


def require_server(host: str, port: int) -> None:
    """Check that a server listens: its client would otherwise try for a while without output.

    :raises JobError: if it does not; it may be about to start.
    """
    try:
        socket.create_connection((host, port), timeout=_FIRST_CONNECT_SECONDS).close()
    except OSError as error:
        raise JobError(
            f"The Spark Connect server on {host} cannot be reached, nothing was started: check the "
            f"connection, or start a server with `airflow_merge_provider connect-server` ({error})"
        ) from None


class ServerWatch:
    """Watch whether a server still listens during a run, from a thread.

    :param on_loss: called once if it does not; its client may wait for an answer for ever.
    """

    def __init__(self, host: str, port: int, on_loss: Callable[[], object]) -> None:
        self._host, self._port, self._on_loss = host, port, on_loss
        self._ended = threading.Event()
        self.is_lost = False

    @contextmanager
    def watch_server(self) -> Iterator[None]:
        """Watch the server during the block."""
        thread = threading.Thread(target=self._watch_address, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join(_CONNECT_SECONDS + 1)

    def build_error(self) -> JobError:
        """Return the error of a run whose server is lost."""
        return JobError(
            f"The Spark Connect server on {self._host} was lost during the run: start it again, or check the "
            "network (whether the run has committed is not known; a retry reports its commit, or repeats it)"
        )

    def _watch_address(self) -> None:
        last_answer = time.monotonic()
        while not self._ended.wait(_WATCH_SECONDS):
            with suppress(OSError):
                socket.create_connection((self._host, self._port), timeout=_CONNECT_SECONDS).close()
                last_answer = time.monotonic()
            if time.monotonic() - last_answer > _LOST_SECONDS and not self._ended.is_set():
                self.is_lost = True
                self._on_loss()
                return


def _is_offered(file: Path) -> bool:
    """Return whether the server of a token file lives: whoever listens in its place gets no token."""
    with file.open("rb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _write_token(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as stream:
        stream.write(generate_token())
