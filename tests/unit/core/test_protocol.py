"""Tests of the request and result files between the operator and the job."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_merge_provider.core.errors import ConfigError, ConflictError, JobError, Problem
from airflow_merge_provider.core.protocol import (
    JobFailure,
    JobRequest,
    JobResult,
    RunToken,
    parse_request,
    parse_result,
)
from tests.fakes import build_report

RUN = RunToken(dag_id="d", run_id="r", task_id="t")


def test_a_request_is_read_as_it_was_written(tmp_path: Path) -> None:
    """A request that is written and read is unchanged."""
    request = JobRequest(job="merge_source", config={"datasets": ["A a"]}, run=RUN, started_at=5)
    file = tmp_path / "request.json"
    file.write_text(request.model_dump_json(), encoding="utf-8")

    assert parse_request(file.read_text()) == request


@pytest.mark.parametrize("text", ["", "{}", '{"protocol": 2}', '{"unknown": 1}'])
def test_another_protocol_is_refused(tmp_path: Path, text: str) -> None:
    """A request of another protocol version is rejected, not partly parsed."""
    file = tmp_path / "request.json"
    file.write_text(text, encoding="utf-8")

    with pytest.raises(ConfigError, match="the request does not match protocol 1"):
        parse_request(file.read_text())


@pytest.mark.parametrize(
    "answer",
    [
        JobResult(report=build_report(seconds={"launch": 1.5, "read": 1.0})),
        JobFailure(
            code="data", message="m", problems=({"path": "p", "code": "c", "message": "m"},), retryable=False
        ),
    ],
)
def test_an_answer_is_read_as_it_was_written(tmp_path: Path, answer: JobResult | JobFailure) -> None:
    """A result and a failure are distinguished by their fields."""
    file = tmp_path / "result.json"
    file.write_text(answer.model_dump_json(), encoding="utf-8")

    assert parse_result(file.read_text(), elapsed=2.5) == answer


def test_a_broken_answer_is_an_error_of_the_job(tmp_path: Path) -> None:
    """An incomplete result file is a job error: a process that died while writing has no result."""
    file = tmp_path / "result.json"
    file.write_text('{"ok": tr', encoding="utf-8")

    with pytest.raises(JobError, match="the result does not match protocol 1"):
        parse_result(file.read_text(), elapsed=1.0)


def test_a_failure_is_the_error_it_was() -> None:
    """Kind, text and problems of an error are restored; an unknown kind becomes a job error."""
    problem = {"path": "p", "code": "c", "message": "m", "hint": "h"}
    lost = JobFailure(code="conflict", message="lost", problems=(problem,), retryable=True).to_error()

    assert isinstance(lost, ConflictError)
    assert lost.problems == (Problem("p", "c", "m", "h"),)
    assert isinstance(JobFailure(code="other", message="m", retryable=True).to_error(), JobError)
