"""Choose the runs of a merge record that an undo reverts, and what becomes of their files.

A state of a merge record is to an undo what a version is to a table: its data say which run has written it,
or which earlier state it has restored. The state before the first run has the number 0.

Source: docs/undo.md, Files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_record.flowfile import FlowFile
from airflow_merge_provider.core.merge_record.state import UNDOABLE_RUNS, State
from airflow_merge_provider.core.report import RowCounts
from airflow_merge_provider.core.run.previous_run import RESULT
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

# The key of the URI and the versions of a file that an undo has moved back, in the ledger.
RETURNED = "returned"
_MERGE_RECORD = "merge_record"
_NAMED_FILES_MAX = 3
# The URI and the version of a file.
FileKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class WithdrawnOutput:
    """A merged file that an undo removes: its merge, and its folder and name."""

    merge_id: str
    folder: str
    name: str


@dataclass(frozen=True, slots=True)
class ReturnedFile:
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
class FilesUndo:
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

    def as_json(self) -> dict[str, Any]:
        """Return the plan in its stored form."""
        return {
            "now": self.now,
            "state": self.state.as_json(),
            "undone": list(self.undone),
            "outputs": [asdict(output) for output in self.outputs],
            "files": [asdict(file) for file in self.files],
            "report_data": dict(self.report_data),
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> FilesUndo:
        """Parse the form that ``as_json`` returns."""
        return cls(
            now=raw["now"],
            state=State.from_json(raw["state"]),
            undone=tuple(raw["undone"]),
            outputs=tuple(WithdrawnOutput(**output) for output in raw["outputs"]),
            files=tuple(ReturnedFile(**file) for file in raw["files"]),
            report_data=raw["report_data"],
        )


class ReturnedVersions:
    """The versions that files have got when undos moved them back: in some stores, a copy has another one."""

    def __init__(self) -> None:
        self._versions: dict[FileKey, Mapping[str, Any]] = {}

    def add_lines(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Add the files of the ledger of an undo; undos are added in their order."""
        for source in (source for line in lines for source in line["sources"]):
            if returned := source.get(RETURNED):
                self._versions[source["uri"], source["version"]] = returned

    def find_key(self, uri: str, version: str) -> FileKey:
        """Return the URI and the version that a file has now, from those that it had in a run."""
        returned = self._find_returned((uri, version)) or {"uri": uri, "version": version}
        return returned["uri"], returned["version"]

    def update_file(self, file: FlowFile) -> FlowFile:
        """Return a file with its present location and versions, from those that it had in a run."""
        returned = self._find_returned((file.uri, file.version))
        return file if returned is None else replace(file, **returned)

    def _find_returned(self, key: FileKey) -> Mapping[str, Any] | None:
        """Follow the returns of a file; with a tag of its content, it has the same version again."""
        returned, visited = None, set()
        while key in self._versions and key not in visited:
            visited.add(key)
            returned = self._versions[key]
            key = returned["uri"], returned["version"]
        return returned


def choose_files_undo(config: UndoConfig, report_data: Mapping[int, RunState]) -> UndoChoice | None:
    """Return the runs that an undo reverts, and the generation that it restores; None if none is in force.

    :param report_data: what each state tells about the run that wrote it, by generation, newest first.
    :raises DataError: if there is no such run, or if the undo is not possible.
    """
    if config.only:
        raise build_refusal("only", "files have no history from which one run could be taken", "remove only")
    history = list(_list_entries(report_data))
    lineage = trace_lineage(history, lambda _: None)
    expired_hint = f"the states of {UNDOABLE_RUNS} runs are kept: move the files by hand"
    choice = choose_undo(config, _MERGE_RECORD, history, lineage, expired_hint=expired_hint)
    if choice is None:
        return None
    if choice.restored:
        hint = "run the task: it merges the waiting files again"
        raise build_refusal("run", "an undo of files cannot be undone", hint)
    return choice


def refuse_files(problems: Sequence[tuple[str, str, Sequence[str]]]) -> None:
    """Raise an error if files prevent an undo.

    :param problems: what is wrong, a remedy, and the files; those without files are none.
    :raises DataError: with all problems.
    """
    found_problems = [
        Problem("target", "undo", f"{len(names)} {text}: {_list_names(names)}", hint)
        for text, hint, names in problems
        if names
    ]
    if found_problems:
        raise DataError.from_problems(found_problems)


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
    lines: Iterable[Mapping[str, Any]],
    returned_files: Mapping[FileKey, Mapping[str, Any] | None],
    now: int,
    token: Mapping[str, Any],
) -> Iterator[dict[str, Any]]:
    """Yield the ledger lines of an undo: those of the undone merges and failures, with its own run.

    :param returned_files: the new URIs and versions of the files that were moved back.
    """
    for line in lines:
        if line["outcome"] in ("merged", "failed"):
            sources = [
                {**source, RETURNED: returned_files.get((source["uri"], source["version"]))}
                for source in line["sources"]
            ]
            yield {**line, "outcome": "undone", "at": now, "run": dict(token), "sources": sources}


def _list_entries(report_data: Mapping[int, RunState]) -> Iterator[HistoryEntry]:
    """Yield the states like the versions of a table, with one for the empty state before the first run."""
    for generation, run_data in report_data.items():
        metadata = {**run_data, "capability": _MERGE_RECORD, "number": generation}
        records = ((run_data.get(RESULT) or {}).get("counts") or {}).get("outputs")
        undo = run_data.get(UNDO)
        parameters = {} if undo is None else {"version": str(undo[RESTORED_VERSION])}
        yield HistoryEntry(
            generation, RESTORE if undo else "WRITE", parameters, json.dumps(metadata), records
        )
    if 1 in report_data:
        yield HistoryEntry(0, "Empty Commit")


def _list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED_FILES_MAX} more" if len(names) > _NAMED_FILES_MAX else ""
    return f"{', '.join(names[:_NAMED_FILES_MAX])}{more}"
