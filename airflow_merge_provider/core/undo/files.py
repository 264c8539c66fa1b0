"""Choose the runs of a merge record that an undo reverts, and what becomes of their files.

A state of a merge record is to an undo what a version is to a table: its data say which run has written it,
or which earlier state it has restored. The state before the first run has the number 0.

Source: docs/undo.md, Files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from airflow_merge_provider.core.errors import Problem
from airflow_merge_provider.core.merge_record.flowfile import FlowFile
from airflow_merge_provider.core.merge_record.journal import (
    UNDOABLE_RUNS,
    FileKey,
    LedgerLine,
    ReturnedCopy,
)
from airflow_merge_provider.core.merge_record.state import State
from airflow_merge_provider.core.merge_record.stored import Stored
from airflow_merge_provider.core.protocol import RunToken
from airflow_merge_provider.core.report import RowCounts
from airflow_merge_provider.core.run.previous_run import RESULT, RunCommit
from airflow_merge_provider.core.run.reporter import RunResult
from airflow_merge_provider.core.source_offset import RunState
from airflow_merge_provider.core.table_history import (
    RESTORE,
    RESTORED_VERSION,
    UNDO,
    HistoryEntry,
    trace_lineage,
)
from airflow_merge_provider.core.undo.choice import UndoChoice, build_refusal, choose_undo, describe_run
from airflow_merge_provider.core.undo.config import UndoConfig

_MERGE_RECORD = "merge_record"
_NAMED_FILES_MAX = 3


@dataclass(frozen=True, slots=True)
class WithdrawnOutput(Stored):
    """A merged file that an undo removes: its merge, and its folder and name."""

    merge_id: str
    folder: str
    name: str


@dataclass(frozen=True, slots=True)
class ReturnedFile(Stored):
    """A source file that an undo moves back: the folder and name where it is, and its own.

    ``uuid`` is that of the FlowFile in the sidecar that the run gave the file, and ``version`` that of the
    source file.
    """

    folder: str
    name: str
    source: str
    source_name: str
    uuid: str
    version: str

    @property
    def key(self) -> FileKey:
        """The URI and the version that the source file had in the run."""
        return f"{self.source}/{self.source_name}", self.version


@dataclass(frozen=True, slots=True)
class FilesUndo(Stored):
    """The plan of an undo: a stored plan is carried out and not computed again.

    ``state`` is the state afterwards, ``undone`` are the generations whose merges are withdrawn, and
    ``report_data`` is what the state tells about the undo.
    """

    now: int
    state: State
    undone: tuple[int, ...]
    outputs: tuple[WithdrawnOutput, ...]
    files: tuple[ReturnedFile, ...]
    report_data: RunState


@dataclass(frozen=True, slots=True)
class UndoFile(Stored):
    """The plan of an undo with the run that made it, so that a later run can carry it out."""

    token: RunToken
    undo: FilesUndo


class ReturnedVersions:
    """The versions that files have got when undos moved them back: in some stores, a copy has another one."""

    def __init__(self) -> None:
        self._versions: dict[FileKey, ReturnedCopy] = {}

    def add_lines(self, lines: Iterable[LedgerLine]) -> None:
        """Add the files of the ledger of an undo; undos are added in their order."""
        for source in (source for line in lines for source in line.sources):
            if source.returned is not None:
                self._versions[source.key] = source.returned

    def find_key(self, key: FileKey) -> FileKey:
        """Return the URI and the version that a file has now, from those that it had in a run."""
        returned = self._find_returned(key)
        return key if returned is None else (returned.uri, returned.version)

    def update_file(self, file: FlowFile) -> FlowFile:
        """Return a file with its present location and versions, from those that it had in a run."""
        returned = self._find_returned((file.uri, file.version))
        return file if returned is None else replace(file, **asdict(returned))

    def _find_returned(self, key: FileKey) -> ReturnedCopy | None:
        """Follow the returns of a file; with a tag of its content, it has the same version again."""
        returned, visited = None, set()
        while key in self._versions and key not in visited:
            visited.add(key)
            returned = self._versions[key]
            key = returned.uri, returned.version
        return returned


def choose_files_undo(config: UndoConfig, commits: Sequence[RunCommit]) -> UndoChoice | None:
    """Return the runs that an undo reverts, and the generation that it restores; None if none is in force.

    :param commits: the runs whose states still exist, newest first.
    :raises DataError: if there is no such run, or if the undo is not possible.
    """
    if config.only:
        raise build_refusal("only", "files have no history from which one run could be taken", "remove only")
    history = list(_list_entries(commits))
    lineage = trace_lineage(history, lambda _: None)
    expired_hint = f"the states of {UNDOABLE_RUNS} runs are kept: move the files by hand"
    choice = choose_undo(config, _MERGE_RECORD, history, lineage, expired_hint=expired_hint)
    if choice is None:
        return None
    if choice.restored:
        hint = "run the task: it merges the waiting files again"
        raise build_refusal("run", "an undo of files cannot be undone", hint)
    return choice


def describe_files(text: str, hint: str, names: Sequence[str]) -> Iterator[Problem]:
    """Yield the problem of the files that prevent an undo, if there are any."""
    if names:
        more = f" and {len(names) - _NAMED_FILES_MAX} more" if len(names) > _NAMED_FILES_MAX else ""
        message = f"{len(names)} {text}: {', '.join(names[:_NAMED_FILES_MAX])}{more}"
        yield Problem("target", "undo", message, hint)


def build_files_result(choice: UndoChoice, *, records: int, outputs: int, files: int) -> RunResult:
    """Return the result of an undo, for its state and its report.

    :param records: the records of the withdrawn outputs.
    :param files: the source files that wait again.
    """
    details = {
        "undone": [describe_run(run) for run in choice.undone],
        "restored": [],
        "restored_version": choice.version,
    }
    counts = {"runs": len(choice.undone), "side_tables": 0, "outputs": outputs, "files": files}
    reason = f"the bins are as in state {choice.version}" if choice.version else "as before the first run"
    return RunResult("undo", reason, RowCounts(inserted=0, updated=0, deleted=records), counts, details)


def build_undone_lines(
    lines: Iterable[LedgerLine],
    returned_files: Mapping[FileKey, ReturnedCopy | None],
    now: int,
    token: RunToken,
) -> Iterator[LedgerLine]:
    """Yield the ledger lines of an undo: those of the undone merges and failures, with its own run.

    :param returned_files: the new URIs and versions of the files that were moved back.
    """
    for line in lines:
        if line.outcome in ("merged", "failed"):
            sources = (replace(source, returned=returned_files.get(source.key)) for source in line.sources)
            yield replace(line, outcome="undone", at=now, run=token, sources=tuple(sources))


def _list_entries(commits: Sequence[RunCommit]) -> Iterator[HistoryEntry]:
    """Yield the states like the versions of a table, with one for the empty state before the first run."""
    for commit in commits:
        metadata = {**commit.state, "capability": _MERGE_RECORD, "number": commit.version}
        records = ((commit.state.get(RESULT) or {}).get("counts") or {}).get("outputs")
        undo = commit.state.get(UNDO)
        parameters = {} if undo is None else {"version": str(undo[RESTORED_VERSION])}
        operation = RESTORE if undo else "WRITE"
        yield HistoryEntry(commit.version, operation, parameters, json.dumps(metadata), records)
    if any(commit.version == 1 for commit in commits):
        yield HistoryEntry(0, "Empty Commit")
