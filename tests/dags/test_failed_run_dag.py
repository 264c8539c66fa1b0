"""Test what a failed run leaves in Airflow, in DAG runs in which a fake hook replaces Spark."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowTaskTimeout
from airflow.sdk.log import mask_secret

from airflow_merge_provider.core.change_plan.summary import ChangeSummary
from airflow_merge_provider.core.errors import JobError, Problem
from airflow_merge_provider.core.expectations.result import ExpectationResult, FailedExpectations
from airflow_merge_provider.core.failure_report import TargetState
from airflow_merge_provider.core.protocol import JobFailure, JobResult
from airflow_merge_provider.core.risk import RiskError
from airflow_merge_provider.jobs.run.entry import build_failure
from airflow_merge_provider.operators.upsert import UpsertOperator
from tests.fakes import build_report

pytestmark = pytest.mark.airflow

PLAN: dict[str, Any] = {
    "kinds": {"updated": 31},
    "reasons": {"updated": 31},
    "examples": [
        {"kind": "updated", "reason": "updated", "detail": "", "before": {"id": 1}, "after": {"id": 2}}
    ],
    "digest": "0123456789abcdef",
    "other_changes": [],
    "saved": None,
}


def run_load(run_dag: Any, dag_id: str, **kwargs: Any) -> Any:
    with DAG(dag_id, schedule=None) as dag:
        UpsertOperator(
            task_id="load", source="orders", target="golden", primary_key="id", warehouse="/lake", **kwargs
        )
    return run_dag(dag)


def pull_xcom(run: Any, key: str) -> Any:
    return run.get_task_instance("load").xcom_pull(task_ids="load", key=key)


def test_a_failed_run_has_a_report(
    run_dag: Any, fake_hook: Any, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The report has the whole error and what became of the target; the log has one traceback of it."""
    problem = Problem("id", "null-key", "2 rows have no id", "filter them out")
    failure = build_failure(RiskError.from_problem(problem, build_report(plan=PLAN)))
    fake_hook(failure).target_state = TargetState(2)

    run = run_load(run_dag, "failed")

    report = pull_xcom(run, "merge_failure")
    assert str(run.state) == "failed"
    assert (report["code"], report["retryable"], report["dataset"]) == ("risk", False, "golden")
    assert report["message"] == "id: 2 rows have no id (filter them out)"
    assert report["problems"] == [
        {"path": "id", "code": "null-key", "message": "2 rows have no id", "hint": "filter them out"}
    ]
    assert report["outcome"] == "golden is untouched at version 2"
    assert pull_xcom(run, "merge_plan") == ChangeSummary.model_validate(PLAN).model_dump(mode="json")
    assert pull_xcom(run, "merge_report") is None, "a report is of a run that has succeeded, or that asks"
    out, err = capfd.readouterr()
    log = out + err + caplog.text
    assert "golden is untouched at version 2" in log
    assert "During handling" not in log
    assert "direct cause" not in log


def test_no_secret_is_stored(run_dag: Any, fake_hook: Any) -> None:
    """Airflow masks secrets in logs alone, so the report is masked before it is stored."""
    mask_secret("hunter2hunter2")
    row = {"person": {"keys": [{"key": "hunter2hunter2"}]}}
    failed = ExpectationResult.model_validate({
        "name": "e", "on": "source", "source": "s", "kind": "condition", "action": "fail",
        "condition": "false", "rows": 1, "failed": 1, "examples": [row],
    })  # fmt: skip
    report = FailedExpectations(expectations=[failed])
    message = "s3: refused hunter2hunter2"
    fake_hook(JobFailure(code="data", message=message, retryable=False, report=report))

    run = run_load(run_dag, "masked")

    failure = pull_xcom(run, "merge_failure")
    assert failure["message"] == "s3: refused ***"
    assert failure["expectations"][0]["examples"] == [{"person": {"keys": [{"key": "***"}]}}]


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        (TargetState(4, 4), "this run has committed version 4 of golden"),
        (TargetState(3), "golden is at version 3, and its log has no commit of this run"),
        (None, "it is not known whether the run has written to golden: see its history"),
    ],
)
@pytest.mark.parametrize(
    "error", [JobError("killed by signal 9"), AirflowTaskTimeout()], ids=["kill", "time"]
)
def test_the_log_of_the_table_says_whether_a_killed_run_has_committed(
    run_dag: Any, fake_hook: Any, error: Any, state: Any, outcome: str
) -> None:
    """The process of a killed run says nothing, so the task reads the log of its target."""
    fake = fake_hook(error)
    fake.target_state = state

    run = run_load(run_dag, f"{type(error).__name__}_{len(outcome)}", execution_timeout=timedelta(hours=1))

    assert str(run.state) == "failed"
    assert pull_xcom(run, "merge_failure")["outcome"] == outcome


def test_a_report_that_cannot_be_built_does_not_hide_the_error(
    run_dag: Any, fake_hook: Any, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The log of the target may be unreadable in a way that nobody has thought of."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    failure = JobFailure(code="data", message="2 rows have no id", retryable=False)
    fake_hook(failure).find_target_state = fail

    run = run_load(run_dag, "other_form")

    out, err = capfd.readouterr()
    assert str(run.state) == "failed"
    assert "AirflowFailException" in out + err + caplog.text
    assert "2 rows have no id" in out + err + caplog.text


def test_wrong_templates_are_reported_before_spark(run_dag: Any, fake_hook: Any) -> None:
    """A task that fails before its job starts has written nothing, and its log need not be read."""
    fake_hook(JobResult(report=build_report())).target_state = TargetState(9)

    run = run_load(run_dag, "wrong_template", full_refresh="{{ 'perhaps' }}")

    report = pull_xcom(run, "merge_failure")
    assert (report["code"], report["version"], report["outcome"]) == (
        "config", None, "nothing was written to golden"
    )  # fmt: skip
