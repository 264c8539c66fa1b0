"""Test the order of steps in a run: detected attempts, skipped steps and limits, without Spark."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_merge_provider.core.change_plan.saved_plan import PlanChoice
from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import ConfigError, UnrevertedError
from airflow_merge_provider.core.joiner.config import JoinerConfig
from airflow_merge_provider.core.joiner.decision import JoinDecision
from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig
from airflow_merge_provider.core.merge_engine.decision import FoldDecision
from airflow_merge_provider.core.merge_load.config import DeleteInsertConfig, UpsertConfig
from airflow_merge_provider.core.merge_load.decision import LoadDecision, check_dispatch
from airflow_merge_provider.core.merge_load.scd2 import Scd2Config
from airflow_merge_provider.core.merge_source.decision import COUNTS
from airflow_merge_provider.core.model import Config
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.report import Report, RowCounts
from airflow_merge_provider.core.risk import RiskError
from airflow_merge_provider.core.run.decision import RunDecision
from airflow_merge_provider.core.run.previous_run import PreviousRun, RunCommit
from airflow_merge_provider.core.run.reporter import Progress, RunReporter, RunResult
from airflow_merge_provider.core.spark_conf import SINGLE_WRITER, TIME_ZONE
from airflow_merge_provider.core.table_history import HistoryEntry
from airflow_merge_provider.jobs.run.change_set import ChangeSet
from airflow_merge_provider.jobs.run.job_run import JobRun
from airflow_merge_provider.jobs.run.retry import OwnAttemptWonError, run_attempt
from tests.fakes import build_report
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

    def execute(self, run_mode: Any, reason: str) -> Report:
        self.evaluated += 1
        rows = RowCounts.for_change(rows_before=10, inserted=0, updated=5 * self.changed, deleted=0)
        result = RunResult(run_mode, reason, rows, records=self.records, changed=self.changed)

        def count_write() -> Report:
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


def test_a_retry_does_not_report_a_commit_that_overlooked_a_change() -> None:
    """Its attempt was killed before it could revert the commit; the error names both versions."""
    other = HistoryEntry(3, "UPDATE", author="ada")
    run = Counting(build_previous(own_commit=COMMIT, overlooked=other), mode="noop")

    with pytest.raises(
        UnrevertedError, match=r"version 3 of /nowhere/t \(UPDATE by ada\).*version 4 of this run"
    ):
        run.run_to_end()


@pytest.mark.parametrize("repeatable", [True, False])
def test_a_cleared_run_is_repeated_unless_it_may_not(repeatable: bool) -> None:
    """A cleared run is repeated, except if it appended rows, which are not appended again."""
    run = Counting(build_previous(cleared_commit=COMMIT), repeatable=repeatable)

    run.run_to_end()

    assert list_steps(run) == ((1, 1) if repeatable else (0, 0))


def test_an_attempt_reports_the_commit_of_another_one() -> None:
    """An attempt that loses against another one of the same run looks again, and reports its commit."""
    attempts: list[JobRequest] = []

    def run(_: Any, request: JobRequest, __: Progress) -> Report:
        attempts.append(request)
        if len(attempts) == 1:
            raise OwnAttemptWonError("another run committed first")
        return build_report()

    session: Any = SimpleNamespace(conf={TIME_ZONE: "UTC"})
    report = run_attempt(session, probe.build_request("/s", "/t"), Progress(out=str), run)

    assert (report, len(attempts)) == (build_report(), 2)


def test_a_single_writer_is_a_setting_of_its_run() -> None:
    """The log store reads the setting from the session."""

    class Conf(dict[str, str]):
        set = dict.__setitem__
        unset = dict.pop

    conf = Conf({TIME_ZONE: "UTC"})
    session: Any = SimpleNamespace(conf=conf)
    request = probe.build_request("/s", "/t").model_copy(update={"allow_single_writer": True})

    def run(*_: Any) -> Report:
        return build_report(details=dict(conf))

    report = run_attempt(session, request, Progress(out=str), run)

    assert report.details[SINGLE_WRITER] == "true"
    assert SINGLE_WRITER not in conf


JOIN = {"inputs": {"a": "a", "b": "b"}, "join_keys": "a.k = b.k"}
CLEARED: list[tuple[type[RunDecision], type[Config], dict[str, Any], bool]] = [
    (LoadDecision, DeleteInsertConfig, {"source": "s"}, False),
    (LoadDecision, DeleteInsertConfig, {"source": "s", "merge_key": "g"}, True),
    (LoadDecision, DeleteInsertConfig, {"source": "s", "destination_scope": "d = current_date()"}, True),
    (LoadDecision, UpsertConfig, {"source": "s", "primary_key": "k", "skip_unchanged_rows": False}, True),
    (LoadDecision, UpsertConfig, {"source": "s", "primary_key": "k", "source_filter": "d < now()"}, True),
    (LoadDecision, Scd2Config, {"source": "s"}, True),
    (LoadDecision, Scd2Config, {"source": "s", "natural_key": "k"}, True),
    (FoldDecision, MergeEngineConfig, {"source": "s", "primary_key": "k"}, True),
    (FoldDecision, MergeEngineConfig, {"source": "s", "primary_key": "k", "incremental": False}, False),
    (JoinDecision, JoinerConfig, JOIN, True),
    (JoinDecision, JoinerConfig, {**JOIN, "write_mode": "append"}, False),
]


@pytest.mark.parametrize(("decision", "config", "settings", "repeatable"), CLEARED)
def test_only_appended_rows_are_not_written_again(
    decision: Any, config: type[Config], settings: dict[str, Any], *, repeatable: bool
) -> None:
    """A cleared task runs again, unless its run has appended rows."""
    parsed = config.parse({"target": "t", **settings})
    fields = {field.name: None for field in dataclasses.fields(decision) if field.init}

    assert decision(**{**fields, "config": parsed}).is_repeatable is repeatable


@pytest.mark.parametrize(
    ("settings", "is_refused"),
    [
        ({"save_plan": True}, True),
        ({"apply_plan": PlanChoice()}, True),
        ({"approval": "on_risk"}, True),
        ({"until": "transform"}, False),
    ],
)
def test_several_targets_have_no_saved_plan(settings: dict[str, Any], *, is_refused: bool) -> None:
    """A dispatched load has a dry run, and neither saved plans nor approvals."""
    request = probe.build_request("s", "t").model_copy(update=settings)

    with pytest.raises(ConfigError, match="not supported") if is_refused else nullcontext():
        check_dispatch(request)


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


@pytest.mark.parametrize(("approval", "is_saved"), [("never", False), ("on_risk", True)])
def test_too_much_change_stops_before_the_write(
    monkeypatch: pytest.MonkeyPatch, approval: str, is_saved: bool
) -> None:
    """Exceeding the change limit stops the run before its write; the error has the changes for a decision."""
    run = Counting(build_previous(), max_change_ratio=0.1, approval=approval)

    def plan_changes(result: RunResult, _: Any, *, is_saved: bool) -> Report:
        return run.reporter.build_report(replace(result, details={"is_saved": is_saved}))

    monkeypatch.setattr(run, "_plan_changes", plan_changes)
    with pytest.raises(RiskError) as stopped:
        run.run_to_end()

    assert list_steps(run) == (1, 0)
    assert stopped.value.report.rows.updated == 5
    assert stopped.value.report.details == {"is_saved": is_saved}


def test_warnings_are_printed_and_the_first_are_reported() -> None:
    """The log has all warnings, the report the first ones."""
    run = Counting(None, mode="noop")
    run.reporter.add_warnings(f"warning {number}" for number in [*range(8), 3])

    report = run.run_to_end()

    assert report.warnings == [
        *(f"warning {number}" for number in range(5)),
        "3 more warnings are in the log",
    ]
    assert sum("warning: warning" in line for line in run.lines) == 8
