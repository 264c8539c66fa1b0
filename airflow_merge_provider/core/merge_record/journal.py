"""The files in the state_path of a merge record, as they are stored, and their only reader.

A state says which run has saved it, a manifest which file a merge has become, and the ledger what became of
each file. Stored locations follow a folder that was moved.

Source: docs/semantics/merge_record.md, State and lease.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeVar

from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.merge_record.state import State
from airflow_merge_provider.core.protocol import RunToken
from airflow_merge_provider.core.run.previous_run import RunCommit

STATE_PREFIX = "state"
# The number of runs that can be undone: the states before them are not deleted.
UNDOABLE_RUNS = 10
# The key of the location of the journal, in each of its files.
LOCATION = "location"
_STATE_FILE = re.compile(r"state-(\d{12})\.json")
# The key of the folders of a run in the state of its commit.
_FOLDERS = "folders"
# Values that users define are not changed.
_UNCHANGED = "attributes"
# The URI and the version of a file.
FileKey = tuple[str, str]
_Parsed = TypeVar("_Parsed")


def plan_file(generation: int) -> str:
    """Return the file name of the plan that leads to a generation of the state."""
    return f"plan-{generation}.json"


def state_file(generation: int) -> str:
    """Return the file name of a state; each state has its own, so that no run overwrites a later state."""
    return f"state-{generation:012d}.json"


def ledger_file(generation: int) -> str:
    """Return the name of the ledger of the run that saved a generation of the state."""
    return f"ledger/{generation:012d}.jsonl"


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


@dataclass(frozen=True, slots=True)
class RunFolders:
    """The locations of the folders of a run; ``original`` is None if merged sources are kept or deleted."""

    source: str
    merged: str
    failure: str
    original: str | None
    state_path: str

    def as_state(self) -> dict[str, Any]:
        """Return the part of the state of a commit that holds the folders."""
        return {_FOLDERS: asdict(self)}

    @classmethod
    def from_commit(cls, commit: RunCommit) -> RunFolders | None:
        """Read the folders from the commit of a run; None if it does not record them."""
        folders = commit.state.get(_FOLDERS)
        return cls(**folders) if folders else None


@dataclass(frozen=True, slots=True)
class Manifest:
    """The file that commits a merge, or prevents that it is published if the merge is ``withdrawn``.

    ``version`` is that of the merged file: an undo deletes this file, and no other one with its name.
    """

    merge_id: str
    uri: str | None = None
    records: int = 0
    bytes: int | None = None
    version: str | None = None
    reason: str = ""
    code: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    withdrawn: bool = False
    undone_by: RunToken | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the manifest in its stored form."""
        if not self.withdrawn:
            names = ("merge_id", "uri", "records", "bytes", "version", "reason", "code", "attributes")
            return {**{name: getattr(self, name) for name in names}, "sources": list(self.sources)}
        undone = {} if self.undone_by is None else {"undone_by": self.undone_by.model_dump()}
        return {"merge_id": self.merge_id, "withdrawn": True, "uri": None, "records": 0, "sources": [], **undone}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Manifest:
        """Parse the form that ``as_json`` returns."""
        undone_by = raw.get("undone_by")
        return cls(
            **{
                **raw,
                "sources": tuple(raw["sources"]),
                "undone_by": RunToken(**undone_by) if undone_by else None,
            }
        )


@dataclass(frozen=True, slots=True)
class MovedFile:
    """Where a run has moved a source, the UUID in its sidecar there, and the version of the file there."""

    folder: str
    name: str
    uuid: str
    version: str


@dataclass(frozen=True, slots=True)
class ReturnedCopy:
    """The URI and the versions of a file, and of its sidecar, that an undo has moved back."""

    uri: str
    version: str
    sidecar: str | None

    @property
    def key(self) -> FileKey:
        """The URI and the version that the file has now."""
        return self.uri, self.version


Outcome = Literal["merged", "failed", "lost", "undone"]
_SOURCE_FIELDS = ("uri", "uuid", "records", "part", "version", "size")
_ENDED_FIELDS = ("merge_id", "at", "bin", "code", "reason")
_MERGED_FIELDS = ("uri", "records", "bytes", "size_basis", "bin_age_ms", "threshold", "details", "attributes")
_LINE_FIELDS: Mapping[Outcome, tuple[str, ...]] = {
    "merged": (*_ENDED_FIELDS, *_MERGED_FIELDS),
    "failed": (*_ENDED_FIELDS, "culprit"),
    "lost": ("merge_id", "at"),
}


