"""Test what operators pass to Spark and Airflow about populated datasets; a fake hook replaces Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, task

from airflow_merge_provider.assets import dataset_asset
from airflow_merge_provider.core.protocol import JobResult
from airflow_merge_provider.operators.merge_source import MergeSourceOperator
from airflow_merge_provider.operators.upsert import UpsertOperator
from tests.fakes import build_report, build_unchanged
from tests.tables import FLAGGED, OURS, create_table

pytestmark = pytest.mark.airflow

RULES = {"datasets": ["crm c", "erp e"], "equality": [["eq", "c.email", "e.mail"]], "version": 2}


def build_operator(target: Any, **kwargs: Any) -> Any:
    return MergeSourceOperator(task_id="merge", target=target, **{**RULES, **kwargs})


def read_state(run: Any) -> Any:
    return str(run.get_task_instance("merge").state)


def test_the_job_is_told_what_the_flag_depends_on(run_dag: Any, fake_hook: Any) -> None:
    """The job gets the sources, the mode, and which of the sources a person has marked."""
    fake = fake_hook(build_unchanged())
    erp = dataset_asset("erp", warehouse="/lake")
    with DAG("told", schedule=None) as dag:

        @task(outlets=[erp])
        def mark_asset(asset_state_store: Any = None) -> None:
            asset_state_store[erp].set("populated", {"by": "vera"})

        mark_asset() >> build_operator("told_target", warehouse="/lake", set_initial_offset="{{ 'always' }}")

    run = run_dag(dag)

    population = fake.requests[0].population
    assert read_state(run) == "success"
    assert (population.target, population.set_initial_offset) == ("told_target", "always")
    assert population.datasets == ("crm", "erp")
    assert population.marked == ("file:///lake/erp",)


def test_becoming_populated_is_an_event(run_dag: Any, fake_hook: Any, asset_events: Any) -> None:
    """A target that becomes populated emits an event even without changed rows: sensors may wait for it."""
    fake_hook(JobResult(report=build_report(changed=False, populated=True, became_populated=True)))
    with DAG("becoming", schedule=None) as dag:
        build_operator("becoming_target", warehouse="/lake")

    run_dag(dag)

    (event,) = asset_events("file:///lake/becoming_target")
    assert event["populated"] is True


def test_a_catalog_table_is_marked(run_dag: Any, fake_hook: Any) -> None:
    """A catalog table is marked in its asset, because sensors cannot read it.

    The mark follows the table property, and is removed with it.
    """
    target = "lake.gold.orders"
    marks = []

    @task(inlets=[dataset_asset(target)])
    def look_at_asset(asset_state_store: Any = None) -> None:
        marks.append(asset_state_store[dataset_asset(target)].get("populated"))

    for number, populated in enumerate([True, False]):
        fake_hook(JobResult(report=build_report(populated=populated)))
        with DAG(f"marks_{number}", schedule=None) as dag:
            upsert = UpsertOperator(task_id="merge", source="/lake/new", target=target, primary_key="id")
            upsert >> look_at_asset()
        assert read_state(run_dag(dag)) == "success"

    assert marks[0]["job"] == "merge_source"
    assert marks[1] is None


def test_a_run_that_requires_it_waits_in_the_triggerer(
    run_dag: Any, fake_hook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that requires populated sources waits in the triggerer; Spark starts once they are populated."""
    from airflow_merge_provider.hooks import population
    from airflow_merge_provider.triggers import dataset_populated as trigger

    fake = fake_hook(build_unchanged())
    create_table(tmp_path / "crm")
    create_table(tmp_path / "erp", properties=OURS)
    original_get_status = population.get_status

    def look_later(*args: Any, **kwargs: Any) -> Any:
        assert fake.requests == []
        create_table(tmp_path / "erp", properties=FLAGGED)
        return original_get_status(*args, **kwargs)

    monkeypatch.setattr(trigger, "get_status", look_later)
    with DAG("requires", schedule=None) as dag:
        build_operator("required_target", warehouse=str(tmp_path), require_populated_input=True)

    run = run_dag(dag)

    assert read_state(run) == "success"
    assert len(fake.requests) == 1
    assert fake.requests[0].population.required


def test_a_target_without_a_flag_takes_no_mode() -> None:
    """A target without a flag rejects a mode: files count as populated once they exist, whatever the mode."""
    from airflow_merge_provider.core.errors import ConfigError
    from airflow_merge_provider.operators.merge_record import MergeRecordOperator

    folders = {"source": "/in", "merged": "/out", "failure": "/failed", "state_path": "/state"}
    folders["original_action"] = "keep"
    with pytest.raises(ConfigError, match="set_initial_offset: is supported only for Delta targets"):
        MergeRecordOperator(task_id="merge", reader="json", set_initial_offset="never", **folders)


@pytest.mark.parametrize(
    ("signals", "scheduled", "warned"), [(True, False, 1), (True, True, 0), (False, True, 1), (None, True, 0)]
)
def test_a_schedule_that_contradicts_is_warned_of(signals: Any, scheduled: Any, warned: Any) -> None:
    """A schedule that contradicts the sources logs a warning; the DAG keeps the schedule that it declares."""
    schedule = dataset_asset("crm") if scheduled else None
    with DAG(f"contradicts_{signals}_{scheduled}", schedule=schedule):
        operator = build_operator("signalled", supports_signalling=signals)

    warnings = operator.list_schedule_warnings(operator._parse_config()[0])

    assert sum("supports_signalling" in warning for warning in warnings) == warned
