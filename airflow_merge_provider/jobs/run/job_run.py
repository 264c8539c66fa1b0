"""Define the order of the steps of a run, which is the same for every capability."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.report import RowCounts
from airflow_merge_provider.core.risk import Risk
from airflow_merge_provider.core.run.decision import RunDecision
from airflow_merge_provider.core.run.previous_run import PreviousRun, RunCommit
from airflow_merge_provider.core.run.reporter import RunReporter, RunResult
from airflow_merge_provider.core.run_mode import RunMode


class JobRun(ABC):
    """One run of a capability over a target as it was found.

    The decision of a capability says how much is evaluated, and the capability evaluates it. This class
    implements what all runs share: an earlier attempt is recognised first, a run without work does nothing, a
    plan reads no rows, and a dry run or a run that exceeds the change limit writes nothing.
    """

    decision: RunDecision

    @property
    def reporter(self) -> RunReporter:
        """The builder of the run's report."""
        return self.decision.reporter

    @property
    def request(self) -> JobRequest:
        """The request of the run."""
        return self.reporter.request

    @property
    def last(self) -> PreviousRun | None:
        """The previous run of the target; None if there is no target yet."""
        return self.reporter.previous

    @property
    def state(self) -> Mapping[str, Any]:
        """The state that the previous run left; empty if there was none, or if it has aged out."""
        return self.last.state if self.last else {}

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

    def run_to_end(self) -> dict[str, Any]:
        """Execute the run, and return the report.

        :raises DataError: if an input, the target or the result is wrong; nothing is written then.
        :raises RiskError: if the run would exceed the change limit; nothing is written then.
        :raises ConflictError: if another run committed first; nothing is written then.
        """
        commit = self.decision.find_own_commit()
        if commit is not None:
            return self.report_retry(commit)
        run_mode, reason = self.decision.choose_run_mode()
        if run_mode == "noop":
            return self.report_noop(reason)
        self.check_inputs()
        if self.request.until == "plan":
            return self.reporter.build_plan(run_mode, reason, **self.describe_plan())
        return self.execute(run_mode, reason)

    def report_retry(self, commit: RunCommit) -> dict[str, Any]:
        """Return the report of a run whose earlier attempt has committed."""
        return self.decision.report_retry(commit)

    def report_noop(self, reason: str) -> dict[str, Any]:
        """Return the report of a run without work."""
        return self.decision.report_noop(reason)

    def check_inputs(self) -> None:  # noqa: B027 - most capabilities check while they read
        """Check what every run with work needs of its inputs.

        :raises DataError: if an input is wrong.
        """

    @abstractmethod
    def describe_plan(self) -> dict[str, Any]:
        """Return the details of a run that reads no rows, after all checks that need no rows."""

    @abstractmethod
    def execute(self, run_mode: RunMode, reason: str) -> dict[str, Any]:
        """Evaluate, write and return the report."""

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

    def commit_result(
        self, result: RunResult, write: Callable[[], dict[str, Any]], *, is_needed: bool = True
    ) -> dict[str, Any]:
        """Write the result, unless the run may not or need not write, and return the report.

        :raises RiskError: if the run would exceed the change limit.
        """
        self._check_change_limit(result)
        return write() if is_needed and not self.reporter.is_dry_run else self.reporter.build_report(result)

    def _check_change_limit(self, result: RunResult) -> None:
        """Check the number of rows that the run would write against the change limit.

        A dry run gets a warning. The report of a run that is stopped contains the planned changes, so that a
        person can approve them.
        """
        limit = self.request.max_change_ratio
        if limit is None or self.last is None:
            return
        rows_before, rows = self.count_live_rows(), result.rows
        if self.is_overwrite:
            risk = Risk.for_overwrite(rows.inserted or 0, rows_before)
        else:
            risk = Risk((rows.inserted or 0) + (rows.updated or 0) + (rows.deleted or 0), rows_before)
        if self.reporter.is_dry_run:
            self.reporter.add_warnings(risk.list_warnings(limit))
        elif risk.is_above(limit):
            risk.check_limit(limit, self.reporter.build_report(result))
