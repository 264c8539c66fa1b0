"""Tests of the task group for reviewed merges: its tasks, their arguments, and how it is serialized."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from airflow.sdk import DAG, Asset, task, task_group
from airflow.serialization.serialized_objects import DagSerialization

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.operators.merge_record import MergeRecordOperator
from airflow_merge_provider.operators.upsert import UpsertOperator
from airflow_merge_provider.task_groups import build_reviewed_merge

LOAD = {"source": "/lake/new", "target": "/lake/orders", "primary_key": "id"}
TASKS = ["check", "plan", "approve", "apply"]


def build_dag(operator: Any = UpsertOperator, **arguments: Any) -> DAG:
    with DAG("reviewed", schedule=None) as dag:
        build_reviewed_merge(operator, group_id="orders", **{**LOAD, **arguments})
    return dag


def test_the_tasks_follow_each_other() -> None:
    """The group has four tasks in a chain, and what follows the group follows the last one."""
    with DAG("chain", schedule=None) as dag:

        @task
        def publish() -> None: ...

        build_reviewed_merge(UpsertOperator, **LOAD) >> publish()

    for name, following in zip(
        TASKS, [*(f"reviewed_merge.{name}" for name in TASKS[1:]), "publish"], strict=True
    ):
        item = dag.get_task(f"reviewed_merge.{name}")
        assert following in item.downstream_task_ids


def test_only_the_last_task_writes_and_has_the_asset() -> None:
    """``check`` and ``plan`` commit nothing and emit no event; the last one applies the approved plan."""
    dag = build_dag(on_reject="fail", approval_timeout=timedelta(hours=1))
    check, plan, approve, apply = (dag.get_task(f"orders.{name}") for name in TASKS)

    assert (check.plan, plan.plan) == ("check", "save")
    assert check._is_dry_run
    assert apply.plan.operator is approve
    assert approve.plan_task_id == "orders.plan"
    assert (approve.on_reject, apply.on_reject) == ("fail", "fail")
    assert approve.approval_timeout == timedelta(hours=1)
    assert check.outlets == plan.outlets == approve.outlets == []
    assert [asset.uri for asset in apply.outlets] == ["file:///lake/orders"]
    assert build_dag(emit_asset=False).get_task("orders.apply").outlets == []


def test_a_function_may_build_the_operators() -> None:
    """Instead of a class, the group takes a function that returns operators, such as a partial."""
    with DAG("factory", schedule=None) as dag:
        build_reviewed_merge(partial(UpsertOperator, **LOAD), group_id="orders", variant="insert-only")

    assert {dag.get_task(f"orders.{name}").variant for name in ("check", "plan", "apply")} == {"insert-only"}


def test_arguments_of_tasks_go_to_the_tasks_that_they_concern() -> None:
    """``outlets`` are those of the task that commits; nothing runs after a rejection, whatever is set."""
    mine = Asset("mine", uri="file:///mine")
    defaults = {"trigger_rule": "none_failed", "approve": "always", "outlets": [mine], "retries": 2}
    with DAG("defaults", schedule=None, default_args=defaults) as dag:
        build_reviewed_merge(UpsertOperator, group_id="orders", **LOAD)
    check, plan, approve, apply = (dag.get_task(f"orders.{name}") for name in TASKS)
    explicit = build_dag(trigger_rule="all_done", outlets=[mine], execution_timeout=timedelta(hours=3))
    explicit_tasks = [explicit.get_task(f"orders.{name}") for name in TASKS]

    assert [item.trigger_rule for item in (check, plan, approve, apply)] == [
        "none_failed",
        *["all_success"] * 3,
    ]
    assert [item.trigger_rule for item in explicit_tasks] == ["all_done", *["all_success"] * 3]
    assert [item.retries for item in (check, plan, approve, apply)] == [2, 2, 2, 2]
    assert check.outlets == plan.outlets == explicit_tasks[0].outlets == explicit_tasks[1].outlets == []
    assert mine in apply.outlets
    assert mine in explicit_tasks[3].outlets
    assert explicit_tasks[2].approval_timeout == explicit_tasks[3].approval_timeout == timedelta(hours=3)


def test_a_function_may_build_decorated_tasks() -> None:
    """The arguments of the operators may be computed, too."""
    with DAG("decorated", schedule=None) as dag:

        def choose_source() -> dict[str, Any]:
            return {"source": "/lake/new"}

        def build_task(**arguments: Any) -> Any:
            result: Any = task.upsert(choose_source, **arguments)()
            return result.operator

        fixed = {name: LOAD[name] for name in ("target", "primary_key")}
        build_reviewed_merge(build_task, group_id="orders", **fixed)

    check, plan, approve, apply = (dag.get_task(f"orders.{name}") for name in TASKS)
    assert (check.plan, plan.plan) == ("check", "save")
    assert apply.plan.operator is approve
    assert [asset.uri for asset in apply.outlets] == ["file:///lake/orders"]


def test_arguments_of_the_group_are_refused() -> None:
    """The group sets some arguments itself; all of them are reported at once."""
    with pytest.raises(ConfigError) as refused:
        build_dag(plan="save", dry_run=True, approve="always")

    assert [problem.path for problem in refused.value.problems] == ["plan", "approve", "dry_run"]
    assert "task group 'orders': plan: is set by the task group (leave it out)" in str(refused.value)


def test_wrong_arguments_are_found_while_parsing() -> None:
    """Literal arguments are checked once, as those of the operator."""
    with pytest.raises(ConfigError, match=r"task 'orders.check': variant: must be 'upsert'"):
        build_dag(variant="upsrt")


def test_an_operator_without_plans_is_refused() -> None:
    """A merge of files has no saved plans."""
    folders = {"source": "/in", "merged": "/out", "failure": "/failed", "state_path": "/state"}
    with pytest.raises(ConfigError, match="plan: is not supported"), DAG("files", schedule=None):
        build_reviewed_merge(MergeRecordOperator, reader="json", original_action="keep", **folders)


def test_the_group_is_serialized() -> None:
    """The group survives serialization, also in a mapped task group."""
    with DAG("nested", schedule=None) as dag:

        @task_group
        def load_country(country: str) -> None:
            build_reviewed_merge(UpsertOperator, **{**LOAD, "source": country, "target": country})

        load_country.expand(country=["no", "de"])

    loaded = DagSerialization.from_dict(DagSerialization.to_dict(dag))

    ids = [f"load_country.reviewed_merge.{name}" for name in TASKS]
    assert sorted(loaded.task_dict) == sorted(ids)
    assert loaded.get_task(ids[2]).plan_task_id == ids[1]
    assert loaded.get_task(ids[3]).upstream_task_ids == {ids[2]}
