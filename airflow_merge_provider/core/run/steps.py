"""The steps of a run in their order, which the task takes from logs alone, and a job with Spark.

The task stops with ``RequiresSparkError`` at the first step that needs Spark. Then the job takes all of them.
Source: CONTRIBUTING.md, A run, from the operator to the commit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.report import Details, Report
from airflow_merge_provider.core.run.decision import RunDecision
from airflow_merge_provider.core.run.population_check import PopulationCheck, check_part, check_population
from airflow_merge_provider.core.run.previous_run import PreviousRun, RunCommit
from airflow_merge_provider.core.run.reporter import Progress, RunReporter
from airflow_merge_provider.core.run.table_log import TableLog
from airflow_merge_provider.core.run_mode import RunMode

Run = Callable[[JobRequest], Report]


class ChangeFlag(Protocol):
    """Mark a table as populated, or remove the mark."""

    def __call__(self, target: Dataset, *, is_set: bool) -> None: ...


def run_with_population(
    log: TableLog, request: JobRequest, progress: Progress, run: Run, change_flag: ChangeFlag
) -> Report:
    """Take all steps of a run, and mark its output as populated if the request requires it.

    If the rows name the tables of the target, each of them has a flag of its own, which its part sets.

    :param run: takes the steps between the check and the flag.
    :raises DataError: if the source must be populated and is not; the run has not started then.
    """
    population = request.population
    if population is None or request.until != "commit":
        return run(request)
    with progress.time_step("check population"):
        check = check_population(log, population, request.warehouse)
    if request.config.get("dispatch_by") is not None:
        return run(request.model_copy(update={"population": check.parts_population}))
    return _run_checked(log, request, check, run, change_flag)


def run_part(log: TableLog, request: JobRequest, part: Dataset, run: Run, change_flag: ChangeFlag) -> Report:
    """Take the steps of a run that writes one of the tables of its target, with the flag of this table."""
    if request.population is None or request.until != "commit":
        return run(request)
    return _run_checked(log, request, check_part(log, request.population, part), run, change_flag)


def _run_checked(
    log: TableLog, request: JobRequest, check: PopulationCheck, run: Run, change_flag: ChangeFlag
) -> Report:
    flagged_uri = check.target.uri if check.is_set_before and not check.is_set else None
    fields = {"creates_populated": check.becomes_populated, "flagged_uri": flagged_uri}
    report = run(request.model_copy(update=fields))
    is_populated = check.is_set_after and (check.is_set or log.find_properties(check.target) is not None)
    if is_populated != check.is_set:
        change_flag(check.target, is_set=is_populated)
    return report.with_population(populated=is_populated, became_populated=is_populated and not check.is_set)


class RunSteps(ABC):
    """The steps of one run after its inputs were found, as one process takes them.

    The decision of the capability says how much is evaluated. All runs share the rest: an earlier attempt is
    recognised first, a run without work does nothing, and a plan reads no rows.
    """

    decision: RunDecision

    @property
    def reporter(self) -> RunReporter:
        """The builder of the run's report."""
        return self.decision.reporter

    @property
    def request(self) -> JobRequest:
        """The request of the run."""
        return self.decision.request

    @property
    def last(self) -> PreviousRun | None:
        """The previous run of the target; None if there is no target yet."""
        return self.decision.last

    def run_to_end(self) -> Report:
        """Execute the run, and return the report.

        :raises ConfigError: if the configuration does not suit the previous run or the columns.
        :raises DataError: if an input, the target or the result is wrong; nothing is written then.
        :raises RiskError: if the run would exceed the change limit; nothing is written then.
        :raises ConflictError: if another run committed first; nothing is written then.
        :raises RequiresSparkError: in a task, if the run has work, or if logs do not tell.
        """
        decision = self.decision
        commit = decision.find_own_commit()
        if commit is not None:
            return self.report_retry(commit)
        run_mode, reason = decision.choose_run_mode()
        if run_mode == "noop":
            return self._keep_state(self.report_noop(reason))
        if (report := decision.report_dry_run()) is not None:
            return report
        self.check_inputs()
        if self.request.until == "plan":
            return self.reporter.build_plan(run_mode, reason, self.describe_plan())
        return self._keep_state(self.execute(run_mode, reason))

    def _keep_state(self, report: Report) -> Report:
        """Commit the state of the previous run again if the log may lose it and this run has no commit."""
        last = self.last
        if last is not None and last.is_expiring and report.target.version == last.version:
            self.renew_state(last)
        return report

    def report_retry(self, commit: RunCommit) -> Report:
        """Return the report of a run whose earlier attempt has committed."""
        return self.decision.report_retry(commit)

    def report_noop(self, reason: str) -> Report:
        """Return the report of a run without work."""
        return self.decision.report_noop(reason)

    @abstractmethod
    def check_inputs(self) -> None:
        """Check what every run with work needs of its inputs.

        :raises ConfigError: if the configuration does not suit the columns.
        :raises DataError: if an input is wrong.
        """

    @abstractmethod
    def describe_plan(self) -> Details:
        """Return the details of a run that reads no rows, after all checks that need no rows."""

    @abstractmethod
    def execute(self, run_mode: RunMode, reason: str) -> Report:
        """Evaluate, write and return the report."""

    @abstractmethod
    def renew_state(self, last: PreviousRun) -> None:
        """Commit the state of the previous run again, without rows, so that the log keeps it."""
