"""An object store in memory, whose tags behave as those of real stores, and whose client can be killed.

The name of a bucket says what its tags are:

* ``content``: the digest of the content, as on S3; a copy has the same.
* ``write``: another one for each write or copy, as on Azure, and on S3 with keys of KMS.
* ``generation``: the same, and there is a digest of the content beside it, as on Google Cloud Storage.
* ``parts``: that of the parts of an upload, as on S3; a copy is made in one part, and so has another one.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import threading
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

TAGS = ("content", "write", "generation", "parts")
_PROTOCOL = "tagged"


class Killed(BaseException):
    """An exception that stands for the end of the process; no handler of the package catches it."""


class TaggedFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """The store; a request that changes anything but a lease can be the last one of a process."""

    protocol = _PROTOCOL
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    tags: ClassVar[dict[str, dict[str, Any]]] = {}
    lock = threading.RLock()
    requests = 0
    last_request = -1

    @classmethod
    def dies_before(cls, request: int) -> None:
        """Kill the process before the n-th request that changes something; never with -1."""
        cls.requests, cls.last_request = 0, request

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix(f"{_PROTOCOL}://").strip("/")

    def find(self, path: str, *args: Any, detail: bool = False, **kwargs: Any) -> Any:
        entries = super().find(path, *args, detail=detail, **kwargs)
        return {name: self._add_tag(entry) for name, entry in entries.items()} if detail else entries

    def change_tags(self, path: str) -> None:
        """Change the tags of the files below a path, as a change of their metadata does on some stores."""
        for name in self.find(path):
            self._set_tag(name, is_copy=True)

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        return self._add_tag(super().info(path, **kwargs))

    def open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        return _Upload(self, path) if mode == "wb" and not kwargs else super().open(path, mode, **kwargs)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        self._count_request(path)
        with self.lock:
            super().pipe_file(path, value, mode=mode, **kwargs)
            self._set_tag(path, is_copy=False)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        self._count_request(path2)
        with self.lock:
            super().cp_file(path1, path2, **kwargs)
            self._set_tag(path2, is_copy=True)

    def rm_file(self, path: str) -> None:
        self._count_request(path)
        super().rm_file(path)

    def _count_request(self, path: str) -> None:
        cls = type(self)
        with self.lock:
            if "lease" in path:
                return
            cls.requests += 1
            if cls.requests > cls.last_request - 1 >= 0:
                raise Killed

    def _add_tag(self, entry: dict[str, Any]) -> dict[str, Any]:
        tag = self.tags.get(entry["name"])
        return entry if tag is None or entry["type"] != "file" else {**entry, **tag}

    def _set_tag(self, path: str, *, is_copy: bool) -> None:
        path = self._strip_protocol(path)
        digest = hashlib.md5(self.store[path].getvalue(), usedforsecurity=False).hexdigest()
        kind = path.split("/")[1].partition("-")[0]
        number, parts = next(_NUMBERS), "" if is_copy else "-2"
        tags = {"content": digest, "write": number, "generation": number, "parts": f"{digest}{parts}"}
        self.tags[path] = {"ETag": f'"{tags[kind]}"', "md5Hash": digest if kind == "generation" else None}


class _Upload(io.BytesIO):
    """A file to write, which gets its name when it is closed, unless it is discarded."""

    def __init__(self, file_system: TaggedFileSystem, path: str) -> None:
        super().__init__()
        self._write: Callable[[bytes], None] | None = partial(file_system.pipe_file, path)

    def discard(self) -> None:
        self._write = None

    def close(self) -> None:
        if not self.closed and self._write is not None:
            self._write(self.getvalue())
        super().close()


_NUMBERS = itertools.count(1)
fsspec.register_implementation(_PROTOCOL, TaggedFileSystem, clobber=True)


def make_bucket(tags: str) -> str:
    """Return the location of an empty bucket with tags of a kind, and remove all others."""
    TaggedFileSystem.store.clear()
    TaggedFileSystem.tags.clear()
    return f"{_PROTOCOL}://{tags}-{uuid.uuid4().hex}"
