"""The files of a landing folder that wait to be merged, and whether a run has work to do.

Source: docs/semantics/merge_record.md, Landing folder; Age and expiry.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from stat import S_ISLNK
from typing import Any

from airflow_merge_provider.core.dataset import is_skipped_by_spark
from airflow_merge_provider.core.errors import Problem, did_you_mean
from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.flowfile import list_placeholders
from airflow_merge_provider.core.merge_record.plan import NewFiles, plan_merges
from airflow_merge_provider.core.merge_record.schema import Field
from airflow_merge_provider.core.merge_record.state import State

SIDECAR = ".attributes.json"
# The maximum bytes of a file name, on Linux and on most other systems.
LONGEST_NAME = 255
_TEMPORARY = (".tmp", "._COPYING_", ".crc")
# The keys under which fsspec file systems return the modification time of a file.
_TIME_FIELDS = ("mtime", "LastModified", "last_modified", "updated", "created")
_MICROS_PER_SECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a listing; ``modified`` is in microseconds since 1970 UTC.

    ``version`` changes whenever the content does: it is the digest or the tag of the store, or size and time.
    Some stores change the tag without the content, and for each copy. ``is_link`` is True if the name is
    a symbolic link, which is not followed.
    """

    name: str
    size: int
    modified: int
    version: str
    is_link: bool = False

    @classmethod
    def from_stat(cls, name: str, stat: Mapping[str, Any]) -> FileEntry:
        """Build the entry from fsspec's metadata; a digest of the content is the most reliable version."""
        modified = next((stat[key] for key in _TIME_FIELDS if stat.get(key)), 0)
        seconds = modified.timestamp() if hasattr(modified, "timestamp") else float(modified)
        size = int(stat.get("size") or 0)
        tag = str(stat.get("ETag") or stat.get("etag") or f"{size}-{seconds!r}").strip('"')
        # Google Cloud Storage has a digest of most files, and Azure of small ones.
        md5 = stat.get("md5Hash") or (stat.get("content_settings") or {}).get("content_md5")
        # Azure does not update the digest of a file that grows.
        version = f"{size}-{md5 if isinstance(md5, str) else md5.hex()}" if md5 else tag
        return cls(name, size, int(seconds * _MICROS_PER_SECOND), version)

    @classmethod
    def of_file(cls, name: str, stat: os.stat_result) -> FileEntry:
        """Build the entry from local file metadata; for a link, the metadata of the link, not its target."""
        entry = cls.from_stat(name, {"size": stat.st_size, "mtime": stat.st_mtime})
        return replace(entry, is_link=True) if S_ISLNK(stat.st_mode) else entry


def walk_folder(location: str, prefix: str = "") -> Iterator[FileEntry]:
    """Yield the files and links below a local folder; nothing if there is no folder.

    Links are not followed: they may lead out of the folder, or form a cycle.
    """
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(location) as entries:
        for entry in entries:
            name = f"{prefix}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                yield from walk_folder(entry.path, f"{name}/")
            elif entry.is_file(follow_symlinks=False) or entry.is_symlink():
                yield from _stat_entry(entry, name)


