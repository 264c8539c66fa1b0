"""The buckets and objects of a Google Cloud Storage in memory, and its answers to requests.

It answers the requests of the clients that runs use: the JSON API for gcsfs and Hadoop's client, and the
XML API for delta-rs. Objects have generations, and writes and deletions have preconditions.

It does not have object versions, ACLs, encryption, folders of hierarchical namespaces, compose, multipart
uploads of the XML API, gRPC, and quotas. Metadata of objects is stored, but cannot be changed.
"""

from __future__ import annotations

import json
import re
import threading
import uuid
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email import policy
from email.parser import BytesParser
from hashlib import md5
from http import HTTPStatus
from itertools import count
from typing import Any
from urllib.parse import unquote
from xml.sax.saxutils import escape

import google_crc32c

from tests.gcs_messages import (
    JSON,
    Answer,
    RefusedError,
    Request,
    as_json,
    parse_multipart,
    parse_request,
    split_parts,
)

_XML = "application/xml; charset=UTF-8"
_OBJECT = re.compile(r"(?:/download|/upload)?/storage/v1/b/([^/]+)/o(?:/([^/]+))?(/\w+To/.+)?")
_TARGET = re.compile(r"/(rewriteTo|copyTo|moveTo)(?:/b/([^/]+))?/o/([^/]+)")
_BUCKET = re.compile(r"/storage/v1/b(?:/([^/]+))?")
_HOLD_SECONDS = 60.0
_LOG_ENTRY = re.compile(r"_delta_log/\d{20}\.json$")
_RANGE = re.compile(r"bytes=(\d*)-(\d*)$")


@dataclass(frozen=True)
class Blob:
    """A stored object."""

    bucket: str
    name: str
    content: bytes
    generation: int
    content_type: str
    metadata: dict[str, str]
    updated: datetime

    def describe(self) -> dict[str, Any]:
        """Return the object as the JSON API does."""
        time = self.updated.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return {
            "kind": "storage#object",
            "id": f"{self.bucket}/{self.name}/{self.generation}",
            "bucket": self.bucket,
            "name": self.name,
            "contentType": self.content_type,
            "generation": str(self.generation),
            "metageneration": "1",
            "size": str(len(self.content)),
            "timeCreated": time,
            "updated": time,
            "storageClass": "STANDARD",
            "metadata": self.metadata,
            "etag": f"{self.generation}",
            "md5Hash": b64encode(md5(self.content).digest()).decode(),  # noqa: S324 - the API has it
            "crc32c": b64encode(google_crc32c.value(self.content).to_bytes(4, "big")).decode(),
        }

    def describe_in_headers(self) -> dict[str, str]:
        """Return the headers of a download."""
        return {
            "Content-Type": self.content_type,
            "ETag": f'"{self.generation}"',
            "Last-Modified": self.updated.strftime("%a, %d %b %Y %H:%M:%S GMT"),
            "x-goog-generation": str(self.generation),
            "x-goog-metageneration": "1",
            "x-goog-stored-content-length": str(len(self.content)),
        }


