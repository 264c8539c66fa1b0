"""Tests of the report of a failed run: what it says of its target, and what is cut if it is too long."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_merge_provider.core.errors import (
    ConfigError,
    ConflictError,
    DataError,
    JobError,
    MergeError,
    Problem,
    UnrevertedError,
)
from airflow_merge_provider.core.expectations.config import parse_expectations
from airflow_merge_provider.core.expectations.result import (
    ExpectationError,
    ExpectationResult,
    FailedExpectations,
    build_result,
    require_success,
)
from airflow_merge_provider.core.failure_report import (
    FAILURE_MAX_BYTES,
    TargetState,
    build_failure_report,
)
from airflow_merge_provider.core.protocol import JobFailure
from airflow_merge_provider.core.risk import RiskError
from airflow_merge_provider.jobs.run.entry import build_failure
from tests.fakes import build_report


def build_failure_of(error: MergeError, state: TargetState | None = None, **kwargs: Any) -> Any:
    return build_failure_report(
        error, **{"job": "merge_load", "dataset": "golden", "dry_run": False, "state": state, **kwargs}
    )


PARTS = "the run may have written a part of golden: the next run writes what is missing"


@pytest.mark.parametrize(
    ("error", "state", "outcome"),
    [
        (DataError(""), TargetState(2), "golden is untouched at version 2"),
        (RiskError("", [], build_report()), TargetState(2), "golden is untouched at version 2"),
        (
            DataError(""),
            TargetState(3, is_changed=True),
            "nothing of this run is in golden; it is at version 3",
        ),
        (DataError(""), TargetState(None), "golden does not exist yet: nothing was written"),
        (DataError(""), None, "nothing was written to golden"),
        (ConflictError(""), TargetState(3), "nothing of this run is in golden; it is at version 3"),
        (ConflictError(""), TargetState(3, 2), "this run has committed version 2 of golden"),
        (ConflictError(""), None, "nothing of this run is in golden"),
        (JobError(""), TargetState(2), "golden is at version 2, and its log has no commit of this run"),
        (JobError(""), TargetState(None), "golden does not exist yet"),
        (JobError(""), TargetState(3, 3), "this run has committed version 3 of golden"),
        (JobError(""), None, "it is not known whether the run has written to golden: see its history"),
        (UnrevertedError(""), TargetState(4, 3), "this run has committed version 3 of golden"),
        (ConfigError(""), TargetState(None, has_parts=True), "nothing was written to golden"),
        *[
            (error, TargetState(None, has_parts=True), PARTS)
            for error in (DataError(""), ConflictError(""), JobError(""))
        ],
    ],
)
def test_only_what_is_known_is_said_of_the_target(error: Any, state: Any, outcome: str) -> None:
    """After an unexpected end, only the log of the target says whether the run has committed."""
    assert build_failure_of(error, state).outcome == outcome


def test_a_dry_run_writes_nothing_however_it_ends() -> None:
    """A check or a dry run commits nothing, even if its process disappears."""
    for state in (None, TargetState(None, has_parts=True)):
        assert build_failure_of(JobError(""), state, dry_run=True).outcome == "nothing was written to golden"


def test_the_results_of_expectations_cross_the_process() -> None:
    """The report has the rows that stopped the run, and not the expectations that all rows meet."""
    (expectation,) = parse_expectations({"paid": {"condition": "amount > 0", "action": "fail"}})
    results = [
        build_result(expectation, "orders", rows=9, failed=2, examples=[{"id": 1}]),
        build_result(expectation, "others", rows=5, failed=0),
    ]
    with pytest.raises(DataError) as refused:
        require_success(results)

    failure = JobFailure.model_validate_json(build_failure(refused.value).model_dump_json())
    report = build_failure_of(failure.to_error(), TargetState(1))

    assert [(item.source, item.failed, item.examples) for item in report.expectations] == [
        ("orders", 2, [{"id": 1}])
    ]
    assert report.problems[0].hint == "correct these rows, or set the action to 'warn' or 'quarantine'"


@pytest.mark.parametrize("letter", ["x", '"', "é", "🦆"])
def test_a_report_of_any_length_is_cut(letter: str) -> None:
    """The first problem stays, and what is left out is named."""
    problems = [Problem("p", "c", letter * 1500, "do it") for _ in range(200)]
    result = ExpectationResult.model_validate({
        "name": "e", "on": "source", "source": "s", "kind": "condition", "action": "fail",
        "condition": "false", "rows": 1, "failed": 1, "examples": [{"text": letter * 30_000}],
    })  # fmt: skip
    error = ExpectationError(
        "\n".join(map(str, problems)), problems, FailedExpectations(expectations=[result])
    )

    report = build_failure_of(error, page="page")

    assert len(json.dumps(report.model_dump()).encode()) <= FAILURE_MAX_BYTES
    assert report.message.startswith(f"p: {letter}")
    assert "expectations.examples" in report.truncated
