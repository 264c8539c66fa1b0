"""Execution of the undo of merges: withdraw the outputs, move the sources back, record it, save the state.

Every step is idempotent, so that it may be repeated after a crash, by the undo or by the next run.
Source: docs/undo.md, Files.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from airflow_merge_provider.core.errors import ConflictError
from airflow_merge_provider.core.merge_record.journal import FileKey, LedgerLine, ReturnedCopy, StateFile
from airflow_merge_provider.core.merge_record.landing import SIDECAR
from airflow_merge_provider.core.merge_record.state import update_files
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.core.table_history import UNDO
from airflow_merge_provider.core.undo.files import (
    FilesUndo,
    ReturnedFile,
    ReturnedVersions,
    UndoFile,
    WithdrawnOutput,
    build_undone_lines,
)
from airflow_merge_provider.jobs.merge_record.files.journal import Journal
from airflow_merge_provider.jobs.merge_record.files.storage import Open
from airflow_merge_provider.jobs.merge_record.routing import build_arrived_name, build_unique_name


def finish_undo(journal: Journal, opened: Open, progress: Progress) -> None:
    """Complete an undo that was planned and not completed; do nothing if there is none.

    :raises ConflictError: when another run has gone on with it.
    """
    state, _ = journal.read_state()
    plan = journal.find_unfinished_plan(state)
    if isinstance(plan, UndoFile):
        progress.log_line(f"completing the undo of run {plan.token.run_id}")
        carry_out_undo(plan, journal, opened, progress)


def carry_out_undo(plan: UndoFile, journal: Journal, opened: Open, progress: Progress) -> None:
    """Execute the plan of an undo, which is in the journal.

    :raises ConflictError: when another run has gone on with it.
    """
    undo, find_folder = plan.undo, cache(opened)

    def withdraw_output(output: WithdrawnOutput) -> None:
        journal.withdraw_published(output.merge_id, plan.token)
        folder = find_folder(output.folder)
        for name in (output.name, f"{output.name}{SIDECAR}"):
            folder.delete_path(name)

    with progress.time_step("withdraw"):
        for folder in {output.folder for output in undo.outputs}:
            outputs = [output for output in undo.outputs if output.folder == folder]
            find_folder(folder).for_each(withdraw_output, outputs)
    with progress.time_step("move"):
        journal.lease.check_lease()
        # The ledger ends the copying: files that were copied are compared with those that still exist.
        if (lines := journal.read_ledger(undo.state.generation)) is None:
            lines = _copy_files(plan, journal, find_folder)
        returned_files = {source.key: source.returned for line in lines for source in line.sources}
        for folder, files in _group_files(undo).items():
            find_folder(folder).for_each(lambda file: _delete_moved(file, returned_files, find_folder), files)
    versions = read_returned_versions(journal)
    versions.add_lines(lines)
    state = update_files(undo.state, versions.update_file)
    journal.save_state(journal.read_state()[0], StateFile(state, undo.report_data))


def read_returned_versions(journal: Journal) -> ReturnedVersions:
    """Return the versions of the files that the undos of a journal have moved back."""
    versions = ReturnedVersions()
    for commit in reversed(journal.list_commits()):
        if UNDO in commit.state:
            versions.add_lines(journal.read_ledger(commit.version) or ())
    return versions


def _copy_files(plan: UndoFile, journal: Journal, find_folder: Open) -> list[LedgerLine]:
    """Copy the source files back, and write and return the ledger lines, with the versions of the copies."""
    undo = plan.undo
    returned_files: dict[FileKey, ReturnedCopy | None] = {}
    for folder, files in _group_files(undo).items():
        copies = find_folder(folder).for_each(lambda file: _copy_back(file, find_folder), files)
        returned_files |= {file.key: copy for file, copy in zip(files, copies, strict=True)}
    undone_lines = (line for generation in undo.undone for line in journal.read_ledger(generation) or ())
    lines = list(build_undone_lines(undone_lines, returned_files, undo.now, plan.token))
    journal.write_ledger(undo.state.generation, lines)
    return lines


def _group_files(undo: FilesUndo) -> dict[str, list[ReturnedFile]]:
    folders: dict[str, list[ReturnedFile]] = {}
    for file in undo.files:
        folders.setdefault(file.folder, []).append(file)
    return folders


def _copy_back(file: ReturnedFile, find_folder: Open) -> ReturnedCopy | None:
    """Copy a file back to the source folder, then the sidecar that it arrived with; return their versions.

    If a new file has taken its name since the plan was made, its name gets the UUID of the FlowFile. No run
    reads the file before its sidecar is there, because the undo holds the lease of the journal.

    :raises ConflictError: when another file has that name, too.
    """
    folder, source = find_folder(file.folder), find_folder(file.source)
    if folder.find_entry(file.name) is None:
        # Somebody has removed it since the plan was made.
        return None
    names = (file.source_name, build_unique_name(file.source_name, file.uuid))
    name = next((name for name in names if folder.copy_new(file.name, source, name)), None)
    entry = None if name is None else source.find_entry(name)
    if name is None or entry is None:
        uri = source.build_uri(names[-1])
        raise ConflictError(f"{uri}: another program uses the name of a file to move back: retry the task")
    sidecar_name, arrived_name = f"{name}{SIDECAR}", build_arrived_name(file.uuid)
    has_arrived = folder.find_entry(arrived_name) is not None
    is_copied = has_arrived and folder.copy_new(arrived_name, source, sidecar_name)
    sidecar = source.find_entry(sidecar_name) if is_copied else None
    return ReturnedCopy(source.build_uri(name), entry.version, sidecar.version if sidecar else None)


def _delete_moved(
    file: ReturnedFile, returned_files: Mapping[FileKey, ReturnedCopy | None], find_folder: Open
) -> None:
    """Delete a file that was copied back from the folder to which a run had moved it, with its sidecars."""
    returned = returned_files.get(file.key)
    arrived_names = [build_arrived_name(file.uuid)] if returned and returned.sidecar else []
    for name in (file.name, f"{file.name}{SIDECAR}", *arrived_names):
        find_folder(file.folder).delete_path(name)
