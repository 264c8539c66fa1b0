"""The steps of a run in a job, from its result to its commit, which are the same for every capability."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import cache, cached_property, partial

from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.capabilities import list_internal_columns
from airflow_merge_provider.core.change_plan.saved_plan import SavedPlan, describe_outdated
from airflow_merge_provider.core.errors import OutdatedPlanError, Problem
from airflow_merge_provider.core.expectations.config import EXPECT, parse_expectations
from airflow_merge_provider.core.report import Report, RowCounts
from airflow_merge_provider.core.risk import Risk, RiskError
from airflow_merge_provider.core.run.previous_run import PreviousRun
from airflow_merge_provider.core.run.reporter import RunResult
from airflow_merge_provider.core.run.steps import RunSteps
from airflow_merge_provider.jobs.delta.writer import WriteOptions
from airflow_merge_provider.jobs.run.change_set import ChangeSet, describe_examples
from airflow_merge_provider.jobs.run.expectations import RunExpectations
from airflow_merge_provider.jobs.run.plan_table import identify_rows, save_plan
from airflow_merge_provider.jobs.run.retry import renew_state


class JobRun(RunSteps):
    """One run of a capability over a target as it was found, in a job.

    Beside the steps of every process it has those from the result to the commit: a dry run or a run that
    exceeds the change limit writes nothing.
    """

    spark: SparkSession

    @property
    def write_options(self) -> WriteOptions:
        """How the run writes its tables."""
        return WriteOptions.from_request(self.request)

    @property
    def is_full(self) -> bool:
        """Whether the run reads no rows of the target and writes all of its rows."""
        return self.last is None or self.request.full_refresh

    @property
    def is_overwrite(self) -> bool:
        """Whether the run's commit replaces all rows of the target."""
        return self.is_full

    @property
    def rows_before(self) -> int | None:
        """The number of rows that the run found in the target; None if only a scan can determine it."""
        return self.reporter.rows_before

    @property
    def next_number(self) -> int:
        """The transaction number of the run's commit."""
        return self.last.number + 1 if self.last else 1

    @cached_property
    def expectations(self) -> RunExpectations:
        """The expectations of the run, and the rows that it leaves out."""
        return RunExpectations(parse_expectations(self.request.config.get(EXPECT)), self.reporter)

    def check_inputs(self) -> None:
        """Check nothing: most capabilities check while they read."""

    def renew_state(self, last: PreviousRun) -> None:
        with self.reporter.progress.time_step("keep state"):
            renew_state(self.spark, self.reporter.target, self.request.job, last, self.write_options)

    @abstractmethod
    def count_live_rows(self) -> int:
        """Return how many rows the run found in the target, by a scan if necessary."""

    def count_rows(self, inserted: int | None, updated: int = 0, deleted: int = 0) -> RowCounts:
        """Return the effect of the commit on the rows of the target, given the rows that it writes."""
        rows_before = self.rows_before
        if self.is_overwrite:
            return RowCounts.for_overwrite(rows_before=rows_before, rows_after=inserted)
        return RowCounts.for_change(
            rows_before=rows_before, inserted=inserted, updated=updated, deleted=deleted
        )

    @property
    def needs_changes(self) -> bool:
        """Whether the run may need its change set: to show it, to have it approved, or to compare it."""
        request = self.request
        is_reviewed = request.approval != "never" or request.saved_plan is not None
        return self.reporter.is_dry_run or is_reviewed or bool(self.expectations.on_changes)

    def needs_commit(self, result: RunResult) -> bool:
        """Return whether the run commits: it changes rows, or has read or left out records.

        A run whose records change no row commits its source offsets alone, without a file, so that no later
        run reads these records again. A run without records commits nothing.
        """
        return result.changed or result.records > 0 or self.has_rejected_rows()

    def commit_result(
        self,
        result: RunResult,
        write: Callable[[], Report],
        list_changes: Callable[[], ChangeSet],
        *,
        is_needed: bool = False,
    ) -> Report:
        """Write the result, unless the run may not or need not write, and return the report.

        :param list_changes: computes the change set, if the run needs it.
        :param is_needed: whether ``write`` is needed even if the run changes no row and has read no record.
        :raises DataError: if the changes do not meet an expectation; nothing is written then.
        :raises RiskError: if the run would exceed the change limit, needs the approval of a person, or
            applies a plan that is outdated; nothing is written then but the plan.
        """
        is_needed = is_needed or self.needs_commit(result)
        list_changes = cache(partial(self._complete_changes, list_changes, is_needed=is_needed))
        if self.expectations.on_changes:
            self.expectations.check_changes(list_changes().rows)
        risk = self._find_risk(result)
        limit = self.request.max_change_ratio
        if self.reporter.is_dry_run:
            if risk is not None:
                self.reporter.add_warnings(risk.list_warnings(limit))
            return self._plan_changes(result, list_changes, is_saved=self.request.save_plan)
        if self.request.saved_plan is not None:
            self._require_planned_changes(self.request.saved_plan, list_changes)
        elif self.request.approval != "always":
            if risk is not None:
                is_saved = self.request.approval == "on_risk"
                risk.check_limit(limit, lambda: self._plan_changes(result, list_changes, is_saved=is_saved))
        elif is_needed:
            self._require_approval(result, list_changes)
        return write() if is_needed else self.reporter.build_report(result)

    def hold_rows(self, rows: DataFrame) -> DataFrame:
        """Return rows that are computed once, if the run shows or compares them before it writes them.

        A second read of plain files may find other rows, and a function such as ``now`` has another value.
        """
        return rows.localCheckpoint(eager=False) if self.needs_changes else rows

    def _complete_changes(self, list_changes: Callable[[], ChangeSet], *, is_needed: bool) -> ChangeSet:
        """Return the change set with everything else that the commit writes, if there is one."""
        changes = list_changes()
        if not is_needed:
            return changes
        columns = ["creates the table"] if self.last is None else changes.list_column_changes()
        other = [*columns, *changes.other_changes]
        if self.last is not None and self.last.is_adopted:
            other.append("takes over the table of another program")
        changes = self.expectations.add_rejected_rows(changes, self.last, self.next_number)
        other += changes.list_removals(self.request.started_at)
        return replace(changes, other_changes=other)

    def has_rejected_rows(self) -> bool:
        """Return whether the run has to record rows that it leaves out."""
        return self.expectations.has_rejected_rows(self.last, self.next_number)

    def save_rejected_rows(self) -> dict[str, int]:
        """Save the rows that the run leaves out, before its commit, which records the returned version."""
        return self.expectations.save_rejected_rows(self.last, self.next_number)

    def _find_risk(self, result: RunResult) -> Risk | None:
        """Return how many rows of the target the run would write; None without a change limit or a target."""
        if self.request.max_change_ratio is None or self.last is None:
            return None
        rows_before, rows = self.count_live_rows(), result.rows
        if self.is_overwrite:
            return Risk.for_overwrite(rows.inserted or 0, rows_before)
        return Risk((rows.inserted or 0) + (rows.updated or 0) + (rows.deleted or 0), rows_before)

    def _plan_changes(
        self, result: RunResult, list_changes: Callable[[], ChangeSet], *, is_saved: bool
    ) -> Report:
        """Return the report with the changes of the run, and save them if that is required."""
        with self.reporter.progress.time_step("list changes"):
            changes = list_changes()
            with changes.hold_text() as text_rows:
                summary = describe_examples(changes, changes.summarize(text_rows)).mask_rows()
                internal_columns = (*list_internal_columns(self.request.job), *changes.name_columns)
                summary = summary.model_copy(update={"internal_columns": internal_columns})
                if is_saved:
                    summary = save_plan(self.reporter, text_rows, summary)
        return self.reporter.build_report(result, plan=summary)

    def _require_approval(self, result: RunResult, list_changes: Callable[[], ChangeSet]) -> None:
        """Stop a run that writes anything but the offsets of its sources, so that a person can approve it.

        :raises RiskError: if the run would write.
        """
        report = self._plan_changes(result, list_changes, is_saved=True)
        if report.plan is not None and report.plan.has_changes:
            hint = "approve it in the Airflow UI, or apply the saved plan"
            problem = Problem("approve", "approval", "the run needs the approval of a person", hint)
            raise RiskError.from_problem(problem, report)

    def _require_planned_changes(self, saved_plan: SavedPlan, list_changes: Callable[[], ChangeSet]) -> None:
        """Compare the changes of the run, and the rows they are made to, with the plan that it applies.

        :raises OutdatedPlanError: if they differ.
        """
        settings = saved_plan.list_changed_settings(
            self.request.config, full_refresh=self.request.full_refresh
        )
        changes = list_changes()
        with self.reporter.progress.time_step("compare with plan"), changes.hold_text() as text_rows:
            is_same_target = identify_rows(text_rows.sparkSession, self.reporter) == saved_plan.rows_id
            is_same = is_same_target and changes.summarize(text_rows).digest == saved_plan.digest
        if is_same and not settings:
            return
        versions = saved_plan.target_version, self.reporter.version_before
        reason = "the changes are not those of the plan"
        if settings:
            reason = f"the configuration has changed ({', '.join(settings)})"
        elif versions[0] != versions[1]:
            reason = f"the target was at version {versions[0]} and is at version {versions[1]} now"
        elif not is_same_target:
            reason = "the target is another table"
        raise OutdatedPlanError.from_problems([describe_outdated(reason)])
