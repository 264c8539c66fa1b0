"""Execution of the undo of merges: withdraw the outputs, move the sources back, record it, save the state.

Every step is idempotent, so that it may be repeated after a crash, by the undo or by the next run.
Source: docs/undo.md, Files.
"""

from __future__ import annotations

from functools import cache

from airflow_merge_provider.core.merge_record.landing import SIDECAR
from airflow_merge_provider.core.run.previous_run import TOKEN
from airflow_merge_provider.core.run.progress import Progress
from airflow_merge_provider.core.undo.files import (
    FilesUndo,
    ReturnedFile,
    WithdrawnOutput,
    build_undone_lines,
)
from airflow_merge_provider.jobs.merge_record.files.journal import Journal
from airflow_merge_provider.jobs.merge_record.files.storage import Open
from airflow_merge_provider.jobs.merge_record.routing import build_arrived_name, build_unique_name

# The key of an undo in the plan file.
UNDO_PLAN = "undo"


def finish_undo(journal: Journal, opened: Open, progress: Progress) -> None:
    """Complete an undo that was planned and not completed; do nothing if there is none.

    :raises ConflictError: when another run has gone on with it.
    """
    state, _ = journal.read_state()
    plan = journal.find_unfinished_plan(state) or {}
    if UNDO_PLAN in plan:
        progress.log_line(f"completing the undo of run {plan[TOKEN]['run_id']}")
        carry_out_undo(FilesUndo.from_json(plan[UNDO_PLAN]), journal, opened, progress)


def carry_out_undo(undo: FilesUndo, journal: Journal, opened: Open, progress: Progress) -> None:
    """Execute the plan of an undo, which is in the journal.

    :raises ConflictError: when another run has gone on with it.
    """
    token, find_folder = undo.report_data[TOKEN], cache(opened)

    def withdraw_output(output: WithdrawnOutput) -> None:
        journal.withdraw_published(output.merge_id, token)
        folder = find_folder(output.folder)
        for name in (output.name, f"{output.name}{SIDECAR}"):
            folder.delete_path(name)

    with progress.time_step("withdraw"):
        for folder in {output.folder for output in undo.outputs}:
            outputs = [output for output in undo.outputs if output.folder == folder]
            find_folder(folder).for_each(withdraw_output, outputs)
    with progress.time_step("move"):
        journal.lease.check_lease()
        for folder in {file.folder for file in undo.files}:
            files = [file for file in undo.files if file.folder == folder]
            find_folder(folder).for_each(lambda file: _return_file(file, find_folder), files)
    lines = (line for generation in undo.undone for line in journal.read_ledger(generation) or ())
    journal.write_ledger(undo.state.generation, build_undone_lines(list(lines), undo.now, token))
    journal.save_state(journal.read_state()[0], undo.state, undo.report_data)


def _return_file(file: ReturnedFile, find_folder: Open) -> None:
    """Move a file back to the source folder, then the sidecar that it arrived with.

    If a new file has taken its name since the plan was made, its name gets the UUID of the FlowFile. No run
    reads the file before its sidecar is there, because the undo holds the lease of the journal.
    """
    folder, source = find_folder(file.folder), find_folder(file.source)
    unique_name = build_unique_name(file.source_name, file.uuid)
    if folder.find_entry(file.name) is not None and not folder.move_new(file.name, source, file.source_name):
        folder.move_new(file.name, source, unique_name)
    name = file.source_name if source.find_entry(unique_name) is None else unique_name
    arrived_name = build_arrived_name(file.uuid)
    if folder.find_entry(arrived_name) is not None:
        folder.move_new(arrived_name, source, f"{name}{SIDECAR}")
    folder.delete_path(f"{file.name}{SIDECAR}")
