"""Test decorated tasks in a DAG run in which a fake hook replaces Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, task

from airflow_merge_provider.core.protocol import JobResult
from tests.fakes import REPORT, build_report
from tests.tables import FLAGGED, OURS, create_table

pytestmark = pytest.mark.airflow


def list_states(run: Any) -> dict[Any, str]:
    return {(task.task_id, task.map_index): str(task.state) for task in run.get_task_instances()}


def test_a_function_computes_arguments_in_a_run(run_dag: Any, fake_hook: Any, asset_events: Any) -> None:
    """The function gets the result of another task; the XCom is the report, and the target has an event."""
    fake = fake_hook(JobResult(report=build_report()))
    with DAG("decorated", schedule=None) as dag:

        @task
        def find_source() -> str:
            return "orders_of_today"

        @task.upsert(target="decorated_target", warehouse="/lake", primary_key="id")
        def load_orders(source: str, run_id: Any = None) -> dict[str, Any]:
            return {"source": source, "source_filter": f"run = '{run_id}' AND day = '{{{{ ds_nodash }}}}'"}

        load_orders(find_source())

    run = run_dag(dag)

    assert list_states(run) == {("find_source", -1): "success", ("load_orders", -1): "success"}
    (request,) = fake.requests
    assert request.config["source"] == "orders_of_today"
    assert request.config["source_filter"].startswith(f"run = '{run.run_id}' AND day = '20")
    report = run.get_task_instance("load_orders").xcom_pull(task_ids="load_orders")
    summary = "an unknown number of rows were loaded into golden: 2 inserted, 1 updated; nothing was rejected"
    assert report == {**REPORT, "summary": summary}
    assert len(asset_events("file:///lake/decorated_target")) == 1


def test_a_decorated_task_is_mapped(run_dag: Any, fake_hook: Any) -> None:
    """``partial`` and ``expand`` take arguments of the function; each instance has a run of its own."""
    fake = fake_hook(JobResult(report=build_report()))
    with DAG("mapped", schedule=None) as dag:

        @task
        def list_countries() -> list[str]:
            return ["no", "de"]

        @task.delete_insert(warehouse="/lake", merge_key="day")
        def load_country(country: str, folder: str) -> dict[str, Any]:
            return {"source": f"{folder}_{country}", "target": f"loaded_{country}"}

        load_country.partial(folder="orders").expand(country=list_countries())

    run = run_dag(dag)

    states = list_states(run)
    assert states["load_country", 0] == states["load_country", 1] == "success"
    requests = sorted(fake.requests, key=lambda request: request.run.map_index)
    assert [request.run.map_index for request in requests] == [0, 1]
    assert [request.config["source"] for request in requests] == ["orders_no", "orders_de"]
    assert [request.config["target"] for request in requests] == ["loaded_no", "loaded_de"]


def test_wrong_results_fail_without_retry(run_dag: Any, fake_hook: Any) -> None:
    """A wrong argument fails the task at once, although it has retries."""
    fake = fake_hook(JobResult(report=build_report()))
    with DAG("wrong", schedule=None) as dag:

        @task.upsert(target="wrong_target", warehouse="/lake", retries=3)
        def load_orders() -> dict[str, Any]:
            return {"source": "orders", "primary_kye": "id"}

        load_orders()

    run = run_dag(dag)

    assert list_states(run) == {("load_orders", -1): "failed"}
    assert run.get_task_instance("load_orders").try_number == 1
    assert fake.requests == []


def test_a_run_that_waits_for_its_sources_keeps_its_arguments(
    run_dag: Any, fake_hook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function is called once, although the task waits for its sources in the triggerer."""
    from airflow_merge_provider.hooks import population
    from airflow_merge_provider.triggers import dataset_populated as trigger

    fake = fake_hook(JobResult(report=build_report()))
    create_table(tmp_path / "crm")
    create_table(tmp_path / "erp", properties=OURS)
    original_get_status = population.get_status
    calls: list[int] = []

    def look_later(*args: Any, **kwargs: Any) -> Any:
        create_table(tmp_path / "erp", properties=FLAGGED)
        return original_get_status(*args, **kwargs)

    monkeypatch.setattr(trigger, "get_status", look_later)
    with DAG("waiting", schedule=None) as dag:

        @task.merge_source(target="golden", warehouse=str(tmp_path), require_populated_input=True)
        def merge_customers() -> dict[str, Any]:
            calls.append(1)
            return {"datasets": ["crm c", "erp e"], "equality": [["eq", "c.x", f"e.x{len(calls)}"]]}

        merge_customers()

    run = run_dag(dag)

    assert list_states(run) == {("merge_customers", -1): "success"}
    (request,) = fake.requests
    assert request.config["equality"] == [["eq", "c.x", "e.x1"]]
    assert calls == [1]
