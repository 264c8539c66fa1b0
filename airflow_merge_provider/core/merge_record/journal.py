"""The files in the state_path of a merge record, as they are stored, and their only reader.

A state says which run has saved it, a manifest which file a merge has become, and the ledger what became of
each file. Stored locations follow a folder that was moved.

Source: docs/semantics/merge_record.md, State and lease.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.merge_record.state import State
from airflow_merge_provider.core.merge_record.stored import Stored
from airflow_merge_provider.core.protocol import RunToken
from airflow_merge_provider.core.run.previous_run import RunCommit

STATE_PREFIX = "state"
# The number of runs that can be undone: the states before them are not deleted.
UNDOABLE_RUNS = 10
# The key of the location of the journal, in each of its files.
LOCATION = "location"
_STATE_FILE = re.compile(r"state-\d{12}\.json")
# The key of the folders of a run in the state of its commit.
FOLDERS = "folders"
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
class RunFolders(Stored):
    """The locations of the folders of a run; ``original`` is None if merged sources are kept or deleted."""

    source: str
    merged: str
    failure: str
    original: str | None
    state_path: str

    @classmethod
    def from_commit(cls, commit: RunCommit) -> RunFolders:
        """Read the folders from the commit of a run.

        :raises DataError: if it does not record them.
        """
        if FOLDERS not in commit.state:
            raise DataError(f"state {commit.version} does not record its folders: move the files by hand")
        return cls.from_json(commit.state[FOLDERS])


@dataclass(frozen=True, slots=True)
class StateFile(Stored):
    """A state, and what the commit of the run that saved it would record in a table."""

    state: State
    report_data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Manifest(Stored):
    """The file that commits a merge, or prevents that it is published if the merge is ``withdrawn``.

    ``version`` is that of the merged file: an undo deletes this file, and no other one with its name.
    """

    optional: ClassVar[tuple[str, ...]] = (
        "bytes", "version", "reason", "code", "attributes", "withdrawn", "undone_by",
    )  # fmt: skip
    merge_id: str
    uri: str | None = None
    records: int = 0
    bytes: int | None = None
    version: str | None = None
    reason: str | None = None
    code: str | None = None
    attributes: Mapping[str, str] | None = None
    sources: tuple[str, ...] = ()
    withdrawn: Literal[True] | None = None
    undone_by: RunToken | None = None


@dataclass(frozen=True, slots=True)
class MovedFile(Stored):
    """Where a run has moved a source, the UUID in its sidecar there, and the version of the file there."""

    folder: str
    name: str
    uuid: str
    version: str


@dataclass(frozen=True, slots=True)
class ReturnedCopy(Stored):
    """The URI and the versions of a file, and of its sidecar, that an undo has moved back."""

    uri: str
    version: str
    sidecar: str | None


@dataclass(frozen=True, slots=True)
class LedgerSource(Stored):
    """A source of a ledger line; of a file that no longer exists, only the URI is known."""

    optional: ClassVar[tuple[str, ...]] = ("uuid", "records", "version", "size", "moved", "returned")
    uri: str
    uuid: str | None = None
    records: int | None = None
    part: str | None = None
    version: str | None = None
    size: int | None = None
    moved: MovedFile | None = None
    returned: ReturnedCopy | None = None

    @property
    def key(self) -> FileKey:
        """The URI and the version that the file had in the run."""
        return self.uri, self.version or ""


Outcome = Literal["merged", "failed", "lost", "undone"]


@dataclass(frozen=True, slots=True)
class LedgerLine(Stored):
    """What a run did with a bin that ended, or with a file of a bin that no longer exists.

    ``at`` is in microseconds since 1970 UTC. ``uri`` and what follows describe the merged file, and are None
    for other outcomes. ``culprit`` is the name of the file that made its bin fail. The line of an undo
    repeats the line that it undoes.
    """

    optional: ClassVar[tuple[str, ...]] = (
        "bin", "code", "reason", "culprit", "uri", "records", "bytes", "size_basis", "bin_age_ms",
        "threshold", "details", "attributes",
    )  # fmt: skip
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
        """Return the stored form, which has some values also if they are None."""
        written = Stored.as_json(self)
        if self.outcome == "lost":
            return {**written, "sources": [{"uri": source.uri} for source in self.sources]}
        culprit = {"culprit": self.culprit} if self.uri is None else {}
        returned = {"returned": None} if self.outcome == "undone" else {}
        return {**written, **culprit, "sources": [{**returned, **source} for source in written["sources"]]}


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
        stored = None if name is None else self.read_json(name, StateFile.from_json)
        stored = stored or StateFile(State(), {})
        return stored.state, RunCommit(stored.state.generation, stored.report_data)

    def list_commits(self) -> list[RunCommit]:
        """Return the commits of the runs whose states still exist, newest first."""
        commits = (
            self.read_json(name, lambda raw: RunCommit(raw["state"]["generation"], raw["report_data"]))
            for name in sorted(filter(_STATE_FILE.fullmatch, self._list_names()), reverse=True)
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

        def parse_line(raw: Any) -> LedgerLine:
            return LedgerLine.from_json(relocate(raw, written_at, self.location))

        return [self._parse_json(name, line, parse_line) for line in content.splitlines()]

    def read_json(self, name: str, parse: Callable[[Any], _Parsed]) -> _Parsed | None:
        """Parse a JSON file, with the current locations of its files; return None if it does not exist."""
        content = self._read_file(name)
        if content is None:
            return None
        at = self.location
        return self._parse_json(name, content, lambda raw: parse(relocate(raw, raw.get(LOCATION), at)))

    def _parse_json(self, name: str, content: bytes, parse: Callable[[Any], _Parsed]) -> _Parsed:
        try:
            return parse(json.loads(content))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            message = f"{self.location}/{name} is damaged: restore it from a backup ({error})"
            raise DataError(message) from None


def relocate(raw: Any, written_at: str | None, location: str) -> Any:
    """Return JSON of a journal, if it was written elsewhere with the locations that its files have now."""
    if written_at is None or written_at == location:
        return raw
    return relocate_files(raw, *find_roots(written_at, location))


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
