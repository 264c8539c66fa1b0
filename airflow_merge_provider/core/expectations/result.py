"""The outcome of the expectations of a run, for its report, its warnings and its errors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from airflow_merge_provider.core.errors import DataError, Problem, format_count
from airflow_merge_provider.core.expectations.config import Action, Expectation, Kind, Scope

_RUN_CHANGES = "the changes of the run"
# What a run does with rows that do not meet an expectation with the action quarantine.
REJECTED_ROWS = "these rows are left out, and saved in the table of rejected rows"
REJECTED_FILES = "their files are moved to the failure folder"


class ExpectationResult(BaseModel):
    """How many rows of a source, or of the changes, an expectation was checked on, and how many failed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description="The name of the expectation.")
    on: Scope = Field(description="`source`: rows of a source; `changes`: rows that the run changes.")
    source: str | None = Field(description="The source; null for changes.")
    kind: Kind = Field(description="The kind of the condition, such as `condition` or `unique`.")
    action: Action = Field(description="The effect on rows that fail: `warn`, `quarantine` or `fail`.")
    condition: str = Field(description="The condition.")
    columns: list[str] = Field([], description="The columns, if the expectation names them.")
    rows: int = Field(description="The number of rows that were checked.")
    failed: int = Field(description="The number of rows that do not meet the condition.")
    newest: int | None = Field(
        None, description="Freshness: the newest time, in microseconds since 1970 UTC; null without a time."
    )
    examples: list[dict[str, Any]] = Field([], description="Some of the rows that do not meet the condition.")

    @property
    def success(self) -> bool:
        """Whether all rows meet the condition."""
        return self.failed == 0

    def describe_failure(self) -> str:
        """Return a sentence that says how many rows fail which condition, with an example."""
        where = _RUN_CHANGES if self.source is None else f"the source {self.source!r}"
        if self.kind == "freshness":
            newest = "there is no time"
            if self.newest is not None:
                newest = f"the newest time is {_to_text(self.newest)}"
            return f"{where} is not fresh: {newest}, but the condition is: {self.condition}"
        example = f", for example {_to_example(self.examples[0])}" if self.examples else ""
        verb = "does" if self.failed == 1 else "do"
        rows = f"{self.failed} of {format_count(self.rows, 'row')} of {where}"
        return f"{rows} {verb} not meet: {self.condition}{example}"


class FailedExpectations(BaseModel):
    """The expectations that stopped a run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    expectations: list[ExpectationResult] = []


class ExpectationError(DataError):
    """Raised when rows do not meet expectations with the action ``fail``, which are in ``report``."""

    def __init__(
        self, message: str, problems: Iterable[Problem] = (), report: FailedExpectations | None = None
    ) -> None:
        super().__init__(message, problems)
        self.report = report or FailedExpectations()


def build_result(
    expectation: Expectation,
    source: str | None,
    *,
    rows: int,
    failed: int,
    newest: int | None = None,
    examples: Sequence[dict[str, Any]] = (),
) -> ExpectationResult:
    """Return the result of one expectation on one source, or on the changes if ``source`` is None."""
    return ExpectationResult(
        name=expectation.name,
        on=expectation.scope,
        source=source,
        kind=expectation.kind,
        action=expectation.action,
        condition=expectation.describe_condition(),
        columns=list(expectation.columns),
        rows=rows,
        failed=failed,
        newest=newest,
        examples=list(examples),
    )


def check_freshness(expectation: Expectation, newest: int | None, now: int) -> bool:
    """Return whether the newest time of a source is recent enough; both times are in microseconds."""
    return newest is not None and now - newest <= expectation.max_age.total_seconds() * 1_000_000


def list_warnings(results: Iterable[ExpectationResult], rejection: str = REJECTED_ROWS) -> list[str]:
    """Return a warning for each expectation that fails without stopping the run.

    :param rejection: what the run does with rows that do not meet an expectation with the action
        ``quarantine``.
    """
    effects = {"warn": "", "quarantine": f"; {rejection}"}
    return [
        f"expect.{result.name}: {result.describe_failure()}{effects[result.action]}"
        for result in results
        if not result.success and result.action != "fail"
    ]


def require_success(results: Iterable[ExpectationResult]) -> None:
    """Stop a run whose rows do not meet an expectation with the action ``fail``.

    :raises ExpectationError: with all such expectations, and their results.
    """
    failed = [result for result in results if not result.success and result.action == "fail"]
    hint = "correct these rows, or set the action to 'warn' or 'quarantine'"
    changes_hint = "inspect them with dry_run=True, or set the action to 'warn'"
    problems = [
        Problem(
            f"expect.{result.name}",
            "expectation",
            result.describe_failure(),
            hint if result.on == "source" else changes_hint,
        )
        for result in failed
    ]
    if problems:
        error = ExpectationError.from_problems(problems)
        error.report = FailedExpectations(expectations=failed)
        raise error


def _to_text(micros: int) -> str:
    return datetime.fromtimestamp(micros / 1_000_000, tz=UTC).isoformat(timespec="seconds")


def _to_example(row: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in row.items())
