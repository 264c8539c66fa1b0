"""A server of the API of Google Cloud Storage on this machine, in a process of its own.

A request needs a token of the service account whose key file the server has written. Hadoop's client has no
setting for another address: it uses the server as a proxy, which answers in place of Google's hosts with a
certificate that the options of the JVM make it trust. ``tests.gcs_store`` says what the server does not do.
"""

from __future__ import annotations

import gzip
import http.client
import json
import ssl
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)

from tests.gcs_messages import Answer, as_json, parse_request
from tests.gcs_store import Store

HOST = "127.0.0.1"
_CONTROL = "/control"
_KEY = "key.pem"
_EMAIL = "lake@project.iam.gserviceaccount.com"
_TOKEN = "token-of-the-service-account"  # noqa: S105 - of a server in tests
_TRUST_PASSWORD = "changeit"  # noqa: S105 - the usual one of Java's trust stores
_GOOGLE = ("storage.googleapis.com", "www.googleapis.com", "oauth2.googleapis.com")


@dataclass(frozen=True)
class ServiceAccount:
    """The account that may use the server: it signs tokens, or requests for tokens, with its key."""

    key: RSAPrivateKey

    def issue_token(self, body: bytes) -> Answer:
        """Return the answer to a request for a token."""
        if not self._has_signed(parse_qs(body.decode()).get("assertion", [""])[0]):
            return Answer(HTTPStatus.BAD_REQUEST, b'{"error": "invalid_grant"}')
        content = {"access_token": _TOKEN, "token_type": "Bearer", "expires_in": 3600}
        return Answer(body=json.dumps(content).encode(), headers={"Content-Type": "application/json"})

    def is_authorized(self, header: str) -> bool:
        """Return whether a header has a token that was issued, or that the key has signed."""
        token = header.removeprefix("Bearer ")
        return token == _TOKEN or self._has_signed(token)

    def _has_signed(self, token: str) -> bool:
        with suppress(jwt.PyJWTError):
            options: Any = {"verify_aud": False}
            claims = jwt.decode(token, self.key.public_key(), algorithms=["RS256"], options=options)
            return bool(claims["iss"] == _EMAIL)
        return False


@dataclass(frozen=True)
class GcsServer:
    """The server as clients reach it."""

    port: int
    folder: Path

    @property
    def endpoint(self) -> str:
        """The address for gcsfs (``STORAGE_EMULATOR_HOST``)."""
        return f"http://{HOST}:{self.port}"

    @property
    def key_content(self) -> dict[str, Any]:
        """The content of a key file; delta-rs reads the address from it."""
        private_key = (self.folder / _KEY).read_text()
        return {
            "type": "service_account",
            "project_id": "project",
            "client_id": "1",
            "client_email": _EMAIL,
            "private_key_id": "1",
            "private_key": private_key,
            "token_uri": f"{self.endpoint}/token",
            "gcs_base_url": self.endpoint,
            "disable_oauth": False,
        }

    @property
    def key_file(self) -> Path:
        """The key file."""
        file = self.folder / "key.json"
        file.write_text(json.dumps(self.key_content))
        return file

    @property
    def java_options(self) -> str:
        """The options of a JVM whose clients use the server in place of Google's hosts."""
        options = {
            "https.proxyHost": HOST,
            "https.proxyPort": str(self.port),
            "javax.net.ssl.trustStore": str(self.folder / "trust.p12"),
            "javax.net.ssl.trustStorePassword": _TRUST_PASSWORD,
        }
        return " ".join(f"-D{name}={value}" for name, value in options.items())

    def make_bucket(self) -> str:
        """Create a bucket with a name of its own, and return its location."""
        name = f"lake-{uuid.uuid4().hex[:12]}"
        self._send("POST", "/storage/v1/b", {"name": name})
        return f"gs://{name}"

    def open_files(self) -> Any:
        """Return the file system; ``STORAGE_EMULATOR_HOST`` must have the address."""
        import gcsfs

        return gcsfs.GCSFileSystem(
            token=str(self.key_file), use_listings_cache=False, skip_instance_cache=True
        )

    def hold_next_log_entry(self) -> None:
        """Let the next writer of a log entry wait until another one has written the entry."""
        self._send("POST", _CONTROL, {})

    def find_held_entry(self) -> str | None:
        """Return the log entry whose writer waits."""
        return cast("str | None", self._send("GET", _CONTROL)["held"])

    def read_log_conditions(self) -> list[str | None]:
        """Return the generation that each write of a log entry has required; 0 is that of no object."""
        return list(self._send("GET", _CONTROL)["log_conditions"])

    def _send(self, method: str, path: str, content: dict[str, Any] | None = None) -> dict[str, Any]:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=60)
        try:
            headers = {"Authorization": f"Bearer {_TOKEN}"}
            connection.request(method, path, json.dumps(content) if content is not None else None, headers)
            answer = connection.getresponse()
            assert answer.status == HTTPStatus.OK, answer.read()
            return dict(json.loads(answer.read()))
        finally:
            connection.close()


