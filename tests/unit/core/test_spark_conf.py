"""Test the Spark settings that users write: names are checked, and None is a setting that is not set."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_merge_provider.cli.arguments import parse_settings
from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.spark_conf import format_settings
from airflow_merge_provider.hooks.spark_job import SparkJobHook
from airflow_merge_provider.operators.joiner import JoinerOperator

JOIN: dict[str, Any] = {"inputs": {"a": "A", "b": "B"}, "join_keys": "a.x = b.x", "target": "T"}
CONF = {"spark.x": None, "spark.y": False, "spark.z": 4, "spark.master": None}


def test_none_is_a_setting_that_is_not_set() -> None:
    """A setting that is None is left out wherever settings are taken, also one that has no effect."""
    operator = JoinerOperator(task_id="join", conf=CONF, **JOIN)

    assert SparkJobHook(conf=operator.conf).conf == {"spark.y": "false", "spark.z": "4"}
    assert format_settings(None) == {}


@pytest.mark.parametrize(
    "name", ["", " ", " spark.x", "spark.x ", "spark. x", "spark\t.x", "spark.x\n", "\u00a0"]
)
def test_blanks_in_names_are_refused(name: str) -> None:
    """A name with a blank is refused with its path by the operator, the hook and the command line."""
    for take in (
        lambda: JoinerOperator(task_id="join", conf={name: 1}, **JOIN),
        lambda: SparkJobHook(conf={name: None}),
        lambda: parse_settings([f"{name}=1"]),
    ):
        with pytest.raises((ConfigError, ValueError)) as refused:
            take()
        assert f"[{name!r}]: is not a valid name of a Spark setting" in str(refused.value)
