"""Tests of the change limit that stops a run."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from airflow_merge_provider.core.protocol import JobFailure
from airflow_merge_provider.core.risk import Risk, RiskError, find_problems
from airflow_merge_provider.jobs.run.entry import build_failure
from tests.fakes import build_report


def test_a_run_above_the_limit_stops_and_tells_what_it_would_do() -> None:
    """The error has rows, share and limit, and the report, so that a person can decide."""
    with pytest.raises(
        RiskError, match=r"30 rows to a target of 100 rows, a change ratio of 0.3; the limit is 0.2"
    ) as refused:
        Risk(30, 100).check_limit(0.2, build_report)

    assert refused.value.report == build_report()
    assert not refused.value.retryable


def test_a_table_that_is_written_anew_is_weighed_by_its_number_of_rows() -> None:
    """For a rewritten table the change in the number of rows counts.

    The same number of rows passes every limit.
    """
    with pytest.raises(
        RiskError, match=r"replace 100 rows with 40 rows, a net change ratio of 0.6; the limit is"
    ):
        Risk.for_overwrite(40, 100).check_limit(0.5, build_report)

    assert Risk.for_overwrite(160, 100).is_above(0.5)
    Risk.for_overwrite(100, 100).check_limit(0.0, build_report)


@pytest.mark.parametrize(
    ("changed", "before", "limit"),
    [(20, 100, 0.2), (30, 100, None), (30, 0, 0.0), (0, 100, 0.0), (150, 100, 1.5)],
    ids=["at the limit", "no limit", "first rows", "nothing changes", "more than there were"],
)
def test_a_run_within_the_limit_goes_on(changed: Any, before: Any, limit: Any) -> None:
    """A run within the limit continues. Nothing can be lost in an empty table, so any load into it passes."""
    Risk(changed, before).check_limit(limit, build_report)

    assert Risk(changed, before).list_warnings(limit) == []


@given(st.integers(0, 10**9), st.integers(1, 10**9))
@example(2951507, 625)
def test_what_a_person_has_seen_may_be_written(changed: Any, before: Any) -> None:
    """The share in a report, set as the limit, lets the same run pass."""
    risk = Risk(changed, before)

    risk.check_limit(risk.ratio, build_report)


def test_the_error_crosses_the_process_with_its_report() -> None:
    """The error and its report are passed from the job to the operator."""
    with pytest.raises(RiskError) as refused:
        Risk(2, 1).check_limit(0.5, build_report)

    again = JobFailure.model_validate_json(build_failure(refused.value).model_dump_json()).to_error()

    assert isinstance(again, RiskError)
    assert again.report == build_report()


@pytest.mark.parametrize(
    ("limit", "on_risk", "paths"),
    [
        (-0.1, "fail", ["max_change_ratio"]),
        (20, "fail", ["max_change_ratio"]),
        (float("nan"), "fail", ["max_change_ratio"]),
        (True, "fail", ["max_change_ratio"]),
        ("much", "stop", ["max_change_ratio", "on_risk"]),
        (None, "ask", ["on_risk"]),
        (0, "ask", []),
        (None, "fail", []),
    ],
)
def test_arguments_are_checked_together(limit: Any, on_risk: Any, paths: Any) -> None:
    """Invalid arguments are reported together; asking a person requires a limit."""
    assert [problem.path for problem in find_problems(limit, on_risk)] == paths