class _Handler(BaseHTTPRequestHandler):
    """Answer requests for tokens and objects, and speak TLS to clients that use the server as a proxy."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def __init__(self, *arguments: Any, server_state: tuple[Store, ServiceAccount, ssl.SSLContext]) -> None:
        self._store, self._account, self._tls = server_state
        self._origin = ""
        super().__init__(*arguments)

    def do_CONNECT(self) -> None:
        self.send_response(HTTPStatus.OK)
        self.end_headers()
        self.request = self._tls.wrap_socket(self.connection, server_side=True)
        self._origin = f"https://{self.path.partition(':')[0]}"
        self.setup()

    def do_GET(self) -> None:
        body = self._read_body()
        origin = self._origin or f"http://{self.headers['Host']}"
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = parse_request(self.command, self.path, headers, body, origin)
        if request.path == _CONTROL:
            answer = self._control()
        elif request.path == "/token":
            answer = self._account.issue_token(body)
        else:
            answer = self._store.answer_or_refuse(request)
        self.send_response(answer.status)
        for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_POST = do_PUT = do_DELETE = do_HEAD = do_GET  # noqa: N815 - the names of the methods

    def _control(self) -> Answer:
        self._store.holds_next = self._store.holds_next or self.command == "POST"
        return as_json({"held": self._store.held_entry, "log_conditions": self._store.log_conditions})

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
        """Log nothing."""

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Show errors of the server, and not those of clients that close connections."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


@contextmanager
def run_gcs(folder: Path) -> Iterator[GcsServer]:
    """Start a server, which keeps nothing but keys in the folder, and end it afterwards.

    It is not a thread of this process: some calls of delta-rs would not let it run.
    """
    command = [sys.executable, "-m", "tests.gcs_server", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield GcsServer(int(process.stdout.readline()), folder)
        finally:
            process.terminate()


def main() -> None:
    """Serve until the process ends, and print the port."""
    folder = Path(sys.argv[1])
    account = ServiceAccount(generate_private_key(65537, 2048))
    (folder / _KEY).write_bytes(_as_pem(account.key))
    state = (Store(account.is_authorized), account, _make_certificate(folder))
    with _Server((HOST, 0), partial(_Handler, server_state=state)) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()


def _as_pem(key: RSAPrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _make_certificate(folder: Path) -> ssl.SSLContext:
    """Return a TLS context with a certificate for the hosts of Google, and write a trust store for Java."""
    key = generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Google in a test")])
    start = datetime.now(UTC) - timedelta(days=1)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in _GOOGLE]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    trust = pkcs12.serialize_java_truststore(
        [pkcs12.PKCS12Certificate(certificate, b"google")], BestAvailableEncryption(_TRUST_PASSWORD.encode())
    )
    (folder / "trust.p12").write_bytes(trust)
    file = folder / "server.pem"
    file.write_bytes(_as_pem(key) + certificate.public_bytes(Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context


if __name__ == "__main__":
    main()
