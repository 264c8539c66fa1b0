"""Undo runs of a merge record: check that everything can be taken back, write the plan, carry it out.

Source: docs/undo.md, Files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_merge_provider.core.dataset import Dataset, resolve_dataset
from airflow_merge_provider.core.merge_record.state import FOLDERS, STATE_PREFIX, State, find_state_file
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.report import RowCounts
from airflow_merge_provider.core.run.previous_run import TOKEN
from airflow_merge_provider.core.run.progress import Progress
from airflow_merge_provider.core.run.reporter import RunReporter, RunResult
from airflow_merge_provider.core.table_history import RESTORED_VERSION, UNDO
from airflow_merge_provider.core.undo.choice import UndoChoice, build_refusal
from airflow_merge_provider.core.undo.config import COUNTS, UndoConfig
from airflow_merge_provider.core.undo.decision import NOTHING_IN_FORCE
from airflow_merge_provider.core.undo.files import (
    FilesUndo,
    build_files_result,
    choose_files_undo,
)
from airflow_merge_provider.jobs.merge_record.files.journal import Journal
from airflow_merge_provider.jobs.merge_record.files.storage import Open, Storage
from airflow_merge_provider.jobs.merge_record.withdrawal import (
    UNDO_PLAN,
    carry_out_undo,
    finish_undo,
    read_returned_versions,
)
from airflow_merge_provider.jobs.undo.file_search import FileSearch


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


def undo_files(journal: Journal, opened: Open, request: JobRequest, progress: Progress) -> dict[str, Any]:
    """Undo runs of a merge record, and return the report.

    :raises DataError: when the undo is not possible; nothing is written then.
    :raises ConflictError: when another run is at work.
    """
    config = UndoConfig.parse(request.config)
    target = resolve_dataset(config.target, request.warehouse, at="target")
    reporter = RunReporter(lambda _: None, request, progress, COUNTS, target, {}, None)
    if reporter.is_dry_run:
        return _preview_undo(journal, opened, config, reporter)
    token = request.run.model_dump()
    with journal.lease.hold_lease(token):
        finish_undo(journal, opened, progress)
        for run_data in journal.list_report_data().values():
            if run_data.get(TOKEN) == token and UNDO in run_data:
                return reporter.build_report(_build_retry(run_data), changed=True)
        planned = _plan_undo(journal, opened, config, reporter)
        if planned is None:
            return reporter.build_report(_build_noop())
        undo, result = planned
        journal.write_plan(undo.state.generation, {TOKEN: token, UNDO_PLAN: undo.as_json()})
        carry_out_undo(undo, journal, opened, progress)
    return reporter.build_report(result, changed=True)


def _build_retry(run_data: Mapping[str, Any]) -> RunResult:
    result = RunResult.from_state(run_data)
    return replace(result, reason=f"{result.reason}; an earlier attempt of this run has completed it")


def _preview_undo(
    journal: Journal, opened: Open, config: UndoConfig, reporter: RunReporter
) -> dict[str, Any]:
    planned = _plan_undo(journal, opened, config, reporter)
    return reporter.build_report(_build_noop() if planned is None else planned[1])


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
    report_data = journal.list_report_data()
    choice = choose_files_undo(config, report_data)
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
    _, newest_data = journal.read_state()
    folders: Mapping[str, str] = newest_data.get(FOLDERS) or {}
    return folders.get("merged")
