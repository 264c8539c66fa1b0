"""Test the order of steps in a run: detected attempts, skipped steps and limits, without Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import RiskError
from airflow_merge_provider.core.merge_source.counts import COUNTS
from airflow_merge_provider.core.report import RowCounts
from airflow_merge_provider.core.run.decision import RunDecision
from airflow_merge_provider.core.run.previous_run import PreviousRun, RunCommit
from airflow_merge_provider.core.run.progress import Progress
from airflow_merge_provider.core.run.reporter import RunReporter, RunResult
from airflow_merge_provider.jobs.run.change_set import ChangeSet
from airflow_merge_provider.jobs.run.job_run import JobRun
from tests.jobs import probe
from tests.reports import check_report

DONE = RunResult("incremental", "changed since the previous run: a", RowCounts.for_noop(), {"live_rows": 7})
COMMIT = RunCommit(4, {"result": {**DONE.to_state(), "version_before": 3}, "changed": True})


@dataclass
class Chosen(RunDecision):
    """A decision that is known before."""

    reporter: RunReporter
    mode: Any
    repeatable: bool

    @property
    def is_repeatable(self) -> bool:
        return self.repeatable

    def choose_run_mode(self) -> Any:
        return self.mode, "because"

    def check_inputs(self, read_fields: Any) -> None:
        raise AssertionError("only a task checks before Spark starts")


class Counting(JobRun):
    """A run that counts its evaluations and writes."""

    def __init__(
        self,
        previous: PreviousRun | None,
        *,
        mode: Any = "incremental",
        repeatable: bool = True,
        effect: tuple[int, bool] = (0, True),
        **request_fields: Any,
    ) -> None:
        request = probe.build_request("s", "t").model_copy(update=request_fields)
        target = Dataset(id="t", path="/nowhere/t")
        self.lines: list[str] = []
        reporter = RunReporter(
            lambda _: None, request, Progress(self.lines.append), COUNTS, target, {}, previous
        )
        self.decision = Chosen(reporter, mode, repeatable)
        self.records, self.changed = effect
        self.evaluated = self.written = 0

    def describe_plan(self) -> dict[str, Any]:
        return {"rules": ["a plan"]}

    def execute(self, run_mode: Any, reason: str) -> dict[str, Any]:
        self.evaluated += 1
        rows = RowCounts.for_change(rows_before=10, inserted=0, updated=5 * self.changed, deleted=0)
        result = RunResult(run_mode, reason, rows, records=self.records, changed=self.changed)

        def count_write() -> dict[str, Any]:
            self.written += 1
            return self.reporter.build_report(result, version=5, changed=result.changed)

        return self.commit_result(result, count_write, list_changes)

    def count_live_rows(self) -> int:
        return 10


def list_changes() -> ChangeSet:
    raise AssertionError("only a run that needs its changes computes them")


def build_previous(**more: Any) -> PreviousRun:
    return PreviousRun(4, 4, 4, COMMIT.state, **more)


def list_steps(run: Counting) -> tuple[int, int]:
    return run.evaluated, run.written


def test_a_run_evaluates_and_writes() -> None:
    """The report has the previous version and the committed one."""
    run = Counting(build_previous())

    report = check_report(run.run_to_end())

    assert list_steps(run) == (1, 1)
    assert (report["target"]["version_before"], report["target"]["version"]) == (4, 5)
    assert report["rows"]["unchanged"] == 5


@pytest.mark.parametrize(
    ("records", "changed", "version"), [(0, True, 5), (3, True, 5), (3, False, 5), (0, False, 4)]
)
def test_records_that_change_nothing_are_committed(records: int, changed: bool, version: int) -> None:
    """A run that has read records commits its offsets, changed or not; one that has read none does not."""
    run = Counting(build_previous(), effect=(records, changed))

    report = check_report(run.run_to_end())

    assert (report["target"]["version"], report["changed"]) == (version, changed)
    assert run.written == (version == 5)
    assert run.reporter.build_state(RunResult("full", "", changed=changed))["changed"] is changed


def test_an_earlier_attempt_is_reported_instead() -> None:
    """If an earlier attempt has committed, mode, rows, counts and versions are those of its commit."""
    run = Counting(build_previous(own_commit=COMMIT), mode="noop")

    report = check_report(run.run_to_end())

    assert list_steps(run) == (0, 0)
    assert report["run_mode_reason"].endswith("an earlier attempt of this run committed version 4")
    assert (report["run_mode"], report["changed"], report["counts"]["live_rows"]) == ("incremental", True, 7)
    assert (report["target"]["version_before"], report["target"]["version"]) == (3, 4)


@pytest.mark.parametrize("repeatable", [True, False])
def test_a_cleared_run_is_repeated_unless_it_may_not(repeatable: bool) -> None:
    """A cleared run is repeated, except if it appended rows, which are not appended again."""
    run = Counting(build_previous(cleared_commit=COMMIT), repeatable=repeatable)

    run.run_to_end()

    assert list_steps(run) == ((1, 1) if repeatable else (0, 0))


def test_a_run_without_work_says_what_the_target_holds() -> None:
    """A run without work reports counts of 0 for itself, and the target's counts of the previous run."""
    run = Counting(build_previous(), mode="noop")

    report = check_report(run.run_to_end())

    assert list_steps(run) == (0, 0)
    assert (report["run_mode"], report["changed"], report["counts"]["live_rows"]) == ("noop", False, 7)
    assert report["counts"]["rows_written"] == 0


def test_a_plan_evaluates_nothing() -> None:
    """A plan evaluates nothing: it has details, but no rows and counts."""
    run = Counting(build_previous(), until="plan")

    report = check_report(run.run_to_end())

    assert list_steps(run) == (0, 0)
    assert set(report["counts"].values()) == {None}
    assert report["details"] == {"rules": ["a plan"]}


def test_too_much_change_stops_before_the_write() -> None:
    """Exceeding the change limit stops the run before its write; the error has the report for a decision."""
    run = Counting(build_previous(), max_change_ratio=0.1)

    with pytest.raises(RiskError) as stopped:
        run.run_to_end()

    assert list_steps(run) == (1, 0)
    assert stopped.value.report["rows"]["updated"] == 5


def test_warnings_are_printed_and_the_first_are_reported() -> None:
    """The log has all warnings, the report the first ones."""
    run = Counting(None, mode="noop")
    run.reporter.add_warnings(f"warning {number}" for number in [*range(8), 3])

    report = run.run_to_end()

    assert report["warnings"] == [
        *(f"warning {number}" for number in range(5)),
        "3 more warnings are in the log",
    ]
    assert sum("warning: warning" in line for line in run.lines) == 8
