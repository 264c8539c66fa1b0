"""A proxy before an S3 server that delays, loses or changes the writes of log entries; run as a process.

It is a process of its own because delta-rs holds the lock of the interpreter while it waits for an answer.
Requests to ``/_proxy`` read and set what it does.
"""

from __future__ import annotations

import http.client
import json
import random
import re
import socket
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HOST = "127.0.0.1"
CONTROL = "/_proxy"
_LOG_ENTRY = re.compile(r"/_delta_log/\d{20}\.json$")
_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}


@dataclass
class Behaviour:
    """What happens to requests.

    ``delay_max`` is the longest random delay of a write of a log entry, in seconds. ``ignores_condition``
    removes the condition of a write, as a store does that does not know it. ``lost_answers`` is the number of
    answers to such writes that the client does not get although the server has written. ``conditions`` are
    the conditions of all writes of log entries.
    """

    delay_max: float = 0.0
    ignores_condition: bool = False
    lost_answers: int = 0
    conditions: list[str | None] = field(default_factory=list)


class _Proxy(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 100

    def __init__(self, store_port: int) -> None:
        super().__init__((HOST, 0), _Handler)
        self.store = (HOST, store_port)
        self.lock = threading.Lock()
        self.behaviour = Behaviour()
        self.random = random.Random(7)  # noqa: S311 - delays


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Without both, an answer waits for 40 ms until the client has acknowledged its headers.
    wbufsize = -1
    disable_nagle_algorithm = True
    server: _Proxy

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def handle_expect_100(self) -> bool:
        """Let the client send the body at once; it would wait for a second."""
        is_handled = super().handle_expect_100()
        self.wfile.flush()
        return is_handled

    def _answer_request(self) -> None:
        body = self._read_body()
        if self.path == CONTROL:
            self._control(body)
            return
        is_entry = self.command == "PUT" and bool(_LOG_ENTRY.search(self.path.partition("?")[0]))
        behaviour = self.server.behaviour
        if is_entry:
            behaviour.conditions.append(self.headers.get("If-None-Match"))
            time.sleep(self.server.random.uniform(0.0, behaviour.delay_max))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
        if behaviour.ignores_condition:
            headers = {name: value for name, value in headers.items() if name.lower() != "if-none-match"}
        status, answer_headers, content = self._ask_store(body, headers)
        if is_entry and status == HTTPStatus.OK and self._takes_answer():
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        length = answer_headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(content))
        self.send_response(status)
        for name, value in answer_headers.items():
            if name.lower() not in _HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(content)

    def _ask_store(self, body: bytes | None, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(*self.server.store, timeout=60)
        try:
            connection.request(self.command, self.path, body=body, headers=headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def _takes_answer(self) -> bool:
        with self.server.lock:
            is_lost = self.server.behaviour.lost_answers > 0
            self.server.behaviour.lost_answers -= is_lost
            return is_lost

    def _control(self, body: bytes | None) -> None:
        if body:
            self.server.behaviour = Behaviour(**json.loads(body))
        content = json.dumps(asdict(self.server.behaviour)).encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _read_body(self) -> bytes | None:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            content = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                content += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return content
        length = int(self.headers.get("Content-Length") or 0)
        return self.rfile.read(length) if length else None

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _answer_request  # noqa: N815


if __name__ == "__main__":
    proxy = _Proxy(int(sys.argv[1]))
    print(proxy.server_address[1], flush=True)
    proxy.serve_forever()
