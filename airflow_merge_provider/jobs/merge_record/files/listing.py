"""The queue of new files in the source folder, with their order and attributes.

Source: docs/semantics/merge_record.md, Landing folder; Attributes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_record.config import MISSING_SOURCE, MergeRecordConfig
from airflow_merge_provider.core.merge_record.flowfile import compute_attributes, flowfile_uuid, of_path
from airflow_merge_provider.core.merge_record.landing import LONGEST_NAME, SIDECAR, FileEntry, Listing
from airflow_merge_provider.jobs.merge_record.files.storage import Storage

_MICROS_PER_SECOND = 1_000_000
_SIDECAR_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class QueuedFile:
    """A file of the source folder with its attributes, and the version of its sidecar.

    ``wrong`` is the reason if its name or its sidecar is invalid, so that the file fails.
    """

    entry: FileEntry
    uri: str
    attributes: Mapping[str, str]
    wrong: str | None = None
    sidecar: str | None = None

    @property
    def uuid(self) -> str:
        """The ID of the file; the version alone is that of any file with this name and this content."""
        return flowfile_uuid(self.uri, f"{self.entry.version}@{self.entry.modified}")


@dataclass(frozen=True, slots=True)
class FileQueue:
    """The new files in queue order; ``is_whole`` if Spark would read no other files in the source folder."""

    files: tuple[QueuedFile, ...]
    is_whole: bool


def check_source(source: Storage, config: MergeRecordConfig) -> list[str]:
    """Return a warning if the source folder does not exist.

    :raises DataError: if the configuration says that the run fails then.
    """
    if not source.is_missing():
        return []
    message = f"{source.location} does not exist"
    problem = Problem("source", "missing", message, "check the path, or create it")
    if MISSING_SOURCE in config.fail_on:
        raise DataError.from_problems([problem])
    return [str(problem)]


def build_queue(
    source: Storage, listing: Listing, new_entries: Iterable[FileEntry], config: MergeRecordConfig
) -> FileQueue:
    """Read the attributes of new files and return the files in queue order."""
    entries = list(new_entries)
    sidecar_attributes = (
        _read_sidecars(source, entries, listing.sidecars) if "sidecar" in config.attribute_sources else {}
    )
    versions = listing.sidecars
    files = [
        replace(
            _with_attributes(source, entry, sidecar_attributes, config),
            sidecar=versions.get(f"{entry.name}{SIDECAR}"),
        )
        for entry in entries
    ]
    files.sort(key=lambda file: _build_order(file, config.arrival_order))
    return FileQueue(tuple(files), len(files) == len(listing.files) and not listing.other_files)


def _read_sidecars(
    source: Storage, entries: list[FileEntry], sidecars: Mapping[str, str]
) -> dict[str, dict[str, str] | None]:
    """Return the attributes from the sidecars of files, by file name; None if a sidecar is invalid."""
    names = [entry.name for entry in entries if f"{entry.name}{SIDECAR}" in sidecars]
    contents = source.for_each(lambda name: source.read_file(f"{name}{SIDECAR}"), names)
    return {name: _parse_sidecar(content) for name, content in zip(names, contents, strict=True)}


def _with_attributes(
    source: Storage,
    entry: FileEntry,
    sidecars: Mapping[str, dict[str, str] | None],
    config: MergeRecordConfig,
) -> QueuedFile:
    folder, _, name = entry.name.rpartition("/")
    uri = source.build_uri(entry.name)
    attributes: dict[str, str] = {"filename": name, "path": f"{folder}/" if folder else "./"}
    problem = None
    for kind in config.attribute_sources:
        if kind == "metadata":
            attributes |= _build_metadata(uri, entry)
        elif kind == "path":
            attributes |= of_path(entry.name)
        elif entry.name in sidecars:
            sidecar = sidecars[entry.name]
            problem = (
                None
                if sidecar is not None
                else f"{name}{SIDECAR} is not a flat JSON object of at most {_SIDECAR_MAX_BYTES >> 20} MiB "
                "(correct it)"
            )
            attributes |= sidecar or {}
    attributes |= compute_attributes(config.attributes or {}, attributes)
    return QueuedFile(entry, uri, attributes, _find_wrong_name(name) or problem)


def _find_wrong_name(name: str) -> str | None:
    """Return why a file with this name cannot be merged, or None."""
    if not _is_text(name):
        return "its name is not valid UTF-8 (rename it)"
    if len(name.encode()) + len(SIDECAR) > LONGEST_NAME:
        return (
            f"its name is longer than {LONGEST_NAME - len(SIDECAR)} bytes, which leaves no room "
            f"for {SIDECAR} (rename it)"
        )
    return None


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _build_metadata(uri: str, entry: FileEntry) -> dict[str, str]:
    modified = datetime.fromtimestamp(entry.modified / _MICROS_PER_SECOND, tz=UTC)
    tag = {"s3.etag": entry.version} if uri.startswith(("s3://", "s3a://")) else {}
    return {
        **tag,
        "absolute.path": f"{uri.rpartition('/')[0]}/",
        "file.size": str(entry.size),
        "file.lastModifiedTime": modified.strftime("%Y-%m-%dT%H:%M:%S+0000"),
    }


def _parse_sidecar(content: bytes | None) -> dict[str, str] | None:
    """Parse a flat JSON object, with numbers and booleans as text.

    Return None if the content is invalid, too long, or has nested values.
    """
    if content is None or len(content) > _SIDECAR_MAX_BYTES:
        return None
    try:
        raw = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(raw, dict) or any(isinstance(value, dict | list) for value in raw.values()):
        return None
    attributes = {name: value if isinstance(value, str) else json.dumps(value) for name, value in raw.items()}
    return attributes if all(_is_text(f"{name}{value}") for name, value in attributes.items()) else None


def _build_order(file: QueuedFile, order: str) -> tuple[Any, ...]:
    """Return the sort key of a file in the queue.

    The order is by modification time, path or a named attribute. For an attribute, numbers come before texts,
    and files without it come last.
    """
    if order == "path":
        return (file.entry.name,)
    if order == "modified":
        return file.entry.modified, file.entry.name
    text = file.attributes.get(order.removeprefix("attribute:"))
    if text is None:
        return 2, 0, "", file.entry.name
    try:
        number = Decimal(text)
    except InvalidOperation:
        number = Decimal("NaN")
    return (0, number, "", file.entry.name) if number.is_finite() else (1, 0, text, file.entry.name)
