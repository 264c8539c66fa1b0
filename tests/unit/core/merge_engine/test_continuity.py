"""Tests of which configuration changes a table accepts and which require a full refresh."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig
from airflow_merge_provider.core.merge_engine.refusals import build_fixed_settings, find_breaks


def build_settings(engine: str = "aggregation", **options: Any) -> dict[str, Any]:
    table_options = {name.replace("__", ".").replace("_", "-"): value for name, value in options.items()}
    return build_fixed_settings(
        MergeEngineConfig.parse({"primary_key": ["k"], "merge_engine": engine, "options": table_options})
    )


@pytest.mark.parametrize(
    ("before", "now", "named"),
    [
        (build_settings(), build_settings(), []),
        (build_settings(), build_settings(ignore_delete=True), []),
        (build_settings(ignore_delete=True), build_settings(), ["options.ignore-delete"]),
        (build_settings(), build_settings(fields__v__aggregate_function="sum"), []),
        (build_settings(), build_settings("deduplicate"), ["merge_engine"]),
        (
            build_settings(),
            build_settings(aggregation__remove_record_on_delete=True),
            ["options.remove-record-on-delete"],
        ),
        ({}, build_settings(), []),
    ],
    ids=[
        "same",
        "deletes ignored from now",
        "deletes count again",
        "function",
        "engine",
        "removal",
        "unknown",
    ],
)
def test_what_the_rows_depend_on_stays(before: Any, now: Any, named: list[str]) -> None:
    """Every incompatible change is reported.

    Compatible changes and settings that were never recorded are not reported.
    """
    assert [problem.path for problem in find_breaks(before, now)] == named
