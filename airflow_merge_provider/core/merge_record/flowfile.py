"""The metadata of a file that waits to be merged, before any of its records is moved.

Source: docs/semantics/merge_record.md, FlowFiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid5

NAMESPACE = UUID("6f0d4d3e-5d5b-5c55-9d1f-0d6f6d657267")


@dataclass(frozen=True, slots=True)
class FlowFile:
    """One file, or the records of one file that share the values of ``partition_by``.

    ``arrival`` is in microseconds since 1970 UTC. ``schema`` is the key of a schema that is stored once.
    ``unreadable`` and ``malformed`` state why the file as a whole, or one of its records, cannot be read;
    ``rejected`` states which expectations its records do not meet, ``lost`` which of its values its merged
    file cannot hold. The content of ``unchecked`` FlowFiles is
    only read when their bin is merged; their counts come from other sources. ``version`` is the version of
    the file, ``sidecar`` the version of its sidecar, if there was one on arrival.
    """

    uri: str
    uuid: str
    arrival: int
    records: int
    bytes: int
    schema: str
    version: str = ""
    size: int = 0
    attributes: Mapping[str, str] = field(default_factory=dict)
    part: str | None = None
    unreadable: str | None = None
    malformed: str | None = None
    rejected: str | None = None
    lost: str | None = None
    unchecked: bool | None = None
    sidecar: str | None = None

    @property
    def name(self) -> str:
        """The name without its folder."""
        return self.uri.rpartition("/")[2]

    def as_json(self) -> dict[str, Any]:
        """Return the FlowFile in its stored form, without missing values."""
        pairs = ((name, getattr(self, name)) for name in self.__slots__)
        return {name: value for name, value in pairs if value is not None}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> FlowFile:
        """Parse the form that ``as_json`` returns."""
        return cls(**raw)


def flowfile_uuid(uri: str, version: str, part: str | None = None) -> str:
    """Return the ID of a file's content: equal in every attempt, different once the file changes."""
    text = "\n".join((uri, version, part or ""))
    # The name of a file may not be valid UTF-8.
    return str(uuid5(NAMESPACE, text.encode(errors="backslashreplace").decode()))


def merge_id(bin_id: str, sources: tuple[FlowFile, ...], generation: int) -> str:
    """Return the ID of an ended bin in a plan; no other plan uses the same ID, even for the same files."""
    parts = (bin_id, str(generation), *(source.uuid for source in sources))
    return str(uuid5(NAMESPACE, "\n".join(parts)))