def _stat_entry(entry: os.DirEntry[str], name: str) -> Iterator[FileEntry]:
    with suppress(FileNotFoundError):
        yield FileEntry.of_file(name, entry.stat(follow_symlinks=False))


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of the source folder: all of them by URI, and those that have settled.

    ``sidecars`` holds the versions of sidecars by their names. ``other_files`` are names that are not
    files to merge, but that a reader of the whole folder would read; ``links`` are those of them that are
    symbolic links.
    """

    files: Mapping[str, FileEntry]
    settled: Mapping[str, FileEntry]
    sidecars: Mapping[str, str]
    unsettled: int
    other_files: frozenset[str]
    links: frozenset[str]

    def find_new_files(self, state: State) -> dict[str, FileEntry]:
        """Return the settled files that no run has read in their current version, by URI."""
        known_versions = {**state.done, **state.waiting}
        return {
            uri: entry
            for uri, entry in self.settled.items()
            if uri not in known_versions or entry.version != known_versions[uri]
        }

    def find_changed(self, versions: Mapping[str, str]) -> list[str]:
        """Return the URIs of files that have another version now, or no longer exist."""
        return [
            uri
            for uri, version in versions.items()
            if uri not in self.files or self.files[uri].version != version
        ]


def sort_listing(entries: Iterable[FileEntry], location: str, config: MergeRecordConfig, now: int) -> Listing:
    """Classify a listing: skip temporary and hidden names and links, and let young files wait."""
    all_entries = list(entries)
    visible_entries = [entry for entry in all_entries if not entry.is_link and not _is_hidden(entry.name)]
    sidecars = {entry.name: entry.version for entry in visible_entries if entry.name.endswith(SIDECAR)}
    files = {f"{location}/{entry.name}": entry for entry in visible_entries if entry.name not in sidecars}
    settle = config.settle_time.microseconds if config.settle_time else 0
    names = {entry.name for entry in files.values()}
    return Listing(
        files=files,
        settled={uri: entry for uri, entry in files.items() if not settle or now - entry.modified >= settle},
        sidecars=sidecars,
        unsettled=sum(bool(settle) and now - entry.modified < settle for entry in files.values()),
        other_files=frozenset(
            entry.name
            for entry in all_entries
            if entry.name not in names and not is_skipped_by_spark(entry.name)
        ),
        links=frozenset(entry.name for entry in all_entries if entry.is_link and not _is_hidden(entry.name)),
    )


def find_reason_to_run(state: State, listing: Listing, now: int, config: MergeRecordConfig) -> str | None:
    """Return why a run has work to do (new files, changed files, bins that expire), or None."""
    if new_files := listing.find_new_files(state):
        return f"{len(new_files)} new files"
    if changed_uris := listing.find_changed(state.waiting):
        return f"{len(changed_uris)} files of open bins have changed or no longer exist"
    reasons = plan_merges(state, NewFiles(), now, config).reasons
    return ", ".join(f"{count} bins are due ({code})" for code, count in reasons.items()) or None


def list_unknown_names(arrivals: NewFiles, config: MergeRecordConfig) -> list[str]:
    """Return a warning for each attribute or field that an option names and that no new file has."""
    flowfiles = [file for file in arrivals.flowfiles if not file.unreadable]
    if not flowfiles:
        return []
    attributes = {name for file in flowfiles for name in file.attributes}
    named = {
        "correlation_attribute_name": config.correlation_attribute_name,
        "arrival_order": config.arrival_order.partition("attribute:")[2],
        **{
            f"attributes.{attribute}": name
            for attribute, template in (config.attributes or {}).items()
            for name in list_placeholders(template)
        },
    }
    problems = [
        Problem(option, "unknown", f"no new file has an attribute {name!r}", did_you_mean(name, attributes))
        for option, name in named.items()
        if name and name not in attributes
    ]
    schemas = [
        schema for key, schema in arrivals.schemas.items() if key in {file.schema for file in flowfiles}
    ]
    fields = sorted({name for schema in schemas for name in schema.names})
    problems += [
        Problem(
            f"partition_by.{attribute}",
            "unknown",
            f"no new file has a field {path!r}",
            did_you_mean(path, fields),
        )
        for attribute, path in (config.partition_by or {}).items()
        if schemas and not any(_has_field(schema.fields, path) for schema in schemas)
    ]
    return [str(problem) for problem in problems]


def _has_field(fields: Iterable[Field], path: str) -> bool:
    """Return whether records have a field, by its name or dotted path."""
    first, _, nested_path = path.partition(".")
    inner = [field["type"] for field in fields if field["name"] == first and nested_path]
    kinds = [kind for item in inner for kind in (item if isinstance(item, list) else [item])]
    return any(field["name"] == path for field in fields) or any(
        _has_field(kind["fields"], nested_path)
        for kind in kinds
        if isinstance(kind, Mapping) and "fields" in kind
    )


def _is_hidden(name: str) -> bool:
    return name.endswith(_TEMPORARY) or any(part.startswith((".", "_")) for part in name.split("/"))
