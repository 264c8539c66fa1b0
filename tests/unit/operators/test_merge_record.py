"""Tests of MergeRecordOperator without a database: accepted and rejected arguments, and the request."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred
from airflow.sdk import DAG, Asset, AssetOrTimeSchedule, CronTriggerTimetable
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.protocol import JobResult
from airflow_merge_provider.operators import _spark_job
from airflow_merge_provider.operators.merge_record import MergeRecordOperator
from tests import fakes
from tests.fakes import FakeSparkJobHook, build_report

ARGUMENTS = {"source": "landing", "merged": "/m", "failure": "/f", "original": "/o", "state_path": "/s"}
ARGUMENTS |= {"reader": "json"}
REPORT = {**fakes.REPORT, "job": "merge_record"}


def build_operator(**kwargs: Any) -> Any:
    return MergeRecordOperator(**{"task_id": "merge", "warehouse": "/lake", **ARGUMENTS, **kwargs})


def context_of(operator: Any, pushed: Any = None) -> Any:
    task = SimpleNamespace(
        dag_id="d", run_id="r", task_id="merge", map_index=-1, task=operator,
        xcom_push=lambda key, value: (pushed if pushed is not None else {}).update({key: value}),
    )  # fmt: skip
    return {"ti": task, "run_id": "r", "outlet_events": OutletEventAccessors()}


def request_of(operator: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Execute an operator with a plain context and return the request of the job."""
    fake = FakeSparkJobHook.create_fake(JobResult(report=build_report()))
    monkeypatch.setattr(_spark_job, "SparkJobHook", fake)
    operator.execute(context_of(operator))
    return fake.requests[0]


def test_every_problem_of_literal_arguments_is_named_at_parse_time() -> None:
    """One error has all problems of the literal arguments, each with its path."""
    with pytest.raises(ConfigError) as refused:
        build_operator(min_records=5, max_records=3, max_bin_age="30", reader="jason", flush="yes")

    problems = {problem.path for problem in refused.value.problems}
    assert problems == {"max_records", "max_bin_age", "reader", "flush"}


@pytest.mark.parametrize("name", ["reset_bins"])
def test_an_argument_that_does_not_exist_is_refused(name: Any) -> None:
    """An unknown argument is rejected, because it would have no effect."""
    with pytest.raises(ConfigError, match=f"{name}: unknown argument"):
        build_operator(**{name: True})


def test_the_landing_folder_is_an_inlet_and_the_merged_one_an_outlet() -> None:
    """The landing folder is an inlet and the folder of merged files an outlet, from the arguments alone."""
    operator = build_operator()

    assert [asset.uri for asset in operator.inlets] == ["file:///lake/landing"]
    assert [asset.uri for asset in operator.outlets] == ["file:///m"]


def test_native_values_reach_the_job_as_texts_mean_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timedelta is passed as a period and None as no limit.

    The request is JSON and is parsed to the same configuration.
    """
    operator = build_operator(
        max_bin_age=timedelta(minutes=1.5), max_bins=None, max_records=None, min_bin_size=2048
    )

    request = request_of(operator, monkeypatch)

    assert (request.job, request.run.run_id) == ("merge_record", "r")
    config = MergeRecordConfig.parse(request.config)
    assert config == MergeRecordConfig.parse(
        {**ARGUMENTS, "max_bin_age": "90 secs", "max_bins": "unlimited", "max_records": "unlimited"}
        | {"min_bin_size": "2 KB", "settle_time": None}
    )
    assert type(request).model_validate_json(request.model_dump_json()).config == request.config


def test_rendered_templates_are_numbers_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rendered limits, flags and objects are parsed, because Jinja returns text."""
    operator = build_operator(
        min_records="{{ params.n }}",
        flush="{{ params.f }}",
        reader="{{ params.r }}",
        correlation_attribute_name="{{ c }}",
    )
    operator.min_records, operator.flush, operator.reader = "3", "True", '{"format": "csv"}'
    operator.correlation_attribute_name = "7"

    config = MergeRecordConfig.parse(request_of(operator, monkeypatch).config)

    assert (config.min_records, config.flush, config.reader.format) == (3, True, "csv")
    assert config.correlation_attribute_name == "7"


