"""Which files wait in the source folder, in which order, and with which attributes.

Source: merge_record spec §11.1 and §11.3.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_merge_provider.core.merge_record import attributes as rules
from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.jobs.merge_record.storage import Entry, Storage

SIDECAR = ".attributes.json"
_TEMPORARY = (".tmp", "._COPYING_", ".crc")
_MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True)
class Waiting:
    """A file of the source folder with its attributes; ``wrong`` says why its sidecar cannot be read."""

    entry: Entry
    uri: str
    attributes: Mapping[str, str]
    wrong: str | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of the source folder: all of them by URI with their version, and those that have settled."""

    versions: Mapping[str, str]
    settled: tuple[Entry, ...]
    sidecars: frozenset[str]
    unsettled: int


def listing(source: Storage, config: MergeRecordConfig, now: int) -> Listing:
    """List what is there; temporary and hidden names are no files, and young files wait."""
    entries = [entry for entry in source.files() if not _is_hidden(entry.name)]
    sidecars = frozenset(entry.name for entry in entries if entry.name.endswith(SIDECAR))
    files = [entry for entry in entries if entry.name not in sidecars]
    settle = config.settle_time.microseconds if config.settle_time else 0
    settled = tuple(entry for entry in files if now - entry.modified >= settle or not settle)
    versions = {source.uri(entry.name): entry.version for entry in files}
    return Listing(versions, settled, sidecars, len(files) - len(settled))


def waiting(
    source: Storage, entries: list[Entry], sidecars: frozenset[str], config: MergeRecordConfig
) -> list[Waiting]:
    """Give files their attributes and put them into queue order."""
    files = [_with_attributes(source, entry, sidecars, config) for entry in entries]
    return sorted(files, key=lambda each: _order(each, config.arrival_order))


def _is_hidden(name: str) -> bool:
    return name.endswith(_TEMPORARY) or any(part.startswith((".", "_")) for part in name.split("/"))


def _with_attributes(
    source: Storage, entry: Entry, sidecars: frozenset[str], config: MergeRecordConfig
) -> Waiting:
    folder, _, name = entry.name.rpartition("/")
    uri = source.uri(entry.name)
    found: dict[str, str] = {"filename": name, "path": f"{folder}/" if folder else "./"}
    wrong = None
    for kind in config.attribute_sources:
        if kind == "metadata":
            found |= _metadata(uri, entry)
        elif kind == "path":
            found |= rules.of_path(entry.name)
        elif f"{entry.name}{SIDECAR}" in sidecars:
            told = _sidecar(source.read(f"{entry.name}{SIDECAR}"))
            wrong = None if told is not None else f"{entry.name}{SIDECAR} is no JSON object of texts"
            found |= told or {}
    found |= rules.computed(config.attributes or {}, found)
    return Waiting(entry, uri, found, wrong)


def _metadata(uri: str, entry: Entry) -> dict[str, str]:
    modified = datetime.fromtimestamp(entry.modified / _MICROSECONDS, tz=UTC)
    return {
        "absolute.path": f"{uri.rpartition('/')[0]}/",
        "file.size": str(entry.size),
        "file.lastModifiedTime": modified.strftime("%Y-%m-%dT%H:%M:%S+0000"),
    }


def _sidecar(content: bytes | None) -> dict[str, str] | None:
    """Read a flat object; numbers and booleans become texts, a nested value makes it wrong."""
    try:
        raw = json.loads(content or b"")
    except ValueError:
        return None
    if not isinstance(raw, dict) or any(isinstance(value, dict | list) for value in raw.values()):
        return None
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in raw.items()}


def _order(file: Waiting, order: str) -> tuple[Any, ...]:
    """Give the place in the queue: by time, path or a named attribute, numbers before texts, none last."""
    if order == "path":
        return (file.entry.name,)
    if order == "modified":
        return file.entry.modified, file.entry.name
    text = file.attributes.get(order.removeprefix("attribute:"))
    try:
        return 0, float(text or ""), "", file.entry.name
    except ValueError:
        return (2 if text is None else 1), 0.0, text or "", file.entry.name
