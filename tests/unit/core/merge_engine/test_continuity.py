"""Which changes of a configuration a table takes, and which need it to be folded anew."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig
from airflow_merge_provider.core.merge_engine.continuity import breaks, fixed


def of(engine: str = "aggregation", **options: Any) -> dict[str, Any]:
    given = {name.replace("__", ".").replace("_", "-"): value for name, value in options.items()}
    return fixed(MergeEngineConfig.parse({"primary_key": ["k"], "merge_engine": engine, "options": given}))


@pytest.mark.parametrize(
    ("before", "now", "named"),
    [
        (of(), of(), []),
        (of(), of(ignore_delete=True), []),
        (of(ignore_delete=True), of(), ["options.ignore-delete"]),
        (of(), of(fields__v__aggregate_function="sum"), []),
        (of(), of("deduplicate"), ["merge_engine"]),
        (of(), of(aggregation__remove_record_on_delete=True), ["options.remove-record-on-delete"]),
        ({}, of(), []),
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
    """Every change that breaks is named; what may change, and what was never known, is not."""
    assert [problem.path for problem in breaks(before, now)] == named
