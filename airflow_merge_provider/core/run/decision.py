"""Decide, before any row is read, whether a run has anything to do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from airflow_merge_provider.core.errors import DataError, Problem, UnrevertedError
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.report import Report
from airflow_merge_provider.core.run.columns import ReadFields
from airflow_merge_provider.core.run.previous_run import RESULT, VERSION_BEFORE, PreviousRun, RunCommit
from airflow_merge_provider.core.run.reporter import RunReporter
from airflow_merge_provider.core.run.table_log import PinnedDataset, describe_change, describe_unreverted
from airflow_merge_provider.core.run_mode import RunMode
from airflow_merge_provider.core.source_offset import RunState


class RequiresSparkError(Exception):
    """Raised if only a Spark job can determine what a run has to do; the message is the reason."""


class RunDecision(ABC):
    """The decision of a capability about one run, from the logs of its target and its sources alone.

    The task takes it before it starts Spark. If there is work to do, or if the logs do not tell, the job
    takes it again (``core/run/steps.py``).
    """

    reporter: RunReporter
    # What a full refresh does after a cleared run, for the hint of a refusal.
    refresh_effect: ClassVar[str] = "replace all rows"

    @property
    def request(self) -> JobRequest:
        """The request of the run."""
        return self.reporter.request

    @property
    def last(self) -> PreviousRun | None:
        """The previous run of the target; None if there is no target yet."""
        return self.reporter.previous

    @property
    def state(self) -> RunState:
        """The state that the previous run left; empty if there was none, or if it has aged out."""
        return self.last.state if self.last else {}

    @property
    def is_repeatable(self) -> bool:
        """Whether the same rows may be written again after the run was cleared."""
        return True

    @property
    def has_repairs(self) -> bool:
        """Whether a run without work still checks other tables, which only a job can repair."""
        return False

    def find_own_commit(self) -> RunCommit | None:
        """Return the commit of an earlier attempt of this run, if there is one.

        :raises DataError: if the run was cleared and the history does not tell whether it has appended rows.
        :raises UnrevertedError: if that commit does not include the change of another writer.
        """
        if self.last is None:
            return None
        own, overlooked = self.last.own_commit, self.last.overlooked
        if own is not None and own.version == self.last.run_version and overlooked is not None:
            since, state = own.state[RESULT][VERSION_BEFORE], describe_unreverted(own.version)
            problem = describe_change(self.reporter.target, since, overlooked, state)
            raise UnrevertedError.from_problems([problem])
        if own is not None or self.is_repeatable:
            return own
        cleared_commit, is_cleared = self.last.cleared_commit, self.request.run.is_cleared
        # A run of a backfill is new, although it stands for a time before the history.
        is_unknown = cleared_commit is None and is_cleared and not self.last.is_searched
        if is_unknown and not self.request.full_refresh:
            raise self._refuse_repetition()
        return cleared_commit

    def _refuse_repetition(self) -> DataError:
        message = (
            f"the history of {self.reporter.target.uri} begins after this DAG run: nobody can tell whether "
            "the run has appended its rows"
        )
        hint = (
            f"append them with a new DAG run, {self.refresh_effect} with full_refresh=True, "
            "or raise delta.logRetentionDuration for later runs"
        )
        return DataError.from_problems([Problem("target", "repeated", message, hint)])

    @abstractmethod
    def choose_run_mode(self) -> tuple[RunMode, str]:
        """Return the run mode and the reason for it; ``noop`` if the target is up to date."""

    @abstractmethod
    def check_inputs(self, read_fields: ReadFields) -> None:
        """Check, before Spark starts, the sources and the columns that a run with work needs.

        :raises ConfigError: if the configuration does not suit the columns.
        :raises DataError: if a source does not exist, or if its columns do not suit the target.
        """

    @property
    def pinned_target(self) -> PinnedDataset | None:
        """The target as the run found it; None if the run reads no rows of it."""
        if self.last is None or self.request.full_refresh:
            return None
        return PinnedDataset(self.reporter.target, self.last.version)

    def report_retry(self, commit: RunCommit) -> Report:
        """Return the report of a run whose earlier attempt has committed."""
        return self.reporter.build_retry(commit)

    def report_noop(self, reason: str) -> Report:
        """Return the report of a run without work."""
        return self.reporter.build_noop(reason)

    def report_dry_run(self) -> Report | None:
        """Return the report of a run with work that stops before its commit, if logs alone tell it."""
        return None
