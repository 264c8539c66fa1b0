"""The change limit: the share of the target's rows above which a run stops or asks a person."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Self

from pydantic import ValidationError

from airflow_merge_provider.core.change_plan.saved_plan import PlanChoice
from airflow_merge_provider.core.errors import DataError, Problem, format_count
from airflow_merge_provider.core.report import Report

_RATIO_STEPS = 10_000
LIMIT, ON_RISK = "max_change_ratio", "on_risk"


class RiskError(DataError):
    """Raised when a person has to assess the changes in ``report``: nothing has been written."""

    code = "risk"

    def __init__(self, message: str, problems: Iterable[Problem], report: Report) -> None:
        super().__init__(message, problems)
        self.report = report

    @classmethod
    def from_problem(cls, problem: Problem, report: Report) -> Self:
        """Build the error of one problem."""
        return cls(str(problem), [problem], report)


@dataclass(frozen=True, slots=True)
class Risk:
    """The changes of a run: ``changed`` rows (inserted, updated, deleted) of a target with ``before`` rows.

    If the run overwrites the table, ``after`` is the number of rows it will have, and ``changed`` the
    difference.
    """

    changed: int
    before: int
    after: int | None = None

    @classmethod
    def for_overwrite(cls, rows_after: int, rows_before: int) -> Self:
        """Build the risk of an overwrite: ``changed`` is the number of rows that it adds or removes."""
        return cls(abs(rows_after - rows_before), rows_before, rows_after)

    @property
    def ratio(self) -> float:
        """The share of rows that change; above 1 if more rows are written than the target had."""
        # Rounded up, in integers: a run that may change this share may change this number of rows.
        return -(-self.changed * _RATIO_STEPS // max(self.before, 1)) / _RATIO_STEPS

    def is_above(self, limit: float) -> bool:
        """Return whether the run exceeds the limit; a target without rows never exceeds it."""
        # Decimal arithmetic on the limit as it was written: 4722.4112 times 625 is less in binary.
        return self.before > 0 and self.changed > Decimal(repr(limit)) * self.before

    def describe_risk(self, limit: float) -> str:
        """Return a sentence that compares the changes of the run with the limit."""
        before, changed = format_count(self.before, "row"), format_count(self.changed, "row")
        change = f"the run would write {changed} to a target of {before}"
        ratio = f"a change ratio of {self.ratio:g}"
        if self.after is not None:
            change = f"the run would replace {before} with {format_count(self.after, 'row')}"
            ratio = f"a net {ratio.removeprefix('a ')}"
        return f"{change}, {ratio}; the limit is {limit:g}"

    def list_warnings(self, limit: float | None) -> list[str]:
        """Return the warning of a dry run whose real run would be stopped."""
        return [f"{LIMIT}: {self.describe_risk(limit)}"] if limit is not None and self.is_above(limit) else []

    def check_limit(self, limit: float | None, build_report: Callable[[], Report]) -> None:
        """Stop a run before its commit if it exceeds the limit.

        :param build_report: builds the report that lets a person assess the run.
        :raises RiskError: if the run exceeds the limit.
        """
        if limit is not None and self.is_above(limit):
            hint = "inspect the changes with dry_run=True, raise max_change_ratio, or set on_risk='ask'"
            problem = Problem(LIMIT, "risk", self.describe_risk(limit), hint)
            raise RiskError.from_problem(problem, build_report())


def _find_choice_problems(plan: object) -> list[Problem]:
    """Return the problems of a plan that a task has approved."""
    try:
        PlanChoice.model_validate(plan)
    except ValidationError as error:
        hint = "use save, apply, or the result of ApprovePlanOperator"
        return [
            Problem(".".join(["plan", *map(str, detail["loc"])]), "value", detail["msg"], hint)
            for detail in error.errors(include_url=False)
        ]
    return []


def find_problems(
    limit: Any, on_risk: Any, *, plan: Any = None, approve: Any = None, on_reject: Any = "skip"
) -> list[Problem]:
    """Return the problems of a change limit, and of the settings of plans and approvals."""
    is_approved = isinstance(plan, Mapping)
    settings: dict[str, tuple[Any, tuple[str | None, ...]]] = {
        "plan": (None if is_approved else plan, (None, "check", "save", "apply")),
        "approve": (approve, (None, "always")),
        "on_reject": (on_reject, ("skip", "fail")),
    }
    problems = [
        Problem(name, "value", f"must be {' or '.join(map(repr, valid))}, not {value!r}")
        for name, (value, valid) in settings.items()
        if value not in valid
    ]
    if is_approved:
        problems += _find_choice_problems(plan)
    elif approve == "always" and plan is not None:
        message = f"'always' is not supported with plan={plan!r}"
        hint = "use approve without plan: the task saves the plan, asks, and applies it"
        problems.append(Problem("approve", "conflict", message, hint))
    is_number = isinstance(limit, int | float) and not isinstance(limit, bool)
    if limit is not None and not (is_number and 0 <= limit <= 1):
        hint = "0.2 allows a run to change a fifth of the rows"
        problems.append(Problem(LIMIT, "value", f"must be a number from 0 to 1, not {limit!r}", hint))
    if on_risk not in ("fail", "ask"):
        problems.append(Problem(ON_RISK, "value", f"must be 'fail' or 'ask', not {on_risk!r}"))
    elif on_risk == "ask" and limit is None:
        problems.append(
            Problem(
                ON_RISK,
                "requires-option",
                "'ask' requires max_change_ratio",
                "set max_change_ratio to the share of rows above which a run requires approval",
            )
        )
    return problems
