"""Tests of the merge load operators without a database: requests, errors and assets."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.merge_load.config import load_config
from airflow_merge_provider.core.protocol import JobResult
from airflow_merge_provider.operators import _spark_job
from airflow_merge_provider.operators.delete_insert import DeleteInsertOperator
from airflow_merge_provider.operators.scd2 import Scd2CheckOperator, Scd2Operator
from airflow_merge_provider.operators.upsert import UpsertOperator
from tests.fakes import FakeSparkJobHook, build_report

DUE = datetime(2024, 5, 2, 3, tzinfo=UTC)
END = datetime(2024, 5, 2, tzinfo=UTC)


def build_operator(operator: Any, **kwargs: Any) -> Any:
    arguments = {"task_id": "load", "source": "s", "target": "t", "warehouse": "/lake", **kwargs}
    return operator(**arguments)


def request_of(task: Any, monkeypatch: pytest.MonkeyPatch, **context: Any) -> Any:
    """Execute an operator with a plain context and return the request of the job."""
    fake = FakeSparkJobHook.create_fake(JobResult(report=build_report()))
    monkeypatch.setattr(_spark_job, "SparkJobHook", fake)
    instance = SimpleNamespace(
        dag_id="d", run_id="r", task_id="load", map_index=-1, task=task, xcom_push=lambda key, value: None
    )
    task.execute({"ti": instance, "run_id": "r", "outlet_events": OutletEventAccessors(), **context})
    return fake.requests[0]


@pytest.mark.parametrize(
    ("operator", "arguments", "strategy"),
    [
        (UpsertOperator, {"primary_key": "id", "variant": "cdc"}, "upsert"),
        (DeleteInsertOperator, {"merge_key": ["a", "b"]}, "delete-insert"),
        (Scd2Operator, {"natural_key": "id"}, "scd2"),
    ],
)
def test_the_job_gets_the_strategy_and_the_arguments(
    operator: Any, arguments: Any, strategy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request has a complete configuration that the job can parse."""
    request = request_of(build_operator(operator, **arguments), monkeypatch, data_interval_end=END)

    assert request.job == "merge_load"
    assert request.config["strategy"] == strategy
    assert {name: request.config[name] for name in arguments} == arguments
    assert isinstance(load_config(request.config), operator.config_class)


@pytest.mark.parametrize(
    ("context", "at"),
    [
        (
            {"data_interval_end": DUE, "dag_run": SimpleNamespace(run_after=DUE, partition_date=END)},
            END,
        ),
        ({"data_interval_end": END, "dag_run": SimpleNamespace(run_after=DUE)}, END),
        ({"data_interval_end": None, "dag_run": SimpleNamespace(run_after=DUE)}, DUE),
    ],
    ids=["partition", "scheduled", "without an interval"],
)
def test_a_load_counts_for_the_time_of_its_run(
    context: Any, at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every try of a task loads with the same load time, however late it runs."""
    request = request_of(build_operator(Scd2Operator), monkeypatch, **context)

    assert load_config(request.config).boundary_timestamp == at


@pytest.mark.parametrize(
    "arguments", [{"boundary_timestamp": "2024-01-01"}, {"natural_key": "id", "effective_from": "2024-01-01"}]
)
def test_a_time_that_is_given_stays(arguments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A given time is not overridden by the data interval, in any argument."""
    request = request_of(build_operator(Scd2Operator, **arguments), monkeypatch, data_interval_end=END)

    assert load_config(request.config).time_given == datetime(2024, 1, 1, tzinfo=UTC)


def test_a_check_reads_a_history_and_updates_no_asset(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check reads a history and updates no asset.

    Its source is optional; the datasets that it reads are inlets.
    """
    task = Scd2CheckOperator(task_id="check", target="t", source="s", warehouse="/lake")

    request = request_of(task, monkeypatch)

    assert (request.job, request.config) == (
        "merge_load",
        {"strategy": "scd2-check", "target": "t", "source": "s"},
    )
    assert [asset.uri for asset in task.inlets] == ["file:///lake/t", "file:///lake/s"]
    assert task.outlets == []


@pytest.mark.parametrize("operator", [UpsertOperator, DeleteInsertOperator, Scd2Operator])
def test_arguments_of_all_loads_reach_the_job(operator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments of all loads are templated and part of the configuration."""
    key_arguments = {"primary_key": "id"} if operator is not Scd2Operator else {"natural_key": "id"}
    common_arguments = {
        "source_filter": "a = 1", "hard_delete": "gone", "dedup_sort": {"a": "asc"}, "on_empty": "skip",
        "nested": "tables", "schema_evolution": "error", "dispatch_by": "type",
    }  # fmt: skip

    request = request_of(
        build_operator(operator, **key_arguments, **common_arguments), monkeypatch, data_interval_end=END
    )

    assert {name: request.config[name] for name in common_arguments} == common_arguments
    assert set(common_arguments) <= set(operator.template_fields)


def test_literal_arguments_are_checked_when_the_dag_is_parsed() -> None:
    """All problems of literal arguments are reported together at parse time."""
    with pytest.raises(ConfigError) as refused:
        build_operator(DeleteInsertOperator, source="a b", deduplicated="yes", on_empty="ignore")

    assert {problem.path for problem in refused.value.problems} == {"source", "deduplicated", "on_empty"}


def test_source_and_target_are_assets() -> None:
    """Source and target are assets; a source with a format is read but has no asset."""
    task = build_operator(UpsertOperator, primary_key="id", source=Asset("mine", uri="s3://lake/orders"))
    files = build_operator(UpsertOperator, primary_key="id", source={"dataset": "/in", "format": "parquet"})

    assert [asset.uri for asset in task.inlets] == ["s3://lake/orders"]
    assert [asset.uri for asset in task.outlets] == ["file:///lake/t"]
    assert files.inlets == []


def test_templates_are_checked_when_they_are_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rendered boolean is parsed, and an invalid one fails before Spark starts."""
    task = build_operator(UpsertOperator, primary_key="id", skip_unchanged_rows="{{ params.skip }}")
    task.skip_unchanged_rows = "False"

    assert request_of(task, monkeypatch).config["skip_unchanged_rows"] is False
