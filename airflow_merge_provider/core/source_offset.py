"""Source offsets: how far a run has read its sources, and which sources a later run continues.

A Delta table is identified by its ID and by the commit at the offset. So reading continues if a source is
configured with another path or was moved, and starts again if another table is in the same place. Plain files
have no ID: they are identified by their normalized location.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_merge_provider.core.dataset import split_location

_SOURCE_VERSIONS, _TABLES, _COMMIT_IDS = "sources", "tables", "commits"

# What the commit of a run carries for the next one: the keys of all runs, and those of its capability.
RunState = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """The version up to which a source has been read; ``commit_id`` is the digest of that version's commit.

    ``table_id`` and ``commit_id`` are None for plain files.
    """

    uri: str
    version: int | None
    table_id: str | None = None
    commit_id: str | None = None

    def is_same_read(self, other: SourceOffset) -> bool:
        """Return whether both are the same version of the same source."""
        ids = (self.table_id, other.table_id)
        if None in ids:
            is_same_source = ids == (None, None) and normalize_uri(self.uri) == normalize_uri(other.uri)
        else:
            is_same_source = ids[0] == ids[1]
        if not is_same_source or self.version != other.version:
            return False
        return None in (self.commit_id, other.commit_id) or self.commit_id == other.commit_id


def normalize_uri(uri: str) -> str:
    """Return one spelling for all spellings of a location: no ``..``, no ``file:``, one scheme per store.

    Symbolic links of this machine are resolved.

    >>> normalize_uri("s3a://lake/x/../customers/")
    's3://lake/customers'
    """
    location = split_location(uri)
    if location is None:
        return uri
    store, authority, path = location
    return os.path.realpath(path) if store == "file" else f"{store}://{authority}{path.rstrip('/')}"


def write_offsets(offsets: Iterable[SourceOffset]) -> RunState:
    """Return offsets as the part of a run's state that ``read_offsets`` reads."""
    entries = list(offsets)
    return {
        _SOURCE_VERSIONS: {offset.uri: offset.version for offset in entries},
        _TABLES: {offset.uri: offset.table_id for offset in entries if offset.table_id is not None},
        _COMMIT_IDS: {offset.uri: offset.commit_id for offset in entries if offset.commit_id is not None},
    }


def read_offsets(state: RunState) -> list[SourceOffset]:
    """Return the offsets in a run's state."""
    tables, commits = state.get(_TABLES) or {}, state.get(_COMMIT_IDS) or {}
    return [
        SourceOffset(uri, version, tables.get(uri), commits.get(uri))
        for uri, version in (state.get(_SOURCE_VERSIONS) or {}).items()
    ]


def find_offset(offsets: Iterable[SourceOffset], current: SourceOffset) -> SourceOffset | None:
    """Return the offset up to which a source has been read; None if it has not been read.

    If several locations hold the same table (copies), only the source's own location counts.
    """
    location = normalize_uri(current.uri)
    matches = [offset for offset in offsets if _is_same_source(offset, current, location)]
    return next(
        (offset for offset in matches if normalize_uri(offset.uri) == location),
        matches[0] if len(matches) == 1 else None,
    )


def find_replaced(offsets: Iterable[SourceOffset], current: SourceOffset) -> SourceOffset | None:
    """Return the offset of another table that was at the location of a source; None if there was none."""
    location = normalize_uri(current.uri)
    return next(
        (
            offset
            for offset in offsets
            if normalize_uri(offset.uri) == location and not _is_same_source(offset, current, location)
        ),
        None,
    )


def is_same_reads(state: RunState, current: Iterable[SourceOffset]) -> bool:
    """Return whether a run has read exactly these versions of exactly these sources, each at least once."""
    previous_offsets, offsets = read_offsets(state), list({offset.uri: offset for offset in current}.values())
    matches = [find_offset(previous_offsets, offset) for offset in offsets]
    if len(previous_offsets) != len(offsets):
        return False
    return all(
        previous is not None and previous.is_same_read(offset)
        for previous, offset in zip(matches, offsets, strict=True)
    )


def _is_same_source(offset: SourceOffset, current: SourceOffset, location: str) -> bool:
    if offset.table_id is None or current.table_id is None:
        # Plain files, or a dataset that does not exist (any more).
        return normalize_uri(offset.uri) == location
    return offset.table_id == current.table_id
