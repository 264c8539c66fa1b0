"""The order of a run, which is the same for every capability."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.risk import Risk
from airflow_merge_provider.core.run_mode import RunMode
from airflow_merge_provider.jobs.run.change_limit import check_change_limit
from airflow_merge_provider.jobs.run.previous_run import PreviousRun, RunCommit
from airflow_merge_provider.jobs.run.report import RunReporter, RunResult


class JobRun(ABC):
    """One run of a capability over a target as it was found.

    A capability chooses how much is evaluated and evaluates it. What every run has in common is here: an
    earlier attempt is recognised first, a run without work does nothing, a plan reads no rows, a dry run
    and a run that would change too much write nothing.
    """

    reporter: RunReporter

    @property
    def request(self) -> JobRequest:
        """What the run was asked for."""
        return self.reporter.request

    @property
    def last(self) -> PreviousRun | None:
        """The previous run of the target; None if there is no target yet."""
        return self.reporter.previous

    @property
    def is_full(self) -> bool:
        """Whether the run writes all rows of the target."""
        return self.last is None or self.request.full_refresh

    @property
    def next_number(self) -> int:
        """The number that the run's commit will have."""
        return self.last.number + 1 if self.last else 1

    @property
    def is_repeatable(self) -> bool:
        """Whether the same rows may be written again, after the run was cleared."""
        return True

    def finish(self) -> dict[str, Any]:
        """Run, and return the report.

        :raises DataError: if an input, the target or the result is wrong; nothing is written then.
        :raises RiskError: if the run would change too much; nothing is written then.
        :raises ConflictError: if another run committed first; nothing is written then.
        """
        done = self._find_own_commit()
        if done is not None:
            return self.report_retry(done)
        run_mode, reason = self.choose_run_mode()
        if run_mode == "noop":
            return self.report_noop(reason)
        if self.request.until == "plan":
            return self.reporter.build_plan(run_mode, reason, **self.describe_plan())
        return self.execute(run_mode, reason)

    def _find_own_commit(self) -> RunCommit | None:
        if self.last is None:
            return None
        return self.last.own_commit or (None if self.is_repeatable else self.last.cleared_commit)

    def report_retry(self, commit: RunCommit) -> dict[str, Any]:
        """Return the report of a run whose earlier attempt has committed."""
        return self.reporter.build_retry(commit)

    def report_noop(self, reason: str) -> dict[str, Any]:
        """Return the report of a run that has nothing to do."""
        return self.reporter.build_noop(reason)

    @abstractmethod
    def choose_run_mode(self) -> tuple[RunMode, str]:
        """Return how much is evaluated, and why; nothing if the target is up to date."""

    @abstractmethod
    def describe_plan(self) -> dict[str, Any]:
        """Return the details of a run that reads no rows, after checking what can be checked without them."""

    @abstractmethod
    def execute(self, run_mode: RunMode, reason: str) -> dict[str, Any]:
        """Evaluate, write and return the report."""

    def conclude(
        self,
        result: RunResult,
        weigh: Callable[[], Risk],
        write: Callable[[], dict[str, Any]],
        *,
        is_needed: bool = True,
    ) -> dict[str, Any]:
        """Write what was evaluated, unless the run may not or need not, and return the report.

        :raises RiskError: if the run would change too much.
        """
        check_change_limit(self.reporter, weigh, result)
        return write() if is_needed and not self.reporter.is_dry_run else self.reporter.build(result)
