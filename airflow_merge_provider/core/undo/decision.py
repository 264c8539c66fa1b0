"""Decide which runs an undo reverts, and whether there is anything to undo."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.population import WRITER
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.report import Details, Report, RowCounts
from airflow_merge_provider.core.run.columns import ReadFields
from airflow_merge_provider.core.run.decision import RunDecision
from airflow_merge_provider.core.run.previous_run import (
    HAS_UNNAMED_SIDE_TABLES,
    UNNAMED,
    RunCommit,
    list_state_commits,
    load_previous_run,
)
from airflow_merge_provider.core.run.reporter import Progress, RunReporter, RunResult
from airflow_merge_provider.core.run.table_log import TableLog, count_pinned, refuse_missing_dataset
from airflow_merge_provider.core.run_mode import RunMode
from airflow_merge_provider.core.table_history import NO_VERSION, trace_lineage
from airflow_merge_provider.core.undo.choice import (
    SideTableVersion,
    UndoChoice,
    choose_undo,
    describe_run,
    list_side_tables,
)
from airflow_merge_provider.core.undo.config import COUNTS, UndoConfig
from airflow_merge_provider.core.undo.load_removal import LoadRemoval, find_removal


def is_truncate(report: Report) -> bool:
    """Return whether the target has no rows afterwards, as before its first run."""
    return bool(report.details.get("restored_version") == NO_VERSION)


NOTHING_IN_FORCE = "no run of the target is in force"
_NAMED_RUNS_MAX = 20


@dataclass(frozen=True)
class UndoDecision(RunDecision):
    """The decision about one undo.

    ``restored_run`` is the run whose rows the target has afterwards; None if there is none. ``removal`` is
    the load that is taken out of a history, instead of a version that is restored.
    """

    config: UndoConfig
    capability: str
    choice: UndoChoice | None
    restored_run: RunCommit | None
    reporter: RunReporter
    removal: LoadRemoval | None = None

    def choose_run_mode(self) -> tuple[RunMode, str]:
        """Return ``undo``, or ``noop`` if no run of the target is in force."""
        if self.removal is not None:
            return "undo", f"the load of {self.removal.load_time.isoformat()} is taken out of the history"
        if self.choice is None:
            return "noop", NOTHING_IN_FORCE
        self.reporter.add_warnings(self.choice.list_warnings())
        if self.choice.version == NO_VERSION:
            return "undo", "the target has no rows, as before its first run"
        return "undo", f"the target is as in version {self.choice.version}"

    def check_inputs(self, read_fields: ReadFields) -> None:
        """Do nothing: the history contains everything."""

    @property
    def side_tables(self) -> list[SideTableVersion]:
        """The side tables that go back to another version."""
        target, choice, run = self.reporter.target, self.choice, self.restored_run
        state = {} if run is None else run.state
        # The commit of the run that wrote the restored rows may have aged out, or that of a run before.
        is_expired = run is None and choice is not None and choice.version != NO_VERSION
        absent = UNNAMED if is_expired or HAS_UNNAMED_SIDE_TABLES in state else None
        return list(list_side_tables(target, self.state, state, absent))

    @property
    def restored_number(self) -> int:
        """The number of the run whose rows the target has afterwards, or the one before the undone runs."""
        if self.restored_run is not None:
            return int(self.restored_run.state["number"])
        undone = () if self.choice is None else self.choice.undone
        return min((int(run.state["number"]) for run in undone), default=1) - 1

    def build_result(self) -> RunResult:
        """Return the result of the undo, for its commit and its report."""
        choice = self.choice
        if choice is None:
            raise ValueError(NOTHING_IN_FORCE)
        run_mode, reason = self.choose_run_mode()
        details = {
            "undone": [describe_run(run) for run in choice.undone[:_NAMED_RUNS_MAX]],
            "restored": [describe_run(run) for run in choice.restored[:_NAMED_RUNS_MAX]],
            "restored_version": choice.version,
        }
        counts = {"runs": len(choice.undone), "side_tables": len(self.side_tables)}
        return RunResult(run_mode, reason, self._invert_rows(choice), counts, details)

    def build_removal_result(
        self, rows: RowCounts, versions: Mapping[str, int], side_tables: int
    ) -> RunResult:
        """Return the result of an undo that takes a load out of a history.

        :param versions: how many versions change, by kind.
        :param side_tables: how many side tables change.
        """
        if self.removal is None:
            raise ValueError(NOTHING_IN_FORCE)
        run_mode, reason = self.choose_run_mode()
        details = {**self.describe_removal(self.removal), "versions": dict(versions)}
        return RunResult(run_mode, reason, rows, {"runs": 1, "side_tables": side_tables}, details)

    def describe_removal(self, removal: LoadRemoval) -> Details:
        """Return the run that is undone alone, and the time of its load."""
        return {
            "undone": [describe_run(removal.run)],
            "restored": [],
            "restored_version": None,
            "load_time": removal.load_time.isoformat(),
        }

    def report_dry_run(self) -> Report | None:
        """Return the report of a dry run, which reads no rows unless a load is taken out of a history."""
        if self.removal is not None or not self.reporter.is_dry_run:
            return None
        return self.reporter.build_report(self.build_result())

    def _invert_rows(self, choice: UndoChoice) -> RowCounts:
        """Return the effect of the undo on rows: the inverse of one run; unknown for several."""
        if len(choice.undone) != 1 or choice.restored or choice.foreign:
            return RowCounts()
        rows = RunResult.from_state(choice.undone[0].state).rows
        return RowCounts(
            inserted=rows.deleted, updated=rows.updated, deleted=rows.inserted, unchanged=rows.unchanged
        )


def open_run(log: TableLog, config: UndoConfig, request: JobRequest, progress: Progress) -> UndoDecision:
    """Find the runs of a target, and return the decision about the undo.

    :raises DataError: if the target does not exist or was written by another program, or if the undo is not
        possible.
    :raises RequiresSparkError: if only Spark can read the target.
    """
    target = resolve_dataset(config.target, request.warehouse, at="target")
    properties = log.find_properties(target)
    if properties is None:
        raise refuse_missing_dataset(target)
    capability = _require_writer(target.uri, properties)
    last = load_previous_run(log, target, capability, request)
    history = log.read_history(target, None)
    lineage = trace_lineage(history, partial(log.find_restored_version, target))
    is_retry = last is not None and last.own_commit is not None
    removal = None
    if config.only and config.run is not None and not is_retry:
        removal = find_removal(config.run, capability, history, lineage)
    choice = None if is_retry or removal else choose_undo(config, capability, history, lineage)
    reporter = RunReporter(count_pinned(log), request, progress, COUNTS, target, {}, last)
    restored_run = None
    if choice is not None:
        then = [entry for entry in history if entry.version <= choice.version]
        lineage_then = trace_lineage(then, partial(log.find_restored_version, target))
        restored_run = next(iter(list_state_commits(lineage_then.entries, capability)), None)
    return UndoDecision(config, capability, choice, restored_run, reporter, removal)


def _require_writer(uri: str, properties: Mapping[str, str]) -> str:
    writer = properties.get(WRITER)
    if writer is not None:
        return writer
    hint = "use RESTORE TABLE to undo the commits of other programs"
    message = f"{uri} was not written by a run of this package"
    raise DataError.from_problems([Problem("target", "foreign-target", message, hint)])
