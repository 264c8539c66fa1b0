"""Tests of the operator that asks about the plan of another task, and of the task that applies this plan."""

from __future__ import annotations

import re
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException
from airflow.sdk.exceptions import TaskAwaitingInput
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_merge_provider.core.change_plan.saved_plan import PlanChoice
from airflow_merge_provider.core.errors import ConfigError, Problem
from airflow_merge_provider.core.protocol import JobResult
from airflow_merge_provider.core.report import PLAN_KEY, REPORT_KEY
from airflow_merge_provider.core.risk import RiskError
from airflow_merge_provider.jobs.run.entry import build_failure
from airflow_merge_provider.operators import _spark_job
from airflow_merge_provider.operators.approve_plan import ApprovePlanOperator
from airflow_merge_provider.operators.upsert import UpsertOperator
from tests.fakes import REPORT, FakeSparkJobHook, build_report
from tests.unit.operators.test_review import APPROVED, PLAN, SEEN, YES

ROWS = {"inserted": 30, "updated": 0, "deleted": 1, "unchanged": 99}
NO_PLAN = {"exists": False}
PLANNED = {**REPORT, "rows": ROWS, "dry_run": True, "plan": {**PLAN, "examples": []}}


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Answer as the Airflow server does: keep the first question of a task and return the kept one."""
    stored_questions: list[Any] = []

    def answer_message(message: Any) -> Any:
        stored_questions.append(message)
        return stored_questions[0]

    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", SimpleNamespace(send=answer_message), raising=False)
    return stored_questions


def build_context(xcoms: dict[str, Any], map_index: int = -1) -> Any:
    """Return the context of the task: ``xcoms`` are those of the task ``orders.plan``."""

    def pull_xcom(*, task_ids: str, key: str, map_indexes: int) -> Any:
        assert (task_ids, map_indexes) == ("orders.plan", map_index)
        return xcoms.get(key)

    names = {"dag_id": "d", "run_id": "r", "task_id": "orders.approve", "map_index": map_index}
    instance = SimpleNamespace(
        id=UUID(int=1), **names, xcom_pull=pull_xcom, xcom_push=lambda **_: None,
        task=SimpleNamespace(outlets=[]),
    )  # fmt: skip
    return {"ti": instance, "run_id": "r", "outlet_events": OutletEventAccessors()}


def build_operator(**arguments: Any) -> ApprovePlanOperator:
    return ApprovePlanOperator(task_id="approve", plan_task_id="orders.plan", **arguments)


@pytest.mark.parametrize("map_index", [-1, 2])
def test_a_person_sees_the_plan_of_the_other_task(questions: list[Any], map_index: int) -> None:
    """The question shows the rows of the plan and links to the report of the task that has saved it."""
    context = build_context({REPORT_KEY: PLANNED, PLAN_KEY: PLAN}, map_index)

    with pytest.raises(TaskAwaitingInput) as waiting:
        build_operator(approval_timeout=timedelta(hours=2)).execute(context)

    (question,) = questions
    assert (
        question.subject == "golden: changes 31 rows in a target of 100 rows (31 %): 30 inserted, 1 deleted"
    )
    assert r'| deleted | \_id = "c" |  | removed: - erp/1 |' in question.body
    mapped = "" if map_index < 0 else f"/mapped/{map_index}"
    assert f"dags/d/runs/r/tasks/orders.plan{mapped}/plugin/merge-report)" in question.body
    assert waiting.value.method_name == "after_review"
    assert waiting.value.kwargs == {"reviewed": SEEN}
    assert waiting.value.timeout == timedelta(hours=2)


def test_warnings_are_part_of_the_question(questions: list[Any]) -> None:
    """A plan above the change limit warns; the person sees it."""
    warning = "max_change_ratio: the run would write 31 rows to a target of 100 rows"
    context = build_context({REPORT_KEY: {**PLANNED, "warnings": [warning]}})

    with pytest.raises(TaskAwaitingInput):
        build_operator().execute(context)

    assert r"max\_change\_ratio: the run would write 31 rows" in questions[0].body


def test_a_question_about_another_plan_is_not_asked(questions: list[Any]) -> None:
    """If the plan was made again in this run, Airflow would show the old question: the task fails."""
    with pytest.raises(TaskAwaitingInput):
        build_operator().execute(build_context({REPORT_KEY: PLANNED}))
    other = {**PLANNED, "plan": {**PLANNED["plan"], "digest": "fedcba9876543210"}}

    with pytest.raises(AirflowFailException, match="an earlier try asked for the approval of another plan"):
        build_operator().execute(build_context({REPORT_KEY: other}))


def test_the_answer_is_the_approved_plan() -> None:
    """The result names the version that was shown, and the person."""
    assert build_operator().after_review(build_context({}), YES, SEEN) == APPROVED


@pytest.mark.parametrize(
    ("on_reject", "error"), [("skip", AirflowSkipException), ("fail", AirflowFailException)]
)
def test_a_rejection_skips_or_fails(on_reject: str, error: type[Exception]) -> None:
    """The task is skipped or fails, so that the task with the plan does not run."""
    with pytest.raises(error, match="The plan was not approved: nothing was written"):
        build_operator(on_reject=on_reject).after_review(
            build_context({}), {**YES, "chosen_options": ["Reject"]}, SEEN
        )


def test_nobody_is_asked_about_nothing(questions: list[Any]) -> None:
    """Without changed rows the plan is applied at once; without a plan there is nothing to apply."""
    unchanged = {**PLANNED, "plan": {**PLAN, "kinds": {"inserted": 0, "kept": 0}}}
    assert build_operator().execute(build_context({REPORT_KEY: unchanged})) == SEEN
    noop = {**REPORT, "run_mode": "noop", "plan": None}
    assert build_operator().execute(build_context({REPORT_KEY: noop})) == NO_PLAN
    assert questions == []


@pytest.mark.parametrize(
    ("kept_rows", "other", "line"),
    [(4, [], "| kept | 4 |"), (0, ["adds column 'a_b' (string)"], r"* adds column 'a\_b' (string)")],
)
def test_a_person_is_asked_about_everything_that_is_written(
    questions: list[Any], kept_rows: int, other: list[str], line: str
) -> None:
    """Rows that keep their values, and changes of something else than rows, are part of the question."""
    plan = {**PLAN, "kinds": {"inserted": 0, "kept": kept_rows}, "other_changes": other}

    with pytest.raises(TaskAwaitingInput):
        build_operator().execute(build_context({REPORT_KEY: {**PLANNED, "plan": plan}}))

    assert line in questions[0].body.splitlines()


def test_a_task_without_report_is_an_error() -> None:
    """A misspelt task is named."""
    with pytest.raises(AirflowFailException, match=r"plan_task_id: task 'orders\.plan' has no merge report"):
        build_operator().execute(build_context({}))


@pytest.mark.parametrize(
    "report",
    [
        {**PLANNED, "plan": {**PLAN, "saved": None}},
        {**REPORT, "dry_run": True, "plan": None},
        REPORT,
    ],
    ids=["dry run", "check", "commit"],
)
def test_a_plan_that_is_not_saved_is_an_error(questions: list[Any], report: Any) -> None:
    """Without a saved plan nobody can approve what is committed; None means that there is no work."""
    with pytest.raises(AirflowFailException, match=r"has not saved its plan \(set plan='save' in it\)"):
        build_operator().execute(build_context({REPORT_KEY: report}))

    assert questions == []


def test_wrong_arguments_of_the_approval_are_refused() -> None:
    """A misspelt word would skip where the task has to fail; unknown arguments have a suggestion."""
    with pytest.raises(ConfigError, match="task 'approve': on_reject: must be 'skip' or 'fail', not 'Fail'"):
        build_operator(on_reject="Fail")
    with pytest.raises(ConfigError, match=r"unknown argument 'on_rejct' \(did you mean 'on_reject'"):
        build_operator(on_rejct="fail")
    templated = build_operator(on_reject="{{ params.on_reject }}")
    templated.on_reject = "Fail"
    with pytest.raises(AirflowFailException, match="on_reject: must be 'skip' or 'fail', not 'Fail'"):
        templated.execute(build_context({REPORT_KEY: PLANNED}))


def test_values_of_data_are_text_in_the_question(questions: list[Any]) -> None:
    """Names and values of rows cannot add HTML, links or cells to the question."""
    row = {
        "<b>": "<img src=x onerror=alert(1)>",
        "v": "[Apply](https://example.org) | x\n# title",
        "w": "`&lt;`",
    }
    example = {"kind": "inserted", "reason": "<i>", "detail": "a|b", "before": None, "after": row}
    plan = {**PLAN, "examples": [example]}

    with pytest.raises(TaskAwaitingInput):
        build_operator().execute(
            build_context({REPORT_KEY: {**PLANNED, "warnings": ["<u>"]}, PLAN_KEY: plan})
        )

    body = questions[0].body
    (line,) = [line for line in body.splitlines() if line.startswith(r"| inserted | \<b\>")]
    assert len(re.findall(r"(?<!\\)\|", line)) == 5
    assert re.findall(r"(?<!\\)[<>`]", body) == []
    assert re.findall(r"(?<!\\)\]\(", body) == ["]("]  # the link to the merge report


def build_apply(**arguments: Any) -> UpsertOperator:
    load = {"source": "/lake/new", "target": "/lake/orders", "primary_key": "id", "warehouse": "/lake"}
    return UpsertOperator(**{"task_id": "apply", **load, **arguments})


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replace Spark by a prepared answer, and return the requests."""

    def install_answer(answer: Any) -> Any:
        fake = FakeSparkJobHook.create_fake(answer)
        monkeypatch.setattr(_spark_job, "SparkJobHook", fake)
        return fake.requests

    return install_answer


