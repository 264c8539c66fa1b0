"""Tests of the task decorators: fixed and computed arguments, their checks, and waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG, Asset, task
from airflow.sdk.exceptions import TaskAwaitingInput, TaskDeferred
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.context import OutletEventAccessors
from airflow.sdk.serde import deserialize, serialize
from airflow.serialization.serialized_objects import DagSerialization

from airflow_merge_provider.core.change_plan.saved_plan import PlanChoice
from airflow_merge_provider.core.errors import ConfigError, Problem
from airflow_merge_provider.core.protocol import JobResult
from airflow_merge_provider.core.risk import RiskError
from airflow_merge_provider.decorators import upsert_task
from airflow_merge_provider.jobs.run.entry import build_failure
from airflow_merge_provider.operators import _spark_job
from airflow_merge_provider.operators._arguments import RefusedArgumentsError
from tests.fakes import FakeSparkJobHook, build_report
from tests.unit.operators.test_review import APPROVED, PLAN, SEEN, YES

FIXED = {"target": "orders", "warehouse": "/lake"}
NAMES = ("delete_insert", "joiner", "merge_engine", "merge_record", "merge_source", "scd2", "upsert")
# A complete set of arguments of each operator: those of the decorator, and those that the function returns.
COMPLETE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "delete_insert": ({"target": "t"}, {"source": "s", "merge_key": ["day"]}),
    "joiner": ({"target": "t", "join_keys": "a.x = b.x"}, {"inputs": {"a": "left", "b": "right"}}),
    "merge_engine": ({"target": "t"}, {"source": "s", "primary_key": ["id"]}),
    "merge_record": (
        {"merged": "/out", "failure": "/failed", "state_path": "/state", "original_action": "keep"},
        {"source": "/in", "reader": "json", "max_bin_age": timedelta(minutes=5), "max_bins": None},
    ),
    "merge_source": ({"target": "t", "equality": [["eq", "a.x", "b.x"]]}, {"datasets": ["A a", "B b"]}),
    "scd2": ({"target": "t"}, {"source": "s", "natural_key": "id"}),
    "upsert": ({"target": "t"}, {"source": "s", "primary_key": "id"}),
}


def build_task(name: str, function: Callable[..., Any], **fixed: Any) -> Any:
    """Return the operator of a decorated function."""
    return getattr(task, name)(function, **fixed)().operator


def build_upsert(returned: Any, **fixed: Any) -> Any:
    def choose_arguments() -> Any:
        return returned

    return build_task("upsert", choose_arguments, **{**FIXED, **fixed})


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replace Spark by a prepared answer, and return the requests and a context."""

    def install_answer(answer: Any = None) -> Any:
        fake = FakeSparkJobHook.create_fake(answer or JobResult(report=build_report()))
        monkeypatch.setattr(_spark_job, "SparkJobHook", fake)
        xcoms: dict[str, Any] = {}
        names = {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": -1, "id": UUID(int=1)}
        instance = SimpleNamespace(
            **names,
            xcom_push=lambda key, value: xcoms.update({key: serialize(value)}),
            xcom_pull=lambda key, map_indexes: deserialize(xcoms.get(key)),
            task=SimpleNamespace(outlets=[]),
        )
        times = {"data_interval_end": datetime(2026, 11, 24, tzinfo=UTC), "ds": "2026-11-24"}
        return fake, {"ti": instance, "run_id": "r", "outlet_events": OutletEventAccessors(), **times}

    return install_answer


@pytest.mark.parametrize("name", NAMES)
def test_every_operator_has_a_decorator(answering: Any, name: str) -> None:
    """``@task.<name>`` runs the operator of its name with the arguments of both, and returns the report."""
    fixed, computed = COMPLETE[name]
    fake, context = answering(JobResult(report=build_report(details={"next_expiry": None})))
    operator = getattr(task, name)(lambda: computed, task_id="t", warehouse="/lake", **fixed)().operator
    plain = operator.operator_class(task_id="plain", warehouse="/lake", **fixed, **computed)

    report = operator.execute(context)
    plain.execute(context)

    assert report["job"] == "merge_source"
    assert operator.custom_operator_name == f"@task.{name}"
    decorated_request, plain_request = fake.requests
    assert decorated_request.config == plain_request.config
    assert decorated_request.job == plain_request.job


def test_the_function_gets_its_arguments_and_the_context(answering: Any) -> None:
    """The function takes arguments and values of the context, as each TaskFlow function."""
    fake, context = answering()

    def choose_source(day: str, prefix: str = "x", ds: Any = None) -> Mapping[str, Any]:
        return {"source": f"{prefix}_{day}", "primary_key": "id", "source_filter": f"day <= '{ds}'"}

    operator = upsert_task(choose_source, **FIXED)("monday", prefix="orders").operator
    operator.execute(context)

    (request,) = fake.requests
    assert request.config["source"] == "orders_monday"
    assert request.config["source_filter"] == "day <= '2026-11-24'"


def test_templates_in_the_result_are_rendered_once(answering: Any) -> None:
    """A template that the function returns is rendered, and the result of rendering is not rendered again."""
    fake, context = answering()
    computed = {
        "source": "orders_{{ ds }}",
        "primary_key": ["{{ key }}"],
        "skip_unchanged_rows": "{{ skip }}",
        "source_filter": "{{ filter }}",
    }
    values = {"key": "id", "skip": "False", "filter": "v <> '{{ ds }}'"}

    build_upsert(computed).execute({**context, **values})

    (request,) = fake.requests
    assert request.config["source"] == "orders_2026-11-24"
    assert request.config["primary_key"] == ["id"]
    assert request.config["skip_unchanged_rows"] is False
    assert request.config["source_filter"] == "v <> '{{ ds }}'"


def test_all_problems_of_the_result_are_reported_at_once(answering: Any) -> None:
    """Unknown names have a suggestion, and wrong values their path; neither Spark nor a retry starts."""
    fake, context = answering()
    operator = build_upsert({
        "sorce": "s", "primary_key": "id", "variant": "upsrt",
        "target": "other", "retries": 3, "emit_asset": False,
    })  # fmt: skip

    with pytest.raises(RefusedArgumentsError) as refused:
        operator.execute(context)

    assert {problem.path: str(problem) for problem in refused.value.problems}.keys() == {
        "sorce", "variant", "target", "retries", "emit_asset", "source",
    }  # fmt: skip
    text = str(refused.value)
    assert "task 'choose_arguments'" in text
    assert "sorce: unknown argument 'sorce' (did you mean 'source'" in text
    assert "target: is an argument of the decorator and of the returned mapping" in text
    assert "retries: cannot be computed by a run" in text
    assert isinstance(refused.value, AirflowFailException)
    assert fake.requests == []


@pytest.mark.parametrize("returned", [None, "orders", ["orders"]])
def test_a_result_that_is_no_mapping_is_refused(answering: Any, returned: Any) -> None:
    """The function has to return a mapping, also an empty one."""
    _, context = answering()

    with pytest.raises(RefusedArgumentsError, match="return value: must be a mapping of arguments of Upsert"):
        build_upsert(returned, source="s", primary_key="id").execute(context)


def test_lineage_begins_when_the_arguments_are_known(answering: Any) -> None:
    """OpenLineage asks when the task starts: the datasets are not known before the function has returned."""
    _, context = answering()
    operator = build_upsert({"source": "/lake/s", "primary_key": "id"}, target="/lake/orders")

    assert operator.get_openlineage_facets_on_start() is None
    operator.execute(context)
    lineage = operator.get_openlineage_facets_on_complete(None)

    assert [dataset.name for dataset in lineage.inputs] == ["/lake/s"]
    assert [dataset.name for dataset in lineage.outputs] == ["/lake/orders"]


def test_an_empty_result_leaves_the_fixed_arguments(answering: Any) -> None:
    """The fixed arguments may be complete; wrong ones are found before Spark starts."""
    fake, context = answering()
    build_upsert({}, source="s", primary_key="id").execute(context)
    assert fake.requests[0].config["source"] == "s"

    with pytest.raises(RefusedArgumentsError, match="variant: must be 'upsert', 'insert-only'"):
        build_upsert({}, source="s", primary_key="id", variant="upsrt").execute(context)


def test_an_unknown_fixed_argument_is_refused_while_parsing() -> None:
    """Names of fixed arguments are checked when the DAG is parsed."""
    with pytest.raises(ConfigError, match=r"primry_key: unknown argument 'primry_key' \(did you mean"):
        build_upsert({}, primry_key="id")


def test_the_target_of_the_decorator_is_an_outlet(answering: Any) -> None:
    """Fixed datasets declare assets, as those of the operator do; computed ones are not known in the DAG."""
    mine = Asset("mine", uri="file:///lake/mine")
    with_target = build_upsert({"source": "s", "primary_key": "id"}, target=mine)
    with_source = build_upsert({"primary_key": "id"}, source="new")
    without = build_task("upsert", lambda: {**FIXED, "source": "s", "primary_key": "id"}, task_id="t")

    assert with_target.outlets == [mine]
    assert [asset.uri for asset in with_source.inlets] == ["file:///lake/new"]
    assert [asset.uri for asset in with_source.outlets] == ["file:///lake/orders"]
    assert without.outlets == without.inlets == []
    fake, context = answering()
    with_target.execute(context)
    without.execute(context)
    assert [request.config["target"] for request in fake.requests] == ["file:///lake/mine", "orders"]
    assert context["outlet_events"][mine].extra["version"] == 3


def test_a_warehouse_that_moves_the_asset_is_refused(answering: Any) -> None:
    """The asset of a bare ID in the decorator is that of the default warehouse, and must not be updated."""
    fake, context = answering()
    computed = {"source": "s", "primary_key": "id", "warehouse": "/other"}

    with pytest.raises(RefusedArgumentsError, match="warehouse: cannot be computed by a run: the asset of"):
        build_task("upsert", lambda: computed, task_id="t", target="orders").execute(context)

    assert fake.requests == []
    build_task("upsert", lambda: computed, task_id="t", target="orders", emit_asset=False).execute(context)
    build_task("upsert", lambda: {**computed, "target": "orders"}, task_id="t").execute(context)
    build_task("upsert", lambda: computed, task_id="t", target="/lake/orders").execute(context)
    assert [request.warehouse for request in fake.requests] == ["/other"] * 3


def test_an_asset_may_be_returned(answering: Any) -> None:
    """An asset that the function returns is the dataset behind it."""
    fake, context = answering()

    build_upsert({"source": Asset("a", uri="s3://lake/a"), "primary_key": "id"}).execute(context)

    assert fake.requests[0].config["source"] == "s3://lake/a"


def test_default_arguments_of_the_dag_count(answering: Any) -> None:
    """An argument in default_args needs no value of the function, which may return another one."""
    fake, context = answering()
    defaults = {"primary_key": "id", "source": "s", "retries": 7}
    with DAG("defaults", schedule=None, default_args=defaults):
        operator = build_upsert({"source": "other"})
    operator.execute(context)

    assert operator.retries == 7
    assert fake.requests[0].config["source"] == "other"
    assert fake.requests[0].config["primary_key"] == "id"


@pytest.fixture
def question(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer as the Airflow server does, which returns the stored question."""
    supervisor = SimpleNamespace(send=lambda message: message)
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", supervisor, raising=False)


def test_an_approved_run_has_the_arguments_that_were_shown(answering: Any, question: None) -> None:
    """After the approval the function is not called again: the run applies what the person has seen."""
    calls: list[int] = []

    def choose_source() -> dict[str, Any]:
        calls.append(1)
        return {"source": f"orders_{len(calls)}", "natural_key": "id", "source_filter": "day = '{{ ds }}'"}

    report = build_report(rows={"inserted": 30, "updated": 0, "deleted": 1, "unchanged": 99}, plan=PLAN)
    risk = RiskError.from_problem(Problem("approve", "approval", "of a person"), report)
    fake, context = answering(build_failure(risk))
    settings = {**FIXED, "approve": "always"}
    with pytest.raises(TaskAwaitingInput) as waiting:
        build_task("scd2", choose_source, **settings).execute(context)
    (first,) = fake.requests
    fake.answer = JobResult(report=build_report())

    # Airflow builds the task again from the DAG file.
    build_task("scd2", choose_source, **settings).resume_execution(
        waiting.value.method_name, {**waiting.value.kwargs, "event": YES}, {**context, "ds": "2027-01-01"}
    )

    second = fake.requests[1]
    assert len(calls) == 1
    assert second.apply_plan == PlanChoice.model_validate(APPROVED)
    assert second.config == first.config
    assert second.config["source_filter"] == "day = '2026-11-24'"
    assert second.config["boundary_timestamp"] == "2026-11-24T00:00:00+00:00"


def test_a_function_cannot_return_keys(answering: Any) -> None:
    """A key or a password in a computed ``conf`` is refused: an XCom would store it while the task waits."""
    fake, context = answering()
    conf = {"spark.hadoop.fs.s3a.secret.key": "planted", "spark.ssl.keyPassword": "planted", "spark.x": "1"}

    with pytest.raises(RefusedArgumentsError) as refused:
        build_upsert({"source": "s", "primary_key": "id", "conf": conf}).execute(context)

    assert [problem.path for problem in refused.value.problems] == [f"conf.{name}" for name in list(conf)[:2]]
    assert ("planted" in str(refused.value), fake.requests) == (False, [])


def test_a_task_that_waits_for_files_keeps_its_arguments(answering: Any, tmp_path: Any) -> None:
    """A deferred task continues with the arguments that it has waited with, in their native types."""
    calls: list[int] = []

    def choose_folders() -> dict[str, Any]:
        calls.append(1)
        folder = tmp_path / str(len(calls))
        folder.mkdir()
        return {
            "source": str(folder),
            "reader": "json",
            "max_bin_age": timedelta(minutes=5),
            "max_bins": None,
        }

    fixed, _ = COMPLETE["merge_record"]
    settings = {**fixed, "state_path": str(tmp_path / "state"), "deferrable": True}
    fake, context = answering(JobResult(report=build_report(details={"next_expiry": None})))
    with pytest.raises(TaskDeferred) as waiting:
        build_task("merge_record", choose_folders, **settings).execute(context)

    build_task("merge_record", choose_folders, **settings).resume_execution(
        waiting.value.method_name, {"event": "a file has arrived"}, context
    )

    assert waiting.value.trigger.config["source"] == str(tmp_path / "1")
    (request,) = fake.requests
    assert request.config["source"] == str(tmp_path / "1")
    assert (request.config["max_bin_age"], request.config["max_bins"]) == ("300 secs", "unlimited")
    assert len(calls) == 1


def test_a_task_whose_arguments_are_lost_does_not_continue(answering: Any) -> None:
    """Without the stored arguments the task fails: the function might return others than were approved."""
    fake, context = answering()

    with pytest.raises(RefusedArgumentsError, match="XCom 'merge_arguments': is missing"):
        build_upsert({"source": "s", "primary_key": "id"}).resume_execution(
            "after_review", {"event": YES, "reviewed": SEEN}, context
        )

    assert fake.requests == []


def test_a_failed_wait_fails_the_task() -> None:
    """If a trigger fails, the error is that of the wait."""
    from airflow.sdk.exceptions import TaskDeferralError

    with pytest.raises(TaskDeferralError, match="broken"):
        build_upsert({}).resume_execution("__fail__", {"error": "broken"}, {})


def test_a_dag_with_decorated_tasks_is_serialized() -> None:
    """The DAG survives serialization: template fields, the link to the report, mapped tasks."""
    with DAG("serialized", schedule=None) as dag:

        @task.upsert(target="/lake/orders")
        def load_orders() -> dict[str, Any]:
            return {"source": "/lake/new", "primary_key": "id"}

        @task.delete_insert(merge_key="day", map_index_template="{{ task.target }}")
        def load_days(day: str, folder: str) -> dict[str, Any]:
            return {"source": f"{folder}/{day}", "target": f"{folder}/loaded_{day}"}

        load_orders() >> load_days.partial(folder="/lake").expand(day=["monday", "tuesday"])

    stored = DagSerialization.to_dict(dag)
    loaded = DagSerialization.from_dict(stored)

    assert DagSerialization.to_dict(loaded) == DagSerialization.to_dict(DagSerialization.from_dict(stored))
    orders, days = loaded.get_task("load_orders"), loaded.get_task("load_days")
    assert (orders.operator_name, days.operator_name) == ("@task.upsert", "@task.delete_insert")
    assert days.is_mapped
    assert orders.primary_key == "DYNAMIC (set during execution)"
    assert "Merge report" in orders.extra_links
    assert [outlet.uri for outlet in orders.outlets] == ["file:///lake/orders"]
    assert orders.downstream_task_ids == {"load_days"}


def test_the_return_type_makes_no_outputs_of_the_report() -> None:
    """The XCom is the report, so ``-> dict`` does not split it into keys."""
    operator = build_task("upsert", _return_mapping, **FIXED)

    assert operator.multiple_outputs is False


def _return_mapping() -> dict[str, Any]:
    return {}


def test_a_fixed_template_is_rendered_and_parsed(answering: Any) -> None:
    """A template in the decorator is a template field of the task, converted as those of the operator."""
    fake, context = answering()
    operator = build_upsert({"source": "s", "primary_key": "id"}, skip_unchanged_rows="{{ flag }}")
    operator.render_template_fields({**context, "flag": False})

    operator.execute(context)

    assert fake.requests[0].config["skip_unchanged_rows"] is False
