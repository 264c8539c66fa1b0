"""The metadata of a file that waits to be merged, and the attributes that a merged file inherits.

Source: docs/semantics/merge_record.md, FlowFiles.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar
from urllib.parse import unquote
from uuid import UUID, uuid5

from airflow_merge_provider.core.merge_record.stored import Stored

NAMESPACE = UUID("6f0d4d3e-5d5b-5c55-9d1f-0d6f6d657267")


@dataclass(frozen=True, slots=True)
class FlowFile(Stored):
    """One file, or the records of one file that share the values of ``partition_by``.

    ``arrival`` is in microseconds since 1970 UTC. ``schema`` is the key of a schema that is stored once.
    ``unreadable`` and ``malformed`` state why the file as a whole, or one of its records, cannot be read;
    ``rejected`` states which expectations its records do not meet, ``lost`` which of its values its merged
    file cannot hold. The content of ``unchecked`` FlowFiles is
    only read when their bin is merged; their counts come from other sources. ``version`` is the version of
    the file, ``sidecar`` the version of its sidecar, if there was one on arrival.
    """

    optional: ClassVar[tuple[str, ...]] = (
        "part", "unreadable", "malformed", "rejected", "lost", "unchecked", "sidecar",
    )  # fmt: skip
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


def flowfile_uuid(uri: str, version: str, part: str | None = None) -> str:
    """Return the ID of a file's content: equal in every attempt, different once the file changes."""
    text = "\n".join((uri, version, part or ""))
    # The name of a file may not be valid UTF-8.
    return str(uuid5(NAMESPACE, text.encode(errors="backslashreplace").decode()))


def merge_id(bin_id: str, sources: tuple[FlowFile, ...], generation: int) -> str:
    """Return the ID of an ended bin in a plan; no other plan uses the same ID, even for the same files."""
    parts = (bin_id, str(generation), *(source.uuid for source in sources))
    return str(uuid5(NAMESPACE, "\n".join(parts)))


COMMON = "Keep Only Common Attributes"
ALL_UNIQUE = "Keep All Unique Attributes"
_PLACEHOLDER = re.compile(r"\$\{([^{}]+)\}")

Attributes = Mapping[str, str]


def inherit_attributes(sources: Iterable[Attributes], strategy: str) -> dict[str, str]:
    """Return the attributes that a merged FlowFile inherits from the sources of a bin; ``uuid`` never.

    Keep Only Common keeps the attributes that every source has with the same value. Keep All Unique keeps the
    attributes that no two sources have with different values.
    """
    first_values: dict[str, str] = {}
    in_conflict: set[str] = {"uuid"}
    common: set[str] | None = None
    for attributes in sources:
        common = set(attributes) if common is None else common & attributes.keys()
        for name, value in attributes.items():
            if first_values.setdefault(name, value) != value:
                in_conflict.add(name)
    names = set(first_values) if strategy == ALL_UNIQUE else common or set()
    return {name: value for name, value in first_values.items() if name in names - in_conflict}


def of_path(relative: str) -> dict[str, str]:
    """Parse the ``name=value`` folders of a path.

    >>> of_path("store=Main%20St/2026/day=1/a.json")
    {'store': 'Main St', 'day': '1'}
    """
    folders = [folder.partition("=") for folder in relative.split("/")[:-1]]
    return {unquote(name): unquote(value) for name, sign, value in folders if name and sign}


def list_placeholders(template: str) -> list[str]:
    """Return the names of the attributes that a template has."""
    return [match[1].strip() for match in _PLACEHOLDER.finditer(template)]


def compute_attributes(templates: Mapping[str, str], attributes: Attributes) -> dict[str, str]:
    """Evaluate templates such as ``abc=${abc},xyz=${xyz}`` over attributes; a missing one is empty.

    >>> compute_attributes({"both": "${a}-${b}"}, {"a": "1"})
    {'both': '1-'}
    """
    return {
        name: _PLACEHOLDER.sub(lambda match: attributes.get(match[1].strip(), ""), template)
        for name, template in templates.items()
    }
