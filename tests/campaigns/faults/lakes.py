"""Where the lakes of trials are: in their folders, or on S3 with copies in their folders."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.s3_server import S3Server


class LocalLakes:
    """Lakes that are read and written where they are."""

    def locate(self, folder: Path) -> str:
        """Return the location of the lake of a folder, as runs name it."""
        return str(folder)

    def fetch_files(self, folder: Path) -> None:
        """Make the folder equal to its lake."""

    def send_files(self, folder: Path) -> None:
        """Write the files of the folder that its lake does not have."""

    def drop_files(self, folder: Path) -> None:
        """Delete the lake, but not its folder."""


class S3Lakes(LocalLakes):
    """Lakes on S3, each with a copy in its folder, in which sources are written and results are read.

    Each method opens its own client, because it runs in a process of its own.
    """

    def __init__(self, server: S3Server) -> None:
        self._server = server
        self._bucket = server.make_bucket().removeprefix("s3://")

    def locate(self, folder: Path) -> str:
        return f"s3://{self._bucket}/{self._prefix(folder)}"

    def fetch_files(self, folder: Path) -> None:
        client, objects = self._open_client(), {}
        for key, digest in self._list_objects(client, folder):
            path = folder / key
            objects[path] = digest
            if not path.is_file() or _digest(path) != digest:
                path.parent.mkdir(parents=True, exist_ok=True)
                client.download_file(self._bucket, f"{self._prefix(folder)}/{key}", str(path))
        for path in _list_files(folder):
            if path not in objects:
                path.unlink()

    def send_files(self, folder: Path) -> None:
        client = self._open_client()
        objects = dict(self._list_objects(client, folder))
        # Files are merged in the order of their times, which is that of their names.
        for path in sorted(_list_files(folder)):
            key = path.relative_to(folder).as_posix()
            if objects.get(key) != _digest(path):
                content = path.read_bytes()
                client.put_object(Bucket=self._bucket, Key=f"{self._prefix(folder)}/{key}", Body=content)

    def drop_files(self, folder: Path) -> None:
        client = self._open_client()
        for key, _ in self._list_objects(client, folder):
            client.delete_object(Bucket=self._bucket, Key=f"{self._prefix(folder)}/{key}")

    def _prefix(self, folder: Path) -> str:
        return f"{folder.parent.name}-{folder.name}"

    def _open_client(self) -> Any:
        import boto3

        settings = self._server.settings
        return boto3.client(
            "s3",
            endpoint_url=self._server.store_url,
            region_name="us-east-1",
            aws_access_key_id=settings.access_key,
            aws_secret_access_key=settings.secret_key,
        )

    def _list_objects(self, client: Any, folder: Path) -> Iterator[tuple[str, str]]:
        prefix = f"{self._prefix(folder)}/"
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix):
            for entry in page.get("Contents", ()):
                if not entry["Key"].endswith("/"):
                    yield entry["Key"].removeprefix(prefix), entry["ETag"].strip('"')


def _list_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _digest(path: Path) -> str:
    """Return the tag that S3 gives to a file that is written at once."""
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
