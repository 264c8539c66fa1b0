"""The state between runs: open bins, their files, and the configuration that grouped them.

Source: docs/semantics/merge_record.md, State and lease.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.merge_record.bins import Bin
from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.flowfile import FlowFile
from airflow_merge_provider.core.merge_record.schema import Schema
from airflow_merge_provider.core.merge_record.stored import Stored

FORMAT = 2
_GROUPING = (
    "merge_strategy", "correlation_attribute_name", "reader", "writer", "attributes", "attribute_sources",
    "partition_by", "schema_identity", "schema_merge",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class WrittenSizes(Stored):
    """The sums of records and bytes that merges have written, and a hash of their writer."""

    writer: str
    records: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class State(Stored):
    """Everything that a run needs from the runs before.

    ``generation`` grows by one with every run that changes the state. ``schemas`` holds each schema of an
    open bin once, by its key. ``done`` are files that stay in place although they have been merged, by their
    version. ``partial`` are the merges that contain parts of a file whose other parts still wait.
    ``returned`` are such parts whose merge was withdrawn: they are offered again, before new files.
    ``learned`` is the number of records and bytes that the current writer has written.
    """

    generation: int = 0
    fingerprint: str = ""
    next_seq: int = 1
    bins: tuple[Bin, ...] = ()
    schemas: Mapping[str, Schema] = field(default_factory=dict)
    done: Mapping[str, str] = field(default_factory=dict)
    partial: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    learned: WrittenSizes | None = None
    returned: tuple[FlowFile, ...] = ()

    @property
    def sources(self) -> list[FlowFile]:
        """The waiting FlowFiles: those of open bins and those that are offered again."""
        return [*(source for bin_ in self.bins for source in bin_.sources), *self.returned]

    @property
    def waiting(self) -> dict[str, str]:
        """The versions of the files that wait, by their URI."""
        return {source.uri: source.version for source in self.sources}

    def is_same(self, other: State) -> bool:
        """Return whether another state differs at most in its generation and fingerprint."""
        # A new fingerprint has no effect if there are no bins; existing ones are dissolved, a difference.
        return self == replace(other, generation=self.generation, fingerprint=self.fingerprint)

    def as_json(self) -> dict[str, Any]:
        """Return the state in its stored form."""
        written = Stored.as_json(self)
        learned = written.pop("learned") or {}
        return {"format": FORMAT, "next_bin": written.pop("next_seq"), "learned": learned, **written}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """Parse the stored form.

        :raises DataError: when another version of this package wrote it, in another format.
        """
        if raw.get("format") != FORMAT:
            raise DataError(
                f"the state has format {raw.get('format')!r}, this package version supports only {FORMAT}: "
                "use the package version that wrote it"
            )
        return super(State, cls).from_json(
            {**raw, "next_seq": raw["next_bin"], "learned": raw["learned"] or None}
        )


def compute_fingerprint(config: MergeRecordConfig) -> str:
    """Return a hash of the settings that determine how files are grouped; thresholds are not included."""
    raw = config.as_json()
    grouping = {name: raw[name] for name in _GROUPING}
    return hashlib.sha256(json.dumps(grouping, sort_keys=True).encode()).hexdigest()[:16]


def dissolve_bins(state: State) -> State:
    """Return the state without its bins: their files are in the queue again.

    The bins of a file that has been merged in part stay open.
    """
    bins = tuple(bin_ for bin_ in state.bins if any(source.uri in state.partial for source in bin_.sources))
    return replace(state, bins=bins)


def remove_files(state: State, uris: Iterable[str]) -> State:
    """Return the state without these files, which changed or vanished, as if they had never been binned."""
    removed_uris = set(uris)
    if not removed_uris:
        return state
    bins = (
        bin_.remove_flowfiles(source.uuid for source in bin_.sources if source.uri in removed_uris)
        for bin_ in state.bins
    )
    returned = tuple(source for source in state.returned if source.uri not in removed_uris)
    return replace(state, bins=tuple(bin_ for bin_ in bins if bin_.sources), returned=returned)


def update_files(state: State, update: Callable[[FlowFile], FlowFile]) -> State:
    """Return the state with other locations and versions of the files that wait."""
    partial = dict(state.partial)
    for source in state.sources:
        if source.uri in partial:
            partial[update(source).uri] = partial.pop(source.uri)
    bins = tuple(replace(bin_, sources=[update(source) for source in bin_.sources]) for bin_ in state.bins)
    return replace(state, bins=bins, partial=partial, returned=tuple(map(update, state.returned)))
