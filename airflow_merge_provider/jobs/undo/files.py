"""Undo runs of a merge record: find their files, check that all can be taken back, plan, and carry it out.

Source: docs/undo.md, Files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from airflow_merge_provider.core.dataset import Dataset, resolve_dataset
from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.merge_record.journal import (
    FOLDERS,
    STATE_PREFIX,
    FileKey,
    LedgerLine,
    LedgerSource,
    MovedFile,
    RunFolders,
    find_state_file,
)
from airflow_merge_provider.core.merge_record.landing import SIDECAR
from airflow_merge_provider.core.merge_record.state import State
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.report import Report, RowCounts
from airflow_merge_provider.core.run.previous_run import TOKEN, RunCommit
from airflow_merge_provider.core.run.reporter import Progress, RunReporter, RunResult
from airflow_merge_provider.core.table_history import RESTORED_VERSION, UNDO
from airflow_merge_provider.core.undo.choice import UndoChoice, build_refusal
from airflow_merge_provider.core.undo.config import COUNTS, UndoConfig
from airflow_merge_provider.core.undo.decision import NOTHING_IN_FORCE
from airflow_merge_provider.core.undo.files import (
    FilesUndo,
    ReturnedFile,
    ReturnedVersions,
    UndoFile,
    WithdrawnOutput,
    build_files_result,
    choose_files_undo,
    describe_files,
)
from airflow_merge_provider.jobs.merge_record.files.journal import Journal
from airflow_merge_provider.jobs.merge_record.files.storage import Open, Storage
from airflow_merge_provider.jobs.merge_record.withdrawal import (
    carry_out_undo,
    finish_undo,
    read_returned_versions,
)


@dataclass
class FileSearch:
    """The files of the runs that are undone: where they are, and what prevents an undo."""

    journal: Journal
    opened: Open
    returned_versions: ReturnedVersions
    outputs: list[WithdrawnOutput] = field(default_factory=list)
    files: list[ReturnedFile] = field(default_factory=list)
    sources: set[FileKey] = field(default_factory=set)
    records: int = 0
    missing_failures: list[str] = field(default_factory=list)
    _changed_outputs: list[str] = field(default_factory=list)
    _missing_originals: list[str] = field(default_factory=list)
    _taken_names: list[str] = field(default_factory=list)
    _missing_ledgers: list[str] = field(default_factory=list)

    def add_run(self, run: RunCommit) -> None:
        """Find the outputs, originals and failures of a run."""
        lines = self.journal.read_ledger(run.version)
        if lines is None:
            if ledger := RunResult.from_state(run.state).details.get("ledger"):
                self._missing_ledgers.append(ledger)
            return
        locations = RunFolders.from_commit(run)
        source = self.opened(locations.source)
        targets = (locations.original, locations.failure)
        folders = [self.opened(location) for location in targets if location]
        merged = [line for line in lines if line.outcome == "merged"]
        self._find_outputs(merged, self.opened(locations.merged))
        self._find_sources(merged, source, folders, self._missing_originals)
        failed = [line for line in lines if line.outcome == "failed"]
        self._find_sources(failed, source, folders, self.missing_failures)

    def refuse_problems(self) -> None:
        """Raise an error if something prevents the undo.

        :raises DataError: with every reason.
        """
        problems = [
            *describe_files(
                "outputs that were changed or removed since, whose records may be in use",
                "put them back with their times, or move their originals to the source folder by hand",
                self._changed_outputs,
            ),
            *describe_files(
                "merged source files that no longer exist or have changed",
                "an undo needs them: use original_action 'move', and keep the originals",
                self._missing_originals,
            ),
            *describe_files(
                "new files in the source folder with the names of files to move back",
                "let the task merge them first, or rename them",
                self._taken_names,
            ),
            *describe_files(
                "files of the ledger that no longer exist",
                "restore them from a backup",
                self._missing_ledgers,
            ),
        ]
        if problems:
            raise DataError.from_problems(problems)

    def _find_outputs(self, lines: Sequence[LedgerLine], folder: Storage) -> None:
        def check_output(line: LedgerLine) -> WithdrawnOutput | None:
            merge_id = str(line.merge_id)
            manifest = self.journal.read_manifest(merge_id)
            name = str(line.uri).removeprefix(f"{folder.location}/")
            entry = folder.find_entry(name)
            if manifest is None or manifest.withdrawn or entry is None:
                return None
            is_unchanged = (entry.size, entry.version) == (manifest.bytes, manifest.version)
            return WithdrawnOutput(merge_id, folder.location, name) if is_unchanged else None

        for line, output in zip(lines, folder.for_each(check_output, lines), strict=True):
            if output is None:
                self._changed_outputs.append(str(line.uri))
                continue
            self.outputs.append(output)
            self.records += line.records or 0

    def _find_sources(
        self, lines: Sequence[LedgerLine], source: Storage, folders: Sequence[Storage], missing: list[str]
    ) -> None:
        """Find the sources of merges or failures: in place, or in the folders to which they were moved."""
        parts: dict[FileKey, list[LedgerSource]] = {}
        for part in (part for line in lines for part in line.sources):
            parts.setdefault(self.returned_versions.find_key(part.key), []).append(part)
        # Another file with the same name and content was moved to another place.
        moved_files = {(file.folder, file.name) for file in self.files}
        versions = [
            version
            for version in parts
            if version not in self.sources
            or any(
                (part.moved.folder, part.moved.name) not in moved_files
                for part in parts[version]
                if part.moved is not None
            )
        ]

        def find_location(version: FileKey) -> _Location:
            return _find_location(version, parts[version], source, folders)

        names = {(file.source, file.source_name) for file in self.files}
        for version, location in zip(versions, source.for_each(find_location, versions), strict=True):
            if not location.is_in_place and location.file is None:
                missing.append(version[0])
                continue
            self.sources.add(version)
            if (file := location.file) is not None:
                if location.is_taken or (file.source, file.source_name) in names:
                    self._taken_names.append(version[0])
                names.add((file.source, file.source_name))
                self.files.append(file)


@dataclass(frozen=True, slots=True)
class _Location:
    """Where a source file is: in the source folder, in another one, or nowhere.

    ``is_taken`` is True if another file, or its sidecar, has its name in the source folder.
    """

    is_in_place: bool = False
    is_taken: bool = False
    file: ReturnedFile | None = None


def _find_location(
    version: FileKey, parts: Sequence[LedgerSource], source: Storage, folders: Sequence[Storage]
) -> _Location:
    """Find a source file that was merged or has failed, from its parts in the ledger."""
    name = version[0].removeprefix(f"{source.location}/")
    entry = source.find_entry(name)
    candidates = (
        (folder, part.moved)
        for folder in folders
        for part in parts
        if part.moved is not None and part.moved.folder == folder.location
    )
    file = next((moved for folder, moved in candidates if _has_file(folder, moved)), None)
    if file is None:
        return _Location(is_in_place=entry is not None and entry.version == version[1])
    has_sidecar = source.find_entry(f"{name}{SIDECAR}") is not None
    returned = ReturnedFile(file.folder, file.name, source.location, name, file.uuid, version[1])
    return _Location(is_taken=entry is not None or has_sidecar, file=returned)


def _has_file(folder: Storage, moved: MovedFile) -> bool:
    entry = folder.find_entry(moved.name)
    return entry is not None and entry.version == moved.version


def find_journal(target: Dataset, opened: Open) -> Journal | None:
    """Return the journal of the merge record whose ``state_path`` or ``merged`` folder is the target.

    :raises DataError: if several merge records write to the folder.
    """
    if target.path is None or opened(target.path).list_prefixed("_delta_log"):
        return None
    if _has_state(opened(target.path)):
        return Journal(opened(target.path))
    parent = target.path.rpartition("/")[0]
    if not parent or parent.endswith("/"):
        return None
    siblings = (f"{parent}/{name}" for name in opened(parent).list_prefixed(""))
    journals = [Journal(opened(location)) for location in siblings if _has_state(opened(location))]
    matching = [journal for journal in journals if _find_merged_folder(journal) == target.path]
    if len(matching) > 1:
        locations = ", ".join(journal.location for journal in matching)
        message = f"{target.uri} has the outputs of several tasks: {locations}"
        raise build_refusal("target", message, "set target to the state_path of one of them")
    return next(iter(matching), None)


def undo_files(journal: Journal, opened: Open, request: JobRequest, progress: Progress) -> Report:
    """Undo runs of a merge record, and return the report.

    :raises DataError: when the undo is not possible; nothing is written then.
    :raises ConflictError: when another run is at work.
    """
    config = UndoConfig.parse(request.config)
    target = resolve_dataset(config.target, request.warehouse, at="target")
    reporter = RunReporter(lambda _: None, request, progress, COUNTS, target, {}, None)
    if reporter.is_dry_run:
        planned = _plan_undo(journal, opened, config, reporter)
        return reporter.build_report(_build_noop() if planned is None else planned[1])
    with journal.lease.hold_lease(request.run):
        finish_undo(journal, opened, progress)
        for commit in journal.list_commits():
            if UNDO in commit.state and request.run.is_same_attempt(commit.state.get(TOKEN)):
                result = RunResult.from_state(commit.state)
                reason = f"{result.reason}; an earlier attempt of this run has completed it"
                return reporter.build_report(replace(result, reason=reason), changed=True)
        planned = _plan_undo(journal, opened, config, reporter)
        if planned is None:
            return reporter.build_report(_build_noop())
        undo, result = planned
        plan = UndoFile(request.run, undo)
        journal.write_plan(undo.state.generation, plan)
        carry_out_undo(plan, journal, opened, progress)
    return reporter.build_report(result, changed=True)


def _build_noop() -> RunResult:
    return RunResult("noop", NOTHING_IN_FORCE, RowCounts.for_noop())


def _plan_undo(
    journal: Journal, opened: Open, config: UndoConfig, reporter: RunReporter
) -> tuple[FilesUndo, RunResult] | None:
    """Return the plan of an undo and its result; None if no run is in force.

    :raises DataError: if it is not possible, with every reason.
    """
    current_state, _ = journal.read_state()
    if journal.find_unfinished_plan(current_state):
        message = f"a run has left an unfinished plan in {journal.location}"
        raise build_refusal("target", message, "run the task, which completes it")
    choice = choose_files_undo(config, journal.list_commits())
    if choice is None:
        return None
    with reporter.progress.time_step("check files"):
        search = FileSearch(journal, opened, read_returned_versions(journal))
        for run in choice.undone:
            search.add_run(run)
    search.refuse_problems()
    if search.missing_failures:
        number, example = len(search.missing_failures), search.missing_failures[0]
        reporter.add_warnings(
            [f"{number} failed files, such as {example}, are not in the failure folder any more"]
        )
    return _build_undo(journal, choice, search, current_state, reporter)


def _build_undo(
    journal: Journal, choice: UndoChoice, search: FileSearch, current_state: State, reporter: RunReporter
) -> tuple[FilesUndo, RunResult]:
    state = replace(
        journal.read_earlier_state(choice.version),
        generation=current_state.generation + 1,
        # The numbers of bins are not used again.
        next_seq=current_state.next_seq,
    )
    result = build_files_result(
        choice, records=search.records, outputs=len(search.outputs), files=len(search.sources)
    )
    report_data = {
        **reporter.build_state(result),
        FOLDERS: choice.undone[0].state[FOLDERS],
        UNDO: {RESTORED_VERSION: choice.version},
    }
    undone = tuple(run.version for run in choice.undone)
    outputs, files = tuple(search.outputs), tuple(search.files)
    undo = FilesUndo(reporter.request.started_at, state, undone, outputs, files, report_data)
    return undo, result


def _has_state(folder: Storage) -> bool:
    return find_state_file(folder.list_prefixed(STATE_PREFIX)) is not None


def _find_merged_folder(journal: Journal) -> str | None:
    _, commit = journal.read_state()
    return RunFolders.from_commit(commit).merged if FOLDERS in commit.state else None