class Store:
    """The buckets, and what writers of log entries do."""

    def __init__(self, is_authorized: Callable[[str], bool]) -> None:
        """Create a store without buckets.

        :param is_authorized: whether a header of requests has a valid token.
        """
        self._is_authorized = is_authorized
        self.buckets: dict[str, dict[str, Blob]] = {}
        self.log_conditions: list[str | None] = []
        # Whether the next writer of a log entry waits for another one, and the entry of one that waits.
        self.holds_next = False
        self.held_entry: str | None = None
        self._uploads: dict[str, tuple[Request, str, bytearray]] = {}
        self._generations = count(1)
        self._lock = threading.Condition()

    def answer(self, request: Request) -> Answer:
        """Return the answer to a request of either API.

        :raises RefusedError: if it is an error.
        """
        if request.path.startswith("/batch"):
            return self._answer_batch(request)
        if not self._is_authorized(request.headers.get("authorization", "")):
            raise RefusedError(HTTPStatus.UNAUTHORIZED)
        if match := _OBJECT.fullmatch(request.path):
            bucket, name = unquote(match[1]), unquote(match[2] or "")
            if request.path.startswith("/upload"):
                return self._upload(request, bucket)
            if match[3]:
                return self._transfer(request, self.find(bucket, name), match[3])
            return (
                self._answer_for_object(request, bucket, name)
                if name
                else self._list_as_json(request, bucket)
            )
        if match := _BUCKET.fullmatch(request.path):
            return self._answer_for_bucket(request, match[1])
        bucket, _, name = unquote(request.path).removeprefix("/").partition("/")
        return self._answer_in_xml(request, bucket, name) if name else self._list_as_xml(request, bucket)

    def find(self, bucket: str, name: str) -> Blob:
        """Return an object.

        :raises RefusedError: if it does not exist.
        """
        if bucket not in self.buckets:
            raise RefusedError(HTTPStatus.NOT_FOUND, "NoSuchBucket")
        if name not in self.buckets[bucket]:
            raise RefusedError(HTTPStatus.NOT_FOUND)
        return self.buckets[bucket][name]

    def write(
        self, bucket: str, name: str, content: bytes | Blob, condition: str | None, **fields: Any
    ) -> Blob:
        """Write an object, or copy one, if its present generation is that of the condition.

        :raises RefusedError: if it is another one, or the bucket does not exist.
        """
        if _LOG_ENTRY.search(name):
            self.log_conditions.append(condition)
            self._hold(bucket, name)
        if bucket not in self.buckets:
            raise RefusedError(HTTPStatus.NOT_FOUND, "NoSuchBucket")
        if isinstance(content, Blob):
            fields = {"content_type": content.content_type, "metadata": content.metadata}
            content = content.content
        with self._lock:
            self._check_condition(bucket, name, condition)
            blob = Blob(
                bucket=bucket,
                name=name,
                content=content,
                generation=next(self._generations),
                content_type=fields.get("content_type") or "application/octet-stream",
                metadata=fields.get("metadata") or {},
                updated=datetime.now(UTC),
            )
            self.buckets[bucket][name] = blob
            self._lock.notify_all()
        return blob

    def _hold(self, bucket: str, name: str) -> None:
        """Let one writer of a log entry wait until another one has written the entry."""
        with self._lock:
            if self.holds_next:
                self.holds_next, self.held_entry = False, name
                self._lock.wait_for(lambda: name in self.buckets[bucket], _HOLD_SECONDS)
                self.held_entry = None

    def _check_condition(self, bucket: str, name: str, condition: str | None) -> None:
        current = self.buckets[bucket].get(name)
        if condition is not None and int(condition) != (current.generation if current else 0):
            raise RefusedError(HTTPStatus.PRECONDITION_FAILED)

    def _delete(self, request: Request, bucket: str, name: str) -> Answer:
        self.find(bucket, name)
        with self._lock:
            self._check_condition(bucket, name, request.condition)
            self.buckets[bucket].pop(name, None)
        return Answer(HTTPStatus.NO_CONTENT)

    def _transfer(self, request: Request, blob: Blob, target: str) -> Answer:
        """Copy an object, or move it within its bucket."""
        match = _TARGET.fullmatch(target)
        assert match is not None
        bucket = unquote(match[2] or blob.bucket)
        copy = self.write(bucket, unquote(match[3]), blob, request.condition).describe()
        if match[1] == "moveTo":
            self.buckets[blob.bucket].pop(blob.name)
        size = {"totalBytesRewritten": copy["size"], "objectSize": copy["size"]}
        return as_json(
            {"kind": "storage#rewriteResponse", "done": True, **size, "resource": copy}
            if match[1] == "rewriteTo"
            else copy
        )

    def _answer_for_bucket(self, request: Request, name: str | None) -> Answer:
        if request.method == "POST":
            name = str(json.loads(request.body)["name"])
            self.buckets.setdefault(name, {})
        if name not in self.buckets:
            raise RefusedError(HTTPStatus.NOT_FOUND, "NoSuchBucket")
        time = datetime.now(UTC).isoformat()
        return as_json(
            {"kind": "storage#bucket", "name": name, "id": name, "timeCreated": time, "updated": time}
        )

    def _answer_for_object(self, request: Request, bucket: str, name: str) -> Answer:
        if request.method == "DELETE":
            return self._delete(request, bucket, name)
        blob = self.find(bucket, name)
        return _download(request, blob) if request.query.get("alt") == "media" else as_json(blob.describe())

    def _answer_in_xml(self, request: Request, bucket: str, name: str) -> Answer:
        if request.method == "DELETE":
            return self._delete(request, bucket, name)
        if request.method == "PUT":
            content: bytes | Blob = request.body
            if source := request.headers.get("x-goog-copy-source"):
                content = self.find(*unquote(source).removeprefix("/").split("/", 1))
            kind = request.headers.get("content-type")
            blob = self.write(bucket, name, content, request.condition, content_type=kind)
            return Answer(headers=blob.describe_in_headers())
        return _download(request, self.find(bucket, name))

    def _list(
        self, request: Request, bucket: str, size: int, after: str
    ) -> tuple[list[Blob], list[str], str]:
        """Return a page of objects, the prefixes in it, and the last name if there are more."""
        if bucket not in self.buckets:
            raise RefusedError(HTTPStatus.NOT_FOUND, "NoSuchBucket")
        prefix, delimiter = request.query.get("prefix", ""), request.query.get("delimiter", "")
        start, end = request.query.get("startOffset", ""), request.query.get("endOffset")
        blobs: list[Blob] = []
        prefixes: dict[str, None] = {}
        for name in sorted(self.buckets[bucket]):
            if not name.startswith(prefix) or name <= after or name < start or (end and name >= end):
                continue
            if len(blobs) + len(prefixes) == size:
                return blobs, list(prefixes), after
            after = name
            head, separator, _ = name[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if separator:
                prefixes[f"{prefix}{head}{delimiter}"] = None
                # The next page begins behind all names with this prefix.
                after = f"{prefix}{head}{delimiter}\U0010ffff"
            if not separator or (
                request.query.get("includeTrailingDelimiter") == "true" and name in prefixes
            ):
                blobs.append(self.buckets[bucket][name])
        return blobs, list(prefixes), ""

    def _list_as_json(self, request: Request, bucket: str) -> Answer:
        size = int(request.query.get("maxResults", 1000))
        blobs, prefixes, last = self._list(request, bucket, size, request.query.get("pageToken", ""))
        page = {"kind": "storage#objects", "items": [blob.describe() for blob in blobs], "prefixes": prefixes}
        return as_json({**page, "nextPageToken": last} if last else page)

    def _list_as_xml(self, request: Request, bucket: str) -> Answer:
        after = request.query.get("continuation-token") or request.query.get("start-after", "")
        size = int(request.query.get("max-keys", 1000))
        blobs, prefixes, last = self._list(request, bucket, size, after)
        parts = [
            f"<Contents><Key>{escape(blob.name)}</Key><Size>{len(blob.content)}</Size>"
            f"<LastModified>{blob.updated.isoformat()}</LastModified><ETag>{blob.generation}</ETag></Contents>"
            for blob in blobs
        ]
        parts += [f"<CommonPrefixes><Prefix>{escape(text)}</Prefix></CommonPrefixes>" for text in prefixes]
        parts += [f"<NextContinuationToken>{escape(last)}</NextContinuationToken>"] if last else []
        parts.append(f"<IsTruncated>{str(bool(last)).lower()}</IsTruncated>")
        text = f"<ListBucketResult>{''.join(parts)}</ListBucketResult>"
        return Answer(body=text.encode(), headers={"Content-Type": _XML})

    def _upload(self, request: Request, bucket: str) -> Answer:
        kind = request.query["uploadType"]
        if kind == "resumable":
            return (
                self._continue_upload(request)
                if "upload_id" in request.query
                else self._start_upload(request, bucket)
            )
        fields: dict[str, Any] = {}
        content = request.body
        if kind == "multipart":
            fields, content = split_parts(request)
        name = request.query.get("name") or fields["name"]
        return self._finish_upload(request, bucket, {**fields, "name": name}, content)

    def _start_upload(self, request: Request, bucket: str) -> Answer:
        upload = uuid.uuid4().hex
        self._uploads[upload] = (request, bucket, bytearray())
        address = f"{request.origin}{request.path}?uploadType=resumable&upload_id={upload}"
        return Answer(headers={"Location": address, "X-GUploader-UploadID": upload})

    def _continue_upload(self, request: Request) -> Answer:
        if request.method == "DELETE":
            del self._uploads[request.query["upload_id"]]
            return Answer(HTTPStatus.NO_CONTENT)
        start, bucket, content = self._uploads[request.query["upload_id"]]
        content += request.body
        total = request.headers.get("content-range", "").rpartition("/")[2]
        if total == "*" or (total and int(total) > len(content)):
            received = {"Range": f"bytes=0-{len(content) - 1}"} if content else {}
            return Answer(HTTPStatus.PERMANENT_REDIRECT, headers=received)
        fields = json.loads(start.body or b"{}")
        name = start.query.get("name") or fields["name"]
        return self._finish_upload(start, bucket, {**fields, "name": name}, bytes(content))

    def _finish_upload(self, request: Request, bucket: str, fields: dict[str, Any], content: bytes) -> Answer:
        blob = self.write(
            bucket,
            fields["name"],
            content,
            request.condition,
            content_type=fields.get("contentType"),
            metadata=fields.get("metadata"),
        )
        return as_json(blob.describe())

    def _answer_batch(self, request: Request) -> Answer:
        boundary = "batch_of_answers"
        parts = []
        for part in parse_multipart(request).iter_parts():
            line, _, remainder = part.get_payload(decode=True).lstrip().partition(b"\r\n")
            method, target, *_ = line.decode().split()
            message = BytesParser(policy=policy.HTTP).parsebytes(remainder)
            headers = {**request.headers, **{name.lower(): str(value) for name, value in message.items()}}
            body = message.get_payload(decode=True) or b""
            answer = self.answer_or_refuse(parse_request(method, target, headers, body, request.origin))
            lines = [f"--{boundary}", "Content-Type: application/http"]
            if identifier := part["Content-ID"]:
                lines.append(f"Content-ID: <response-{identifier.strip('<>')}>")
            lines += ["", f"HTTP/1.1 {answer.status.value} {answer.status.phrase}", f"Content-Type: {JSON}"]
            lines += [f"Content-Length: {len(answer.body)}", "", answer.body.decode()]
            parts.append("\r\n".join(lines))
        text = "\r\n".join([*parts, f"--{boundary}--", ""])
        return Answer(body=text.encode(), headers={"Content-Type": f"multipart/mixed; boundary={boundary}"})

    def answer_or_refuse(self, request: Request) -> Answer:
        """Return the answer, which may be an error."""
        try:
            return self.answer(request)
        except RefusedError as error:
            if "/storage/v1" not in request.path:
                text = f"<Error><Code>{error.code}</Code><Message>{error.status.phrase}</Message></Error>"
                return Answer(error.status, text.encode(), {"Content-Type": _XML})
            details = {"message": error.code, "domain": "global", "reason": error.code}
            content = {"code": error.status.value, "message": error.code, "errors": [details]}
            return as_json({"error": content}, error.status)


def _download(request: Request, blob: Blob) -> Answer:
    headers, size = blob.describe_in_headers(), len(blob.content)
    match = _RANGE.match(request.headers.get("range", ""))
    if match is None:
        return Answer(body=blob.content, headers=headers)
    start = int(match[1]) if match[1] else max(size - int(match[2]), 0)
    end = min(int(match[2]) + 1, size) if match[1] and match[2] else size
    if start >= size:
        return Answer(
            HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, headers={"Content-Range": f"bytes */{size}"}
        )
    headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    return Answer(HTTPStatus.PARTIAL_CONTENT, blob.content[start:end], headers)
