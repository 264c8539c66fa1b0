"""Tests of operators whose run exceeds the change limit: fail, or ask a person and continue."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from airflow.api_fastapi.execution_api.datamodels.hitl import HITLDetailRequest
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException
from airflow.sdk.exceptions import TaskAwaitingInput
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_merge_provider.core.change_plan.saved_plan import PlanChoice
from airflow_merge_provider.core.change_plan.summary import ChangeSummary
from airflow_merge_provider.core.errors import ConfigError, Problem
from airflow_merge_provider.core.protocol import JobResult
from airflow_merge_provider.core.risk import RiskError
from airflow_merge_provider.jobs.run.entry import build_failure
from airflow_merge_provider.operators import _spark_job
from airflow_merge_provider.operators.merge_source import MergeSourceOperator
from airflow_merge_provider.operators.scd2 import Scd2CheckOperator, Scd2Operator
from tests.fakes import FakeSparkJobHook, build_report

RULES = {"datasets": ["crm c", "erp e"], "equality": [["eq", "c.email", "e.mail"]], "warehouse": "/lake"}
YES = {"chosen_options": ["Apply"], "responded_by_user": {"id": "7", "name": "ada"}, "timedout": False}


def build_operator(**kwargs: Any) -> Any:
    return MergeSourceOperator(**{"task_id": "merge", "target": "golden", **RULES, **kwargs})


PLAN: dict[str, Any] = {
    "kinds": {"inserted": 30, "updated": 0, "deleted": 1},
    "reasons": {"new": 30, "removed": 1},
    "examples": [
        {"kind": "inserted", "reason": "new", "detail": "", "before": None, "after": {"_id": "a|b", "n": 1}},
        {
            "kind": "deleted",
            "reason": "removed",
            "detail": "- erp/1",
            "before": {"_id": "c"},
            "after": None,
        },
        {
            "kind": "updated",
            "reason": "joined",
            "name": "Ann (#3)",
            "members": "+ erp/2 by c.email = e.mail (***)",
            "before": {"_id": "d", "_ts": 1, "city": "Oslo", "n": 1},
            "after": {"_id": "d", "_ts": 2, "city": "Bergen", "n": 1},
        },
    ],
    "internal_columns": ["_ts"],
    "columns": {"_ts": 40, "city": 25},
    "digest": "0123456789abcdef",
    "saved": {"dataset": "golden__plan", "uri": "/lake/golden__plan", "version": 3},
}


# The plan that a person has seen, and the choice of that person.
SEEN = {"version": 3, "digest": PLAN["digest"]}
APPROVED = {**SEEN, "approved_by": "ada"}


def raise_risk(digest: str = PLAN["digest"], code: str = "risk", **saved: Any) -> Any:
    plan = {**PLAN, "digest": digest, "saved": {**PLAN["saved"], **saved}}
    rows = {"inserted": 30, "updated": 0, "deleted": 1, "unchanged": 99}
    problem = Problem("plan", code, f"the {code} of 31 rows", "a hint")
    return build_failure(RiskError.from_problem(problem, build_report(rows=rows, plan=plan)))


@pytest.fixture
def xcoms() -> dict[str, Any]:
    """Return the XComs that the task has pushed."""
    return {}


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch, xcoms: dict[str, Any]) -> Any:
    """Replace Spark by a prepared answer, and return the requests and a context."""

    def push_xcom(key: str, value: Any) -> None:
        xcoms[key] = value

    def install_answer(answer: Any) -> Any:
        fake = FakeSparkJobHook.create_fake(answer)
        monkeypatch.setattr(_spark_job, "SparkJobHook", fake)
        task = SimpleNamespace(
            id=UUID(int=1),
            dag_id="d",
            run_id="r",
            task_id="merge",
            map_index=-1,
            xcom_push=push_xcom,
            task=SimpleNamespace(outlets=[]),
        )
        return fake, {"ti": task, "run_id": "r", "outlet_events": OutletEventAccessors()}

    return install_answer


def test_a_risky_run_fails_by_default(answering: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A run above the change limit fails without retry.

    The limit is part of the request, and the reason is a log line.
    """
    fake, context = answering(raise_risk())

    with pytest.raises(AirflowFailException, match="the risk of 31 rows"):
        build_operator(max_change_ratio=0.2).execute(context)

    output = capsys.readouterr()
    (line,) = [line for line in (output.out + output.err).splitlines() if "the risk of 31 rows" in line]
    assert "error" in line
    assert fake.requests[0].max_change_ratio == 0.2


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Answer as the Airflow server does: keep the first question of a task and return the kept one."""
    questions = []

    def answer_message(msg: Any) -> Any:
        questions.append(HITLDetailRequest.model_validate_json(msg.model_dump_json()))
        return questions[0]

    supervisor = SimpleNamespace(send=answer_message)
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", supervisor, raising=False)
    return questions


def test_a_person_is_asked_with_the_plan(answering: Any, server: Any, xcoms: dict[str, Any]) -> None:
    """The task waits for the answer without a process. No answer in time counts as a rejection."""
    fake, context = answering(raise_risk())
    task = build_operator(max_change_ratio=0.2, on_risk="ask", execution_timeout=timedelta(hours=1))

    with pytest.raises(TaskAwaitingInput) as waiting:
        task.execute(context)

    (question,) = server
    assert fake.requests[0].approval == "on_risk"
    assert question.options == ["Apply", "Reject"]
    assert question.defaults == ["Reject"]
    assert (
        question.subject == "golden: changes 31 rows in a target of 100 rows (31 %): 30 inserted, 1 deleted"
    )
    assert "| inserted | 30 |" in question.body
    assert r'| inserted | \_id = "a\|b", n = 1 |  | new |' in question.body
    assert r'| deleted | \_id = "c" |  | removed: - erp/1 |' in question.body
    members = r"+ erp/2 by c.email = e.mail (\*\*\*)"
    assert rf'| updated | Ann (\#3) | {members}; city "Oslo" → "Bergen" | joined |' in question.body
    assert "Columns that change: city in 25 rows\n" in question.body
    assert "dags/d/runs/r/tasks/merge/plugin/merge-report)" in question.body
    assert r"All rows are in /lake/golden\_\_plan." in question.body
    assert waiting.value.method_name == "after_review"
    assert waiting.value.kwargs == {"reviewed": SEEN}
    assert waiting.value.timeout == timedelta(hours=1)
    pushed = ChangeSummary.model_validate(xcoms["merge_plan"])
    assert pushed.examples == ChangeSummary.model_validate(PLAN).examples
    assert xcoms["merge_report"]["plan"]["saved"]["version"] == 3


def test_every_run_is_reviewed_if_asked_for(answering: Any, server: Any) -> None:
    """With approve='always', each run that changes rows waits; a time for the answer may be set."""
    fake, context = answering(raise_risk(code="approval"))
    task = build_operator(approve="always", approval_timeout=timedelta(minutes=5))

    with pytest.raises(TaskAwaitingInput) as waiting:
        task.execute(context)

    assert fake.requests[0].approval == "always"
    assert waiting.value.timeout == timedelta(minutes=5)


def test_a_question_about_another_plan_is_not_asked(
    answering: Any, server: Any, xcoms: dict[str, Any]
) -> None:
    """A question about another plan than the stored one is not asked.

    The person would approve a plan that nobody has seen. The same plan may be asked about again, although it
    was saved again.
    """
    task = build_operator(max_change_ratio=0.2, on_risk="ask")
    for version in (3, 4):
        with pytest.raises(TaskAwaitingInput) as waiting:
            task.execute(answering(raise_risk(version=version))[1])
        assert waiting.value.kwargs["reviewed"] == {"version": version, "digest": PLAN["digest"]}

    with pytest.raises(AirflowFailException, match="an earlier try asked for the approval of another plan"):
        task.execute(answering(raise_risk(digest="fedcba9876543210"))[1])
    assert "an earlier try asked" in xcoms["merge_failure"]["message"]


def test_a_yes_applies_the_plan_that_was_seen(answering: Any) -> None:
    """After approval the run applies the version of the plan that was shown, in the name of the person."""
    fake, context = answering(JobResult(report=build_report()))

    build_operator(max_change_ratio=0.2, on_risk="ask").after_review(context, YES, SEEN)

    assert fake.requests[0].apply_plan == PlanChoice.model_validate(APPROVED)


def test_an_approved_history_has_the_time_of_its_plan(answering: Any, server: Any) -> None:
    """After the approval a history has the same boundary as before, so that its plan is not outdated."""
    history = {"source": "s", "target": "t", "natural_key": "id", "warehouse": "/lake", "approve": "always"}
    fake, context = answering(raise_risk(code="approval"))
    timed_context: Any = {**context, "data_interval_end": datetime(2026, 11, 24, tzinfo=UTC)}
    with pytest.raises(TaskAwaitingInput):
        Scd2Operator(task_id="merge", **history).execute(timed_context)
    fake.answer = JobResult(report=build_report())

    Scd2Operator(task_id="merge", **history).after_review(timed_context, YES, SEEN)

    planned, applied = fake.requests
    assert applied.config == planned.config
    assert applied.config["boundary_timestamp"] == "2026-11-24T00:00:00+00:00"


def test_an_approved_plan_that_is_outdated_fails(answering: Any) -> None:
    """The approval covers only what was shown, and Airflow cannot ask another question in the same run."""
    _, context = answering(raise_risk(code="outdated-plan"))

    with pytest.raises(
        AirflowFailException, match=r"golden: the outdated-plan of 31 rows. Nothing was written"
    ):
        build_operator(max_change_ratio=0.2, on_risk="ask").after_review(context, YES, SEEN)


def test_a_rejection_may_fail_the_task(answering: Any, xcoms: dict[str, Any]) -> None:
    """With on_reject='fail', a rejected plan fails the task."""
    _, context = answering(JobResult(report=build_report()))
    task = build_operator(approve="always", on_reject="fail")

    with pytest.raises(AirflowFailException, match="The plan was not approved: nothing was written"):
        task.after_review(context, {**YES, "chosen_options": ["Reject"]}, SEEN)

    assert xcoms["merge_failure"]["message"] == "The plan was not approved: nothing was written"


def test_a_plan_may_be_saved_and_applied_by_two_tasks(answering: Any, xcoms: dict[str, Any]) -> None:
    """The first task commits nothing; the second one applies the newest plan."""
    fake, context = answering(JobResult(report=build_report(dry_run=True, plan=PLAN)))

    build_operator(plan="save").execute(context)
    build_operator(plan="apply").execute(context)

    first, second = fake.requests
    assert (first.until, first.save_plan, first.apply_plan) == ("transform", True, None)
    assert (second.until, second.save_plan, second.apply_plan) == ("commit", False, PlanChoice())


def test_wrong_settings_are_refused_at_once() -> None:
    """All problems are reported, each with its path."""
    with pytest.raises(ConfigError) as refused:
        build_operator(plan="keep", approve="sometimes", on_reject="ignore")

    assert [problem.path for problem in refused.value.problems] == ["plan", "approve", "on_reject"]


@pytest.mark.parametrize(
    "event",
    [
        {**YES, "chosen_options": ["Reject"]},
        {"chosen_options": ["Reject"], "timedout": True},
        {"error": "no response", "error_type": "timeout"},
    ],
    ids=["no", "no answer", "no default"],
)
def test_a_no_writes_nothing_and_emits_nothing(answering: Any, event: Any) -> None:
    """After a rejection the task is skipped without starting Spark or creating an asset event."""
    fake, context = answering(JobResult(report=build_report()))

    with pytest.raises(AirflowSkipException, match="nothing was written"):
        build_operator(max_change_ratio=0.2, on_risk="ask").after_review(context, event, SEEN)

    assert fake.requests == []


def test_an_operator_that_changes_no_rows_refuses_a_limit() -> None:
    """An operator that changes no rows rejects a change limit, because it would have no effect."""
    with pytest.raises(
        ConfigError, match="max_change_ratio: is not supported: this operator changes no rows"
    ):
        Scd2CheckOperator(task_id="check", target="t", warehouse="/lake", max_change_ratio=0.1)
