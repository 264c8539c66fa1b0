"""Tests of the parent run that Spark jobs get, and of whether OpenLineage is used."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_merge_provider.lineage.settings import add_parent_run, is_openlineage_enabled

PARENT = "spark.openlineage.parentRunId"
NAMES = {
    "spark.openlineage.parentJobNamespace",
    "spark.openlineage.parentJobName",
    PARENT,
    "spark.openlineage.rootParentJobNamespace",
    "spark.openlineage.rootParentJobName",
    "spark.openlineage.rootParentRunId",
}


def build_context() -> Any:
    """Return what the macros of the OpenLineage provider read of a task instance."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    dag_run = SimpleNamespace(logical_date=at, run_after=at, clear_number=0, conf={})
    task_instance = SimpleNamespace(
        dag_id="d",
        task_id="t",
        try_number=1,
        map_index=-1,
        dag_run=dag_run,
        task=SimpleNamespace(task_id="t"),
    )
    task_instance.get_template_context = lambda: {"dag_run": dag_run}
    return {"ti": task_instance, "dag_run": dag_run}


@pytest.fixture
def openlineage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Configure a transport, without which OpenLineage is off."""
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__TRANSPORT", '{"type": "console"}')


@pytest.mark.usefixtures("openlineage")
def test_the_task_is_the_parent_of_its_spark_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the option of the operator, or of Airflow's configuration, Spark gets the task and the DAG run."""
    requested = add_parent_run({"spark.x": "1"}, build_context(), requested=True)
    assert requested is not None
    assert {*requested} == {"spark.x", *NAMES}
    assert requested["spark.openlineage.parentJobName"] == "d.t"
    assert requested["spark.openlineage.rootParentJobName"] == "d"

    assert add_parent_run(None, build_context(), requested=None) is None
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__SPARK_INJECT_PARENT_JOB_INFO", "True")
    assert {*(add_parent_run(None, build_context(), requested=None) or ())} == NAMES
    assert add_parent_run(None, build_context(), requested=False) is None


@pytest.mark.usefixtures("openlineage")
def test_a_parent_of_the_user_is_kept() -> None:
    """A user may name another parent, such as the job of another scheduler."""
    conf = {PARENT: "mine"}

    assert add_parent_run(conf, build_context(), requested=True) == conf


def test_without_openlineage_spark_gets_no_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """If OpenLineage has no transport, is disabled or is not installed, settings stay as they are."""
    conf = {"spark.x": "1"}
    assert not is_openlineage_enabled()
    assert add_parent_run(conf, build_context(), requested=True) is conf

    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__TRANSPORT", '{"type": "console"}')
    assert is_openlineage_enabled()
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__DISABLED", "True")
    assert not is_openlineage_enabled()

    monkeypatch.delenv("AIRFLOW__OPENLINEAGE__DISABLED")
    monkeypatch.setitem(sys.modules, "airflow.providers.openlineage.conf", None)
    assert not is_openlineage_enabled()
