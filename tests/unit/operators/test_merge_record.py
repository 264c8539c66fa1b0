"""What MergeRecordOperator accepts, refuses and asks for, without a database."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import pytest
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.protocol import JobResult
from airflow_merge_provider.operators import _spark_job
from airflow_merge_provider.operators.merge_record import MergeRecordOperator
from tests.fakes import FakeSparkJobHook

PLACES = {"source": "landing", "merged": "/m", "failure": "/f", "original": "/o", "state_path": "/s"}
PLACES |= {"reader": "json"}
REPORT = {"job": "merge_record", "changed": True, "dry_run": False, "counts": {"outputs": 5}}
REPORT |= {"target": {"dataset": "/m", "uri": "/m", "version": None}, "sources": {}, "seconds": {}}


def merge(**kwargs):
    return MergeRecordOperator(**{"task_id": "merge", "warehouse": "/lake", **PLACES, **kwargs})


def request_of(operator, monkeypatch):
    """Execute with a plain context and give what the job was asked for."""
    fake = FakeSparkJobHook.answering(JobResult(report=REPORT))
    monkeypatch.setattr(_spark_job, "SparkJobHook", fake)
    task = SimpleNamespace(
        dag_id="d", run_id="r", task_id="merge", map_index=-1, task=operator, xcom_push=lambda **_: None
    )
    operator.execute({"ti": task, "run_id": "r", "outlet_events": OutletEventAccessors()})
    return fake.requests[0]


def test_every_problem_of_literal_arguments_is_named_at_parse_time():
    """One error names all of them, each with its path."""
    with pytest.raises(ConfigError) as refused:
        merge(min_records=5, max_records=3, max_bin_age="30", reader="jason", flush="yes")

    problems = {problem.path for problem in refused.value.problems}
    assert problems == {"max_records", "max_bin_age", "reader", "flush"}


@pytest.mark.parametrize("name", ["deferrable", "validate", "size_basis"])
def test_an_argument_that_does_not_exist_is_refused(name):
    """An argument without effect would be a promise not kept."""
    with pytest.raises(TypeError, match=name):
        merge(**{name: True})


def test_the_landing_folder_is_an_inlet_and_the_merged_one_an_outlet():
    """The asset graph follows from the arguments alone."""
    operator = merge()

    assert [asset.uri for asset in operator.inlets] == ["file:///lake/landing"]
    assert [asset.uri for asset in operator.outlets] == ["file:///m"]


def test_native_values_reach_the_job_as_texts_mean_them(monkeypatch):
    """A timedelta as a period, None as no limit; the request is JSON and parses to the same configuration."""
    operator = merge(max_bin_age=timedelta(minutes=1.5), max_bins=None, max_records=None, min_bin_size=2048)

    request = request_of(operator, monkeypatch)

    assert (request.job, request.run.run_id) == ("merge_record", "r")
    config = MergeRecordConfig.parse(request.config)
    assert config == MergeRecordConfig.parse(
        {**PLACES, "max_bin_age": "90 secs", "max_bins": "unlimited", "max_records": "unlimited"}
        | {"min_bin_size": "2 KB", "settle_time": None}
    )
    assert type(request).model_validate_json(request.model_dump_json()).config == request.config


def test_rendered_templates_are_numbers_again(monkeypatch):
    """What Jinja gives is text; a limit, a flag and an object are none."""
    operator = merge(
        min_records="{{ params.n }}",
        flush="{{ params.f }}",
        reader="{{ params.r }}",
        correlation_attribute_name="{{ c }}",
    )
    operator.min_records, operator.flush, operator.reader = "3", "True", '{"format": "csv"}'
    operator.correlation_attribute_name = "7"

    config = MergeRecordConfig.parse(request_of(operator, monkeypatch).config)

    assert (config.min_records, config.flush, config.reader["format"]) == (3, True, "csv")
    assert config.correlation_attribute_name == "7"


def test_properties_of_nifi_become_an_operator():
    """Arguments beside them win; what is wrong with them is told like every other argument."""
    properties = {"Minimum Number of Records": "${n}", "Max Bin Age": "5 mins"}
    operator = MergeRecordOperator.from_properties(
        properties, {"n": "3"}, task_id="merge", warehouse="/lake", max_bin_age="1 min", **PLACES
    )
    assert (operator.min_records, operator.max_bin_age) == ("3", "1 min")

    with pytest.raises(ConfigError, match="Max Bin Age"):
        MergeRecordOperator.from_properties({"Max Bin Ago": "1 min"}, task_id="merge", **PLACES)
