"""The report of a failed run, as Airflow shows it: the error, its remedy, and what became of the target.

It says only what is known: a run whose process disappeared may have committed, which the log of its target
shows if it can be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from airflow_merge_provider.core.errors import (
    ConfigError,
    ConflictError,
    JobError,
    MergeError,
    Problem,
    UnrevertedError,
)
from airflow_merge_provider.core.expectations.result import ExpectationError, ExpectationResult
from airflow_merge_provider.core.report import count_bytes, cut_text
from airflow_merge_provider.core.risk import RiskError

# The XCom key of the report of a failed run, and the limit of its bytes.
FAILURE_KEY = "merge_failure"
FAILURE_MAX_BYTES = 48 << 10
_MESSAGE_MAX_BYTES = 40_000
# The codes of errors after which a run may have committed.
_UNCERTAIN = (JobError.code, UnrevertedError.code)


class TargetState(NamedTuple):
    """What the log of a target says after a failed run: its newest version, and the one of the run.

    ``version`` is None if there is no table, ``own_version`` if no commit of the run is in force.
    ``is_changed`` is true if the newest commit is newer than the run: another writer has changed the table.
    ``has_parts`` is true if the run commits several times, so that it may have written some of its result;
    the log of one table does not tell that.
    """

    version: int | None
    own_version: int | None = None
    is_changed: bool = False
    has_parts: bool = False


class FailureReport(BaseModel):
    """The report of a failed run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    job: str = Field(description="The capability that ran.")
    dataset: str | None = Field(description="The target as it is named in the configuration.")
    code: str = Field(description="The code of the error.")
    message: str = Field(description="The error with all of its problems, and what to do about them.")
    problems: list[Problem] = Field(
        description="The problems: `path`, `code`, `message`, and in `hint` what to do."
    )
    retryable: bool = Field(description="Whether a retry can succeed.")
    dry_run: bool = Field(description="Whether the run would have written nothing, as a dry run or a check.")
    version: int | None = Field(description="The version of the target after the failure; null if unknown.")
    outcome: str = Field(description="What became of the target, as far as it is known.")
    page: str | None = Field(None, description="The page of the documentation that lists the errors.")
    expectations: list[ExpectationResult] = Field([], description="The expectations that stopped the run.")
    truncated: list[str] = Field([], description="What was left out because the report was too long.")

    def list_log_lines(self) -> list[str]:
        """Return the lines with which the log of the task ends."""
        return [self.message, self.outcome, *([f"errors and remedies: {self.page}"] if self.page else [])]


def build_failure_report(
    error: MergeError,
    *,
    job: str,
    dataset: str | None,
    dry_run: bool,
    state: TargetState | None,
    page: str | None = None,
) -> FailureReport:
    """Return the report of a failed run.

    :param state: what the log of the target says; None if it is not known.
    :param page: the page of the documentation that lists the errors.
    """
    report = FailureReport(
        job=job,
        dataset=dataset,
        code=error.code,
        message=error.message,
        problems=list(error.problems),
        retryable=error.retryable,
        dry_run=dry_run,
        version=state.version if state else None,
        outcome=describe_outcome(dataset, error.code, state, dry_run=dry_run),
        page=page,
        expectations=error.report.expectations if isinstance(error, RiskError | ExpectationError) else [],
    )
    return _truncate_failure(report)


def describe_outcome(dataset: str | None, code: str, state: TargetState | None, *, dry_run: bool) -> str:
    """Return a sentence about what became of the target.

    >>> describe_outcome("golden", "data", TargetState(2), dry_run=False)
    'golden is untouched at version 2'
    """
    name = dataset or "the target"
    if state is not None and state.has_parts:
        if not dry_run and code != ConfigError.code:
            return f"the run may have written a part of {name}: the next run writes what is missing"
        state = None
    if state is not None and state.own_version is not None:
        return f"this run has committed version {state.own_version} of {name}"
    is_certain = dry_run or code not in _UNCERTAIN
    if code == ConflictError.code or (is_certain and state is not None and state.is_changed):
        at_version = "" if state is None or state.version is None else f"; it is at version {state.version}"
        return f"nothing of this run is in {name}{at_version}"
    if state is None:
        unknown = f"it is not known whether the run has written to {name}: see its history"
        return f"nothing was written to {name}" if is_certain else unknown
    if state.version is None:
        return f"{name} does not exist yet{': nothing was written' if is_certain else ''}"
    result = f"at version {state.version}, and its log has no commit of this run"
    return f"{name} is {f'untouched at version {state.version}' if is_certain else result}"


def _truncate_failure(report: FailureReport) -> FailureReport:
    """Return a report of limited size: without examples first, then with fewer problems."""
    expectations = [item.model_copy(update={"examples": []}) for item in report.expectations]
    steps: tuple[tuple[str, Mapping[str, object]], ...] = (
        ("expectations.examples", {"expectations": expectations}),
        ("problems", {"problems": report.problems[:1]}),
        ("expectations", {"expectations": []}),
        ("message", {"message": cut_text(report.message, _MESSAGE_MAX_BYTES), "problems": []}),
    )
    for name, changes in steps:
        if count_bytes(report) <= FAILURE_MAX_BYTES:
            break
        report = report.model_copy(update={**changes, "truncated": [*report.truncated, name]})
    return report