def test_the_approved_plan_is_applied(answering: Any) -> None:
    """The run gets the version and the person; it commits exactly this plan, whatever was saved since."""
    requests = answering(JobResult(report=build_report()))

    build_apply(plan=APPROVED, approve="always").execute(build_context({}))

    assert requests[0].apply_plan == PlanChoice.model_validate(APPROVED)
    assert (requests[0].until, requests[0].save_plan) == ("commit", False)


def test_an_outdated_plan_fails_and_asks_nobody(answering: Any, questions: list[Any]) -> None:
    """The approval covers the plan that was shown, and no other one."""
    problem = Problem("plan", "outdated-plan", "the plan is outdated: the changes are not those of the plan")
    answering(
        build_failure(RiskError.from_problem(problem, build_report(rows=ROWS, dry_run=True, plan=PLAN)))
    )

    with pytest.raises(AirflowFailException, match=r"golden: the plan is outdated.*start a new DAG run"):
        build_apply(plan=APPROVED, approve="always").execute(build_context({}))

    assert questions == []


@pytest.mark.parametrize("approve", [None, "always"])
def test_a_run_without_a_plan_commits_nothing_unseen(
    answering: Any, questions: list[Any], approve: str | None
) -> None:
    """If there was nothing to plan and the source has grown since, the last task asks itself."""
    problem = Problem("approve", "approval", "the run needs the approval of a person")
    requests = answering(
        build_failure(RiskError.from_problem(problem, build_report(rows=ROWS, dry_run=True, plan=PLAN)))
    )

    with pytest.raises(TaskAwaitingInput):
        build_apply(plan=NO_PLAN, approve=approve).execute(build_context({}))

    assert (requests[0].approval, requests[0].apply_plan) == ("always", None)
    assert len(questions) == 1


def test_a_plan_of_no_task_asks_nobody(answering: Any) -> None:
    """Without a plan the run commits, as always."""
    requests = answering(JobResult(report=build_report()))

    build_apply(plan=None).execute(build_context({}))

    assert requests[0].approval == "never"


def test_a_check_reads_no_rows(answering: Any) -> None:
    """``plan="check"`` stops before rows are read, and saves nothing."""
    requests = answering(JobResult(report=build_report(dry_run=True)))
    context = build_context({})

    build_apply(plan="check").execute(context)

    assert (requests[0].until, requests[0].save_plan) == ("plan", False)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("keep", "plan: must be None or 'check' or 'save' or 'apply', not 'keep'"),
        ({"version": "three"}, "plan.version: Input should be a valid integer"),
        ({"versions": 3}, "plan.versions: Extra inputs are not permitted"),
    ],
)
def test_wrong_plans_are_refused(plan: Any, message: str) -> None:
    """A plan has one of three words, or is what the approval returns."""
    with pytest.raises(ConfigError) as refused:
        build_apply(plan=plan)

    assert message in str(refused.value)
