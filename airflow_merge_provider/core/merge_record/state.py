"""The state between runs: open bins, their files, and the configuration that grouped them.

Stored locations follow a folder that was moved.

Source: docs/semantics/merge_record.md, State and lease.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.merge_record.bins import Bin
from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.flowfile import FlowFile

FORMAT = 2
STATE_PREFIX = "state"
_STATE_FILE = re.compile(r"state-(\d{12})\.json")
# The key of the folders of a run in what its state tells about it.
FOLDERS = "folders"
# The number of runs that can be undone: the states before them are not deleted.
UNDOABLE_RUNS = 10
_GROUPING = (
    "merge_strategy", "correlation_attribute_name", "reader", "writer", "attributes", "attribute_sources",
    "partition_by", "schema_identity", "schema_merge",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class State:
    """Everything that a run needs from the runs before.

    ``generation`` grows by one with every run that changes the state. ``schemas`` holds each schema of an
    open bin once, by its key. ``done`` are files that stay in place although they have been merged, by their
    version. ``partial`` are the merges that contain parts of a file whose other parts still wait.
    ``returned`` are such parts whose merge was withdrawn: they are offered again, before new files.
    ``learned`` is the number of records and bytes that each writer has written.
    """

    generation: int = 0
    fingerprint: str = ""
    next_seq: int = 1
    bins: tuple[Bin, ...] = ()
    schemas: Mapping[str, Any] = field(default_factory=dict)
    done: Mapping[str, str] = field(default_factory=dict)
    partial: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    learned: Mapping[str, Any] = field(default_factory=dict)
    returned: tuple[FlowFile, ...] = ()

    @property
    def sources(self) -> list[FlowFile]:
        """The waiting FlowFiles: those of open bins and those that are offered again."""
        return [*(source for bin_ in self.bins for source in bin_.sources), *self.returned]

    @property
    def waiting(self) -> dict[str, str]:
        """The versions of the files that wait, by their URI."""
        return {source.uri: source.version for source in self.sources}

    def as_json(self) -> dict[str, Any]:
        """Return the state in its stored form."""
        return {
            "format": FORMAT,
            "generation": self.generation,
            "fingerprint": self.fingerprint,
            "next_bin": self.next_seq,
            "schemas": dict(self.schemas),
            "done": dict(self.done),
            "partial": {uri: list(ids) for uri, ids in self.partial.items()},
            "learned": dict(self.learned),
            "returned": [source.as_json() for source in self.returned],
            "bins": [_bin_json(bin_) for bin_ in self.bins],
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> State:
        """Parse the form that ``as_json`` returns.

        :raises DataError: when another version of this package wrote it, in another format.
        """
        if raw.get("format") != FORMAT:
            raise DataError(
                f"the state has format {raw.get('format')!r}, this package version supports only {FORMAT}: "
                "use the package version that wrote it"
            )
        return cls(
            generation=raw["generation"],
            fingerprint=raw["fingerprint"],
            next_seq=raw["next_bin"],
            bins=tuple(_parse_bin(bin_) for bin_ in raw["bins"]),
            schemas=raw["schemas"],
            done=raw["done"],
            partial={uri: tuple(ids) for uri, ids in raw["partial"].items()},
            learned=raw["learned"],
            returned=tuple(FlowFile.from_json(source) for source in raw["returned"]),
        )


def plan_file(generation: int) -> str:
    """Return the file name of the plan that leads to a generation of the state."""
    return f"plan-{generation}.json"


def state_file(generation: int) -> str:
    """Return the file name of a state; each state has its own, so that no run overwrites a later state."""
    return f"state-{generation:012d}.json"


def find_state_file(names: Iterable[str]) -> str | None:
    """Return the file of the last state among the names of a folder; None if there is none."""
    return max(filter(_STATE_FILE.fullmatch, names), default=None)


def list_old_states(names: Iterable[str], generation: int) -> list[str]:
    """Return the state files that are obsolete once a state is written: those that no undo needs."""
    all_names = list(names)
    if state_file(generation) not in all_names:
        return []
    oldest = state_file(max(0, generation - UNDOABLE_RUNS))
    return [name for name in all_names if _STATE_FILE.fullmatch(name) and name < oldest]


def list_generations(names: Iterable[str]) -> list[int]:
    """Return the generations whose states are among the names of a folder, newest first."""
    matches = (_STATE_FILE.fullmatch(name) for name in names)
    return sorted((int(match[1]) for match in matches if match), reverse=True)


def compute_fingerprint(config: MergeRecordConfig) -> str:
    """Return a hash of the settings that determine how files are grouped; thresholds are not included."""
    grouping = config.model_dump(mode="json", include=set(_GROUPING))
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


def _bin_json(bin_: Bin) -> dict[str, Any]:
    label, expected = " / ".join(part for part in bin_.group if part), bin_.expected
    return {
        "id": bin_.id,
        "seq": bin_.seq,
        "group": list(bin_.group),
        "label": label,
        "created_at": bin_.created_at,
        "expected": expected,
        "sources": [source.as_json() for source in bin_.sources],
    }


def _parse_bin(raw: Mapping[str, Any]) -> Bin:
    bin_ = Bin(raw["seq"], tuple(raw["group"]), raw["created_at"], expected=raw["expected"])
    for source in raw["sources"]:
        bin_.add_flowfile(FlowFile.from_json(source))
    return bin_


LOCATION = "location"
# Values that users define are not changed.
_KEPT = "attributes"


def find_roots(old_path: str, new_path: str) -> tuple[str, str]:
    """Return the old and the new root of a move, given a folder below them before and after the move.

    >>> find_roots("/old/lake/state", "/mnt/lake/state")
    ('/old', '/mnt')
    """
    while True:
        old_parent, _, old_name = old_path.rpartition("/")
        new_parent, _, new_name = new_path.rpartition("/")
        if old_name != new_name or not old_parent or not new_parent:
            return old_path, new_path
        old_path, new_path = old_parent, new_parent


def relocate_files(raw: Any, old_folder: str, new_folder: str) -> Any:
    """Return JSON in which the locations of files below one folder are replaced by locations below another.

    >>> relocate_files({"uri": "/old/in/a", "done": {"/old/in/b": "1"}, "key": "/older"}, "/old", "/mnt")
    {'uri': '/mnt/in/a', 'done': {'/mnt/in/b': '1'}, 'key': '/older'}
    """
    if isinstance(raw, str):
        is_inside = raw == old_folder or raw.startswith(f"{old_folder}/")
        return new_folder + raw[len(old_folder) :] if is_inside else raw
    if isinstance(raw, list):
        return [relocate_files(item, old_folder, new_folder) for item in raw]
    if isinstance(raw, dict):
        return {
            relocate_files(name, old_folder, new_folder): value
            if name == _KEPT
            else relocate_files(value, old_folder, new_folder)
            for name, value in raw.items()
        }
    return raw
