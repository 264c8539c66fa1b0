"""Test the task group for reviewed merges in DAG runs, in which a fake hook replaces Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, TriggerRule, task, task_group

from airflow_merge_provider.core.change_plan.saved_plan import PlanChoice
from airflow_merge_provider.core.protocol import JobRequest, JobResult
from airflow_merge_provider.operators.approve_plan import ApprovePlanOperator
from airflow_merge_provider.operators.upsert import UpsertOperator
from airflow_merge_provider.task_groups import build_reviewed_merge
from tests.fakes import FakeSparkJobHook, build_report, build_unchanged
from tests.unit.operators.test_review import APPROVED, PLAN

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(120)]

RunAndAnswer = Callable[..., tuple[Any, dict[str, Any]]]
APPROVE = "orders.approve/-1"
SLEEPS_MAX = 60


def answer_questions(dag_id: str, options: Mapping[str, str]) -> list[Any]:
    """Answer each task of a DAG that waits, as the endpoint of Airflow's API does, and return the questions.

    :param options: the answers by task and map index, such as ``orders.approve/-1``.
    """
    from airflow.models.taskinstance import TaskInstance  # noqa: TID251 - the server side
    from airflow.models.trigger import handle_event_submit  # noqa: TID251 - the server side
    from airflow.triggers.base import TriggerEvent
    from airflow.utils.session import create_session  # noqa: TID251 - the server side
    from sqlalchemy import select
    from sqlalchemy.orm import joinedload

    questions = []
    with create_session(scoped=False) as session:
        waiting = select(TaskInstance).filter_by(dag_id=dag_id, state="awaiting_input")
        for instance in session.scalars(waiting.options(joinedload(TaskInstance.hitl_detail))).all():
            name = f"{instance.task_id}/{instance.map_index}"
            detail = instance.hitl_detail
            detail.responded_by = {"id": "7", "name": "ada"}
            detail.responded_at = datetime.now(tz=UTC)
            detail.chosen_options = [options[name]]
            detail.params_input = {}
            event: Any = TriggerEvent(detail.as_resume_event_payload())  # type: ignore[no-untyped-call]
            handle_event_submit(event, task_instance=instance, session=session)
            questions.append(SimpleNamespace(name=name, subject=detail.subject, body=detail.body))
    return questions


@pytest.fixture
def run_and_answer(run_dag: Any, monkeypatch: pytest.MonkeyPatch) -> RunAndAnswer:
    """Run a DAG and answer its questions, whenever the run sleeps because a task waits for an answer."""
    original_sleep = time.sleep

    def run_with_answers(dag: DAG, options: Mapping[str, str]) -> tuple[Any, dict[str, Any]]:
        questions: dict[str, Any] = {}
        sleeps: list[float] = []

        def answer_or_sleep(seconds: float) -> None:
            if threading.current_thread() is not threading.main_thread():
                original_sleep(seconds)
                return
            sleeps.append(seconds)
            if len(sleeps) > SLEEPS_MAX:
                raise TimeoutError(f"DAG {dag.dag_id} waits for something other than an answer")
            questions.update({item.name: item for item in answer_questions(dag.dag_id, options)})
            original_sleep(0.05)

        with monkeypatch.context() as patch:
            patch.setattr(time, "sleep", answer_or_sleep)
            return run_dag(dag), questions

    return run_with_answers


@pytest.fixture
def planning_hook(fake_hook: Any) -> type[FakeSparkJobHook]:
    """Replace Spark: a run with ``save_plan`` returns a plan, other runs a report without one."""
    fake: type[FakeSparkJobHook] = fake_hook(JobResult(report=build_report()))

    def submit(self: FakeSparkJobHook, request: JobRequest) -> JobResult:
        type(self).requests.append(request)
        rows = {"inserted": 30, "updated": 0, "deleted": 1, "unchanged": 99}
        planned = build_report(dry_run=True, rows=rows, plan=PLAN)
        return JobResult(report=planned if request.save_plan else build_report())

    fake.submit = submit
    return fake


def build_dag(dag_id: str, **arguments: Any) -> DAG:
    """Build a DAG with the group, and a task that requires its success."""
    load = {"source": "new", "target": dag_id, "primary_key": "id", "warehouse": "/lake"}
    with DAG(dag_id, schedule=None) as dag:

        @task
        def publish() -> str:
            return "published"

        build_reviewed_merge(UpsertOperator, group_id="orders", **{**load, **arguments}) >> publish()
    return dag


def list_states(run: Any) -> dict[str, str]:
    return {item.task_id.removeprefix("orders."): str(item.state) for item in run.get_task_instances()}


def test_an_approved_plan_is_committed(
    run_and_answer: RunAndAnswer, planning_hook: Any, asset_events: Any
) -> None:
    """The last task applies the plan that was shown, in the name of the person; only it emits an event."""
    run, questions = run_and_answer(build_dag("approved_group"), {APPROVE: "Apply"})

    assert (
        questions[APPROVE].subject
        == "golden: changes 31 rows in a target of 100 rows (31 %): 30 inserted, 1 deleted"
    )
    assert list_states(run) == dict.fromkeys(("check", "plan", "approve", "apply", "publish"), "success")
    check, plan, apply = planning_hook.requests
    assert (check.until, plan.until, apply.until) == ("plan", "transform", "commit")
    assert apply.apply_plan == PlanChoice.model_validate(APPROVED)
    assert check.config == plan.config == apply.config
    assert len(asset_events("file:///lake/approved_group")) == 1


@pytest.mark.parametrize(
    ("on_reject", "approve", "after"),
    [("skip", "skipped", "skipped"), ("fail", "failed", "upstream_failed")],
)
def test_a_rejected_plan_is_not_committed(
    run_and_answer: RunAndAnswer, planning_hook: Any, on_reject: str, approve: str, after: str
) -> None:
    """The last task and what follows the group are skipped, or do not run because the approval failed."""
    dag_id = f"rejected_group_{on_reject}"

    run, questions = run_and_answer(build_dag(dag_id, on_reject=on_reject), {APPROVE: "Reject"})

    assert list(questions) == [APPROVE]
    assert list_states(run) == {
        "check": "success", "plan": "success", "approve": approve, "apply": after, "publish": after,
    }  # fmt: skip
    assert len(planning_hook.requests) == 2


@pytest.mark.parametrize("is_mapped", [False, True])
def test_a_skipped_approval_permits_nothing(
    run_and_answer: RunAndAnswer, planning_hook: Any, is_mapped: bool
) -> None:
    """If a trigger rule lets the last task run after a rejection, it has no plan, and asks itself."""
    dag_id = f"ignored_rejection_{is_mapped}"
    load = {"source": "new", "primary_key": "id", "warehouse": "/lake"}
    with DAG(dag_id, schedule=None) as dag:
        save = UpsertOperator(task_id="plan", target="all", plan="save", **load)
        approve = ApprovePlanOperator(task_id="approve", plan_task_id="plan")
        arguments = {"task_id": "apply", "plan": approve.output, "trigger_rule": TriggerRule.ALL_DONE, **load}
        if is_mapped:
            apply: Any = UpsertOperator.partial(**arguments).expand(target=["all"])
        else:
            apply = UpsertOperator(target="all", **arguments)
        save >> approve >> apply

    run, _ = run_and_answer(dag, {"approve/-1": "Reject"})

    assert list_states(run) == {"plan": "success", "approve": "skipped", "apply": "success"}
    applied = planning_hook.requests[-1]
    assert (applied.until, applied.approval, applied.apply_plan) == ("commit", "always", None)


def test_nothing_to_do_goes_on_without_a_question(run_dag: Any, fake_hook: Any) -> None:
    """If no source has changed, nobody is asked, and what follows the group runs as after each merge."""
    fake = fake_hook(build_unchanged())

    run = run_dag(build_dag("unchanged_group"))

    assert list_states(run) == dict.fromkeys(("check", "plan", "approve", "apply", "publish"), "success")
    assert fake.requests[-1].approval == "always"
    assert fake.requests[-1].apply_plan is None


def test_the_group_is_mapped(run_and_answer: RunAndAnswer, planning_hook: Any) -> None:
    """In a mapped task group each instance asks about its own plan."""
    names = [f"load_country.orders.approve/{number}" for number in range(2)]
    load = {"primary_key": "id", "warehouse": "/lake"}
    with DAG("mapped_group", schedule=None) as dag:

        @task_group
        def load_country(source: str, target: str) -> None:
            build_reviewed_merge(UpsertOperator, group_id="orders", source=source, target=target, **load)

        load_country.expand_kwargs([{"source": name, "target": f"all_{name}"} for name in ("no", "de")])

    run, questions = run_and_answer(dag, dict(zip(names, ["Apply", "Reject"], strict=True)))

    bodies = [questions[name].body for name in names]
    assert "orders.plan/mapped/0/" in bodies[0]
    assert "orders.plan/mapped/1/" in bodies[1]
    states = {(item.task_id, item.map_index): str(item.state) for item in run.get_task_instances()}
    assert states["load_country.orders.apply", 0] == "success"
    assert states["load_country.orders.apply", 1] == "skipped"
    (applied,) = [request for request in planning_hook.requests if request.apply_plan]
    assert applied.config["source"] == "no"


def test_the_tasks_of_the_group_may_be_decorated(run_and_answer: RunAndAnswer, planning_hook: Any) -> None:
    """Each task that runs a job calls the function; the last one applies the plan that was approved."""
    calls: list[int] = []

    def choose_source() -> dict[str, Any]:
        calls.append(1)
        return {"source": "new"}

    def build_load(**arguments: Any) -> Any:
        result: Any = task.upsert(choose_source, **arguments)()
        return result.operator

    fixed = {"target": "orders", "primary_key": "id", "warehouse": "/lake"}
    with DAG("decorated_group", schedule=None) as dag:
        build_reviewed_merge(build_load, group_id="orders", **fixed)

    run, questions = run_and_answer(dag, {APPROVE: "Apply"})

    assert list(questions) == [APPROVE]
    assert set(list_states(run).values()) == {"success"}
    assert [request.config["source"] for request in planning_hook.requests] == ["new"] * 3
    assert planning_hook.requests[-1].apply_plan == PlanChoice.model_validate(APPROVED)
    assert len(calls) == 3
