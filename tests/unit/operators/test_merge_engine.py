"""Tests of MergeEngineOperator without a database: accepted and rejected arguments, and the request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_merge_provider.assets import dataset_asset
from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.protocol import JobResult
from airflow_merge_provider.operators import _spark_job
from airflow_merge_provider.operators.merge_engine import MergeEngineOperator
from tests.fakes import FakeSparkJobHook, build_report


def build_operator(**kwargs: Any) -> Any:
    arguments = {"task_id": "fold", "source": "changes", "target": "state", "primary_key": ["k"], **kwargs}
    return MergeEngineOperator(**arguments)


def test_every_problem_of_literal_arguments_is_named_at_parse_time() -> None:
    """Problems of arguments, table options and contradictions are reported together with their paths."""
    with pytest.raises(ConfigError) as refused:
        build_operator(
            merge_engine="partial-update",
            primary_key="k,K",
            options={"ignore-deletes": "true", "fields.v.aggregate-function": "sum"},
            fail_on=["ties"],
            warehouse="relative",
        )

    assert {problem.path for problem in refused.value.problems} == {
        "primary_key",
        "fail_on",
        "options.ignore-deletes",
        "options.fields.v.aggregate-function",
        "warehouse",
    }


def test_an_error_names_the_task_and_the_argument_that_was_meant() -> None:
    """The first line of an error has the task and the argument.

    An import error shows a file with many tasks, and this is the line that the author of the file reads.
    """
    with pytest.raises(ConfigError, match=r"\Atask 'fold': merge_engin: .*did you mean 'merge_engine'\?\)\Z"):
        build_operator(merge_engin="aggregation")
    with pytest.raises(
        ConfigError, match=r"\Atask 'fold': retrys: unknown argument .*\(did you mean 'retries'\?\)"
    ):
        build_operator(retrys=3)
    with pytest.raises(ConfigError, match=r"\Atask 'fold': incremental: "):
        build_operator(incremental="maybe")


def test_a_setting_without_effect_is_refused() -> None:
    """A Spark setting for the master is rejected.

    The connection defines it, so the setting would be ignored silently.
    """
    with pytest.raises(ConfigError, match=r"conf\['spark.master'\]: has no effect .*set the master"):
        build_operator(conf={"spark.master": "yarn", "spark.sql.shuffle.partitions": 8})


def test_datasets_become_assets() -> None:
    """The source is an inlet and the target an outlet; assets and names are equivalent."""
    task = build_operator(source=Asset(uri="file:///lake/changes"), target="/lake/state")

    assert [asset.uri for asset in task.inlets] == [Asset(uri="file:///lake/changes").uri]
    assert [asset.uri for asset in task.outlets] == [dataset_asset("/lake/state").uri]


def test_the_request_holds_what_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rendered templates become values, and arguments that were not given are not in the request."""
    task = build_operator(
        options="{{ options }}", incremental="{{ flag }}", batch_id="{{ ds }}", warehouse="/lake"
    )
    task.options, task.incremental, task.batch_id = '{"sequence.field": "ts"}', "False", "2024-01-01"
    fake = FakeSparkJobHook.create_fake(JobResult(report=build_report(job="merge_engine")))
    monkeypatch.setattr(_spark_job, "SparkJobHook", fake)
    ti = SimpleNamespace(
        dag_id="d", run_id="r", task_id="fold", map_index=-1, task=task, xcom_push=lambda key, value: None
    )

    task.execute({"ti": ti, "run_id": "r", "outlet_events": OutletEventAccessors()})

    (request,) = fake.requests
    assert request.job == "merge_engine"
    assert request.config["options"] == {"sequence.field": "ts"}
    assert request.config["incremental"] is False
    assert request.config["batch_id"] == "2024-01-01"
    assert "changelog" not in request.config
