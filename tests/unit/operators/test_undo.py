"""Tests of UndoOperator without a database: accepted and rejected arguments, assets and request."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.undo.config import UndoConfig
from airflow_merge_provider.operators.undo import UndoOperator


def build_operator(**kwargs: Any) -> Any:
    return UndoOperator(**{"task_id": "undo", "target": "customers", **kwargs})


def test_every_problem_of_literal_arguments_is_named_at_parse_time() -> None:
    """A run and a version cannot be combined, and a version is not negative."""
    with pytest.raises(ConfigError) as refused:
        build_operator(to_version=-1, run=["r1"])

    assert {problem.path for problem in refused.value.problems} == {"to_version", "run"}
    with pytest.raises(ConfigError, match="to_version: cannot be combined with run"):
        build_operator(to_version=1, run="r1")
    with pytest.raises(ConfigError, match="only: requires run"):
        build_operator(only=True)


def test_an_undo_has_the_arguments_of_every_operator() -> None:
    """It is about a target, and runs as the runs that it undoes."""
    settings = {"warehouse": "/lake", "spark_conn_id": "spark", "conf": {"a": "b"}}

    operator = build_operator(**settings)

    assert {name: getattr(operator, name) for name in settings} == settings


def test_one_run_is_chosen_with_only() -> None:
    """A param renders as text."""
    assert build_operator(run="r1", only=True).only
    assert UndoConfig.parse({"target": "t", "run": "r1", "only": "True"}).only
    assert not UndoConfig.parse({"target": "t", "run": "r1", "only": "False"}).only


@pytest.mark.parametrize(("value", "run"), [(None, None), ("None", None), ("", None), (3, "3"), ("r1", "r1")])
def test_a_param_without_a_value_chooses_no_run(value: Any, run: str | None) -> None:
    """A template renders a param without a value as text."""
    assert UndoConfig.parse({"target": "t", "run": value}).run == run


def test_the_target_is_an_outlet() -> None:
    """DAGs that read the target run again after an undo."""
    assert [asset.uri for asset in build_operator().outlets] == ["merge://warehouse/customers"]