def test_properties_of_nifi_become_an_operator() -> None:
    """Arguments beside NiFi properties take precedence.

    Problems of properties are reported like those of other arguments.
    """
    properties = {"Minimum Number of Records": "${n}", "Max Bin Age": "5 mins"}
    operator = MergeRecordOperator.from_properties(
        properties, {"n": "3"}, task_id="merge", warehouse="/lake", max_bin_age="1 min", **ARGUMENTS
    )
    assert (vars(operator)["min_records"], operator.max_bin_age) == ("3", "1 min")

    with pytest.raises(ConfigError, match="Max Bin Age"):
        MergeRecordOperator.from_properties({"Max Bin Ago": "1 min"}, task_id="merge", **ARGUMENTS)


def test_the_next_expiry_is_pushed_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next expiry is pushed as an XCom of its own.

    A DAG that schedules itself reads it without the report.
    """
    details = {"next_expiry": "2026-01-01T00:00:00+00:00", "merged": ["a file" * 100] * 20}
    report = build_report(details=details, target={**REPORT["target"], "uri": "/m" * 1800})
    monkeypatch.setattr(_spark_job, "SparkJobHook", FakeSparkJobHook.create_fake(JobResult(report=report)))
    pushed: dict[str, Any] = {}
    operator = build_operator()

    operator.execute(context_of(operator, pushed))

    assert pushed["next_expiry"] == "2026-01-01T00:00:00+00:00"


def build_deferring(tmp_path: Path, **kwargs: Any) -> Any:
    """Create a deferrable operator with folders of its own."""
    folders = {name: str(tmp_path / name) for name in ("source", "merged", "failure", "original")}
    return build_operator(**folders, state_path=str(tmp_path / "state"), deferrable=True, **kwargs)


def test_a_deferrable_task_waits_until_there_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a file the task defers and frees its worker slot.

    The trigger gets the locations that it watches.
    """
    operator = build_deferring(tmp_path, poll_interval=5)

    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(context_of(operator))

    _, arguments = deferred.value.trigger.serialize()
    assert (deferred.value.method_name, arguments["poll_interval"]) == ("execute_when_due", 5)
    assert arguments["config"]["source"] == str(tmp_path / "source")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.json").write_text("{}")
    assert request_of(operator, monkeypatch).job == "merge_record"


@pytest.mark.parametrize("argument", ["dry_run", "full_refresh"])
def test_what_was_asked_for_now_does_not_wait(
    argument: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A preview and a refresh run without waiting for files."""
    assert request_of(build_deferring(tmp_path, **{argument: True}), monkeypatch).job == "merge_record"


def test_after_the_wait_the_job_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the wait the job runs, whatever the folder contains by then."""
    fake = FakeSparkJobHook.create_fake(JobResult(report=build_report()))
    monkeypatch.setattr(_spark_job, "SparkJobHook", fake)
    operator = build_deferring(tmp_path)

    operator.execute_when_due(context_of(operator), "1 new files")

    assert len(fake.requests) == 1


ASSET = Asset("landing")
HOURLY = CronTriggerTimetable("0 * * * *", timezone="UTC")


@pytest.mark.parametrize(
    ("schedule", "age", "warned"),
    [
        ("*/10 * * * *", "30 mins", None),
        ("0 * * * *", "30 mins", "1:00:00 may pass between two runs"),
        ("0 8 * * 1-5", "1 day", "3 days, 0:00:00 may pass between two runs"),
        ("@daily", "1 week", None),
        (timedelta(minutes=20), "30 mins", "0:20:00 may pass between two runs"),
        (timedelta(minutes=15), "30 mins", None),
        (AssetOrTimeSchedule(timetable=HOURLY, assets=[ASSET]), "30 mins", "1:00:00 may pass"),
        ([ASSET], "1 day", "only assets trigger this DAG"),
        (None, "1 sec", None),
        ("0 * * * *", None, None),
    ],
)
def test_a_schedule_that_is_too_slow_for_the_age_is_told(schedule: Any, age: Any, warned: Any) -> None:
    """A schedule that is too slow for the maximum age gives a warning.

    The real latency is the age plus the time between runs, so half the age is the longest useful interval.
    """
    with DAG("d", schedule=schedule):
        operator = build_operator(max_bin_age=age)

    config = MergeRecordConfig.parse({**ARGUMENTS, "max_bin_age": age, "min_records": 1})
    warnings = [*config.list_warnings(), *operator.list_schedule_warnings(config)]
    assert [warned in warning for warning in warnings] == ([True] if warned else [])