@dataclass(frozen=True, slots=True)
class LedgerSource:
    """A source of a ledger line; of a file that no longer exists, only the URI is known."""

    uri: str
    uuid: str | None = None
    records: int | None = None
    part: str | None = None
    version: str = ""
    size: int | None = None
    moved: MovedFile | None = None
    returned: ReturnedCopy | None = None

    @property
    def key(self) -> FileKey:
        """The URI and the version that the file had in the run."""
        return self.uri, self.version

    def as_json(self, outcome: Outcome) -> dict[str, Any]:
        """Return the source in its stored form in a line with this outcome."""
        if outcome == "lost":
            return {"uri": self.uri}
        written = {name: getattr(self, name) for name in _SOURCE_FIELDS}
        if self.moved is not None:
            written["moved"] = asdict(self.moved)
        if outcome == "undone":
            written["returned"] = self.returned and asdict(self.returned)
        return written

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> LedgerSource:
        """Parse the form that ``as_json`` returns."""
        moved, returned = raw.get("moved"), raw.get("returned")
        if not moved and not returned:
            return cls(**raw)
        parts = {"moved": moved and MovedFile(**moved), "returned": returned and ReturnedCopy(**returned)}
        return cls(**{**raw, **parts})


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """What a run did with a bin that ended, or with a file of a bin that no longer exists.

    ``at`` is in microseconds since 1970 UTC. ``uri`` and what belongs to it describe the merged file, and are
    None for other outcomes. ``culprit`` is the name of the file that made its bin fail. The line of an undo
    repeats the line that it undoes.
    """

    outcome: Outcome
    at: int
    sources: tuple[LedgerSource, ...]
    run: RunToken | None = None
    merge_id: str | None = None
    bin: str | None = None
    code: str | None = None
    reason: str | None = None
    culprit: str | None = None
    uri: str | None = None
    records: int | None = None
    bytes: int | None = None
    size_basis: str | None = None
    bin_age_ms: int | None = None
    threshold: Mapping[str, int | None] | None = None
    details: str | None = None
    attributes: Mapping[str, str] | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the line in its stored form."""
        kind = self.outcome if self.outcome != "undone" else "failed" if self.uri is None else "merged"
        return {
            **{name: getattr(self, name) for name in _LINE_FIELDS[kind]},
            "run": self.run and self.run.model_dump(),
            "outcome": self.outcome,
            "sources": [source.as_json(self.outcome) for source in self.sources],
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> LedgerLine:
        """Parse the form that ``as_json`` returns."""
        run, sources = raw.get("run"), tuple(map(LedgerSource.from_json, raw["sources"]))
        return cls(**{**raw, "run": RunToken(**run) if run else None, "sources": sources})


class JournalReader:
    """The reader of the files in a ``state_path``, wherever they are.

    :param list_names: returns the names of the files in the folder.
    :param read_file: returns the content of a file in the folder; None if it does not exist.
    """

    def __init__(
        self, location: str, list_names: Callable[[], Iterable[str]], read_file: Callable[[str], bytes | None]
    ) -> None:
        self.location = location
        self._list_names = list_names
        self._read_file = read_file

    def read_state(self) -> tuple[State, RunCommit]:
        """Return the state and the commit of the run that saved it, both empty before the first run.

        :raises DataError: if the state is damaged, or if it has the format of another package version.
        """
        name = find_state_file(self._list_names())
        stored = None if name is None else self.read_json(name, parse_state_file)
        return stored or (State(), RunCommit(0, {}))

    def list_commits(self) -> list[RunCommit]:
        """Return the commits of the runs whose states still exist, newest first."""
        matches = (_STATE_FILE.fullmatch(name) for name in self._list_names())
        generations = sorted((int(match[1]) for match in matches if match), reverse=True)
        commits = (
            self.read_json(state_file(generation), lambda raw, at=generation: RunCommit(at, raw["report_data"]))
            for generation in generations
        )
        return [commit for commit in commits if commit is not None]

    def read_ledger(self, generation: int) -> list[LedgerLine] | None:
        """Return the ledger of a run, with the current locations of its files; None if it has none.

        :raises DataError: if the ledger is damaged.
        """
        name = ledger_file(generation)
        content = self._read_file(name)
        if content is None:
            return None
        # A ledger without a state is that of a plan that is not completed.
        files = ((file, self._read_file(file)) for file in (state_file(generation), plan_file(generation)))
        file, stored = next(((file, stored) for file, stored in files if stored is not None), ("", b"{}"))
        written_at = self._parse_json(file, stored, lambda raw: raw.get(LOCATION))
        return [
            self._parse_json(name, line, lambda raw: LedgerLine.from_json(self._relocate(raw, written_at)))
            for line in content.splitlines()
        ]

    def read_json(self, name: str, parse: Callable[[Any], _Parsed]) -> _Parsed | None:
        """Parse a JSON file, with the current locations of its files; return None if it does not exist."""
        content = self._read_file(name)
        if content is None:
            return None
        return self._parse_json(name, content, lambda raw: parse(self._relocate(raw, raw.pop(LOCATION, None))))

    def _parse_json(self, name: str, content: bytes, parse: Callable[[Any], _Parsed]) -> _Parsed:
        try:
            return parse(json.loads(content))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise DataError(
                f"{self.location}/{name} is damaged: restore it from a backup ({error})"
            ) from None

    def _relocate(self, raw: Any, written_at: str | None) -> Any:
        """Return JSON that was written at another location with the locations that its files have now."""
        if written_at is None or written_at == self.location:
            return raw
        return relocate_files(raw, *find_roots(written_at, self.location))


def build_state_file(state: State, commit_state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stored form of a state and what the commit of its run records."""
    return {"state": state.as_json(), "report_data": dict(commit_state)}


def parse_state_file(raw: Mapping[str, Any]) -> tuple[State, RunCommit]:
    """Parse the form that ``build_state_file`` returns."""
    state = State.from_json(raw["state"])
    return state, RunCommit(state.generation, raw["report_data"])


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
            if name == _UNCHANGED
            else relocate_files(value, old_folder, new_folder)
            for name, value in raw.items()
        }
    return raw
