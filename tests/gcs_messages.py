"""Requests to a server of Google Cloud Storage, and its answers."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from email import policy
from email.parser import BytesParser
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, urlsplit

JSON = "application/json; charset=UTF-8"
_EMPTY_LINE = re.compile(rb"\r?\n\r?\n")
# What XML errors have as their code.
_CODES = {HTTPStatus.NOT_FOUND: "NoSuchKey", HTTPStatus.PRECONDITION_FAILED: "PreconditionFailed"}


class RefusedError(Exception):
    """An answer that is an error."""

    def __init__(self, status: HTTPStatus, code: str = "") -> None:
        super().__init__(status)
        self.status, self.code = status, code or _CODES.get(status, status.phrase)


@dataclass(frozen=True)
class Request:
    """A request; the names of headers are in lower case."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    origin: str

    @property
    def condition(self) -> str | None:
        """The generation that the object must have; 0 if it must not exist."""
        return self.query.get("ifGenerationMatch") or self.headers.get("x-goog-if-generation-match")


@dataclass(frozen=True)
class Answer:
    """A status, a body and headers."""

    status: HTTPStatus = HTTPStatus.OK
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


def parse_request(method: str, target: str, headers: dict[str, str], body: bytes, origin: str) -> Request:
    """Return a request; the path of its target stays quoted."""
    address = urlsplit(target)
    query = {name: values[-1] for name, values in parse_qs(address.query, keep_blank_values=True).items()}
    return Request(method, address.path, query, headers, body, origin)


def as_json(content: dict[str, Any], status: HTTPStatus = HTTPStatus.OK) -> Answer:
    return Answer(status, json.dumps(content).encode(), {"Content-Type": JSON})


def parse_multipart(request: Request) -> Any:
    head = f"Content-Type: {request.headers['content-type']}\r\n\r\n".encode()
    return BytesParser(policy=policy.HTTP).parsebytes(head + request.body)


def split_parts(request: Request) -> tuple[dict[str, Any], bytes]:
    """Return the metadata and the content of a multipart upload; the content is not changed."""
    boundary = re.search(r"""boundary=["']?([^;"']+)""", request.headers["content-type"])
    assert boundary is not None
    _, first, second, *_ = re.split(rb"(?:\r?\n)?--" + re.escape(boundary[1].encode()), request.body)
    fields, content = (_EMPTY_LINE.split(part, maxsplit=1)[1] for part in (first, second))
    return json.loads(fields), content
