"""Test the task group for reviewed merges in DAG runs, in which a fake hook replaces Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, task, task_group

from airflow_merge_provider.core.change_plan.saved_plan import PlanChoice
from airflow_merge_provider.core.protocol import JobRequest, JobResult
from airflow_merge_provider.operators.upsert import UpsertOperator
from airflow_merge_provider.task_groups import reviewed_merge
from tests.fakes import REPORT, FakeSparkJobHook, build_unchanged
from tests.unit.operators.test_review import PLAN

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(120)]

PATIENCE = 60.0
AnswerQuestion = Callable[..., "Future[Any]"]


def answer_when_asked(dag_id: str, task_id: str, option: str, map_index: int) -> Any:
    """Wait until a task asks, answer as the endpoint of Airflow's API does, and return the question."""
    from airflow.models.taskinstance import TaskInstance  # noqa: TID251 - the server side
    from airflow.models.trigger import handle_event_submit  # noqa: TID251 - the server side
    from airflow.triggers.base import TriggerEvent
    from airflow.utils.session import create_session  # noqa: TID251 - the server side
    from sqlalchemy import select

    names = {"dag_id": dag_id, "task_id": task_id, "map_index": map_index, "state": "awaiting_input"}
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with create_session() as session:
            instance = session.scalar(select(TaskInstance).filter_by(**names))
            if instance is not None:
                detail = instance.hitl_detail
                detail.responded_by = {"id": "7", "name": "ada"}
                detail.responded_at = datetime.now(tz=UTC)
                detail.chosen_options = [option]
                detail.params_input = {}
                event: Any = TriggerEvent(detail.as_resume_event_payload())
                handle_event_submit(event, task_instance=instance, session=session)
                return SimpleNamespace(subject=detail.subject, body=detail.body)
        time.sleep(0.2)
    message = f"task {task_id} has not asked"
    raise TimeoutError(message)


@pytest.fixture
def answer(airflow_db: None) -> Iterator[AnswerQuestion]:
    """Answer a question of a DAG run from another thread, because the run waits for the answer."""
    with ThreadPoolExecutor(2) as pool:

        def start_answering(
            dag_id: str, option: str, task_id: str = "orders.approve", map_index: int = -1
        ) -> Future[Any]:
            return pool.submit(answer_when_asked, dag_id, task_id, option, map_index)

        yield start_answering


@pytest.fixture
def planning_hook(fake_hook: Any) -> type[FakeSparkJobHook]:
    """Replace Spark: a run with ``save_plan`` returns a plan, other runs a report without one."""
    fake: type[FakeSparkJobHook] = fake_hook(JobResult(report=REPORT))

    def submit(self: FakeSparkJobHook, request: JobRequest) -> JobResult:
        type(self).requests.append(request)
        rows = {"inserted": 30, "updated": 0, "deleted": 1, "unchanged": 99}
        planned = {**REPORT, "dry_run": True, "rows": rows, "plan": PLAN}
        return JobResult(report=planned if request.save_plan else REPORT)

    fake.submit = submit
    return fake


def build_dag(dag_id: str, **arguments: Any) -> DAG:
    """Build a DAG with the group, and a task that requires its success."""
    load = {"source": "new", "target": dag_id, "primary_key": "id", "warehouse": "/lake"}
    with DAG(dag_id, schedule=None) as dag:

        @task
        def publish() -> str:
            return "published"

        reviewed_merge(UpsertOperator, group_id="orders", **{**load, **arguments}) >> publish()
    return dag


def list_states(run: Any) -> dict[str, str]:
    return {item.task_id.removeprefix("orders."): str(item.state) for item in run.get_task_instances()}


def test_an_approved_plan_is_committed(
    run_dag: Any, planning_hook: Any, answer: AnswerQuestion, asset_events: Any
) -> None:
    """The last task applies the plan that was shown, in the name of the person, and only it emits an event."""
    asked = answer("approved_group", "Apply")

    run = run_dag(build_dag("approved_group"))

    assert asked.result().subject == "golden: changes 31 % of 100 rows: 30 inserted, 1 deleted"
    assert list_states(run) == dict.fromkeys(("check", "plan", "approve", "apply", "publish"), "success")
    check, plan, apply = planning_hook.requests
    assert (check.until, plan.until, apply.until) == ("plan", "transform", "commit")
    assert apply.apply_plan == PlanChoice(version=3, approved_by="ada")
    assert check.config == plan.config == apply.config
    assert len(asset_events("file:///lake/approved_group")) == 1


@pytest.mark.parametrize(
    ("on_reject", "approve", "after"),
    [("skip", "skipped", "skipped"), ("fail", "failed", "upstream_failed")],
)
def test_a_rejected_plan_is_not_committed(
    run_dag: Any, planning_hook: Any, answer: AnswerQuestion, on_reject: str, approve: str, after: str
) -> None:
    """The last task and what follows the group are skipped, or do not run because the approval failed."""
    dag_id = f"rejected_group_{on_reject}"
    asked = answer(dag_id, "Reject")

    run = run_dag(build_dag(dag_id, on_reject=on_reject))

    asked.result()
    assert list_states(run) == {
        "check": "success", "plan": "success", "approve": approve, "apply": after, "publish": after,
    }  # fmt: skip
    assert len(planning_hook.requests) == 2


def test_nothing_to_do_goes_on_without_a_question(run_dag: Any, fake_hook: Any) -> None:
    """If no source has changed, nobody is asked, and what follows the group runs as after each merge."""
    fake = fake_hook(build_unchanged())

    run = run_dag(build_dag("unchanged_group"))

    assert list_states(run) == dict.fromkeys(("check", "plan", "approve", "apply", "publish"), "success")
    assert fake.requests[-1].approval == "always"
    assert fake.requests[-1].apply_plan is None


def test_the_group_is_mapped(run_dag: Any, planning_hook: Any, answer: AnswerQuestion) -> None:
    """In a mapped task group each instance asks about its own plan."""
    asked = [
        answer("mapped_group", option, "load_country.orders.approve", number)
        for number, option in enumerate(["Apply", "Reject"])
    ]
    load = {"primary_key": "id", "warehouse": "/lake"}
    with DAG("mapped_group", schedule=None) as dag:

        @task_group
        def load_country(country: str) -> None:
            reviewed_merge(UpsertOperator, group_id="orders", source=country, target=f"{country}", **load)

        load_country.expand(country=["no", "de"])

    run = run_dag(dag)

    bodies = [question.result().body for question in asked]
    assert "orders.plan/mapped/0/" in bodies[0]
    assert "orders.plan/mapped/1/" in bodies[1]
    states = {(item.task_id, item.map_index): str(item.state) for item in run.get_task_instances()}
    assert states["load_country.orders.apply", 0] == "success"
    assert states["load_country.orders.apply", 1] == "skipped"
    (applied,) = [request for request in planning_hook.requests if request.apply_plan]
    assert applied.config["source"] == "no"
