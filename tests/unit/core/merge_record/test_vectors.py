"""Tests of every MergeRecord vector with the planner alone, without Spark."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import merge_record

ROOT = Path(__file__).parents[3]
VECTORS = json.loads((ROOT / "conformance/vectors/merge_record.json").read_text(encoding="utf-8"))["vectors"]
# Not compared: these values are generated or depend on the output format, and the definition leaves them
# open.
OPEN = {"uuid", "path", "mime.type", "filename"}


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["id"])
def test_planning_gives_what_the_vector_expects(vector: Any, tmp_path: Path) -> None:
    """The plan merges the expected files per trigger, compared as sets.

    Where this package differs from NiFi, the expectation of this package counts.
    """
    expected = vector["expected"]
    expected = vector.get("expected_canonical_schema") or vector.get("expected_persistent_bins") or expected

    line = merge_record.run_vector(None, vector, tmp_path)

    if "invalid_configuration" in expected:
        assert line["invalid_configuration"] == expected["invalid_configuration"], line["message"]
        return
    assert "message" not in line
    assert count_merged(line["merged"]) == count_merged(expected["merged"])
    for name in ("original", "failure", "still_queued_or_open"):
        assert sorted(line[name]) == sorted(expected[name])
    assert line["open_bins"] == expected["open_bins"]


def test_single_triggers_leave_what_is_full_enough() -> None:
    """A run without the empty-queue pass gives the result of a single NiFi trigger, if a vector has it."""
    differing = [vector for vector in VECTORS if "expected_single_trigger" in vector]

    for vector in differing:
        line = merge_record.run_vector(None, {**vector, "mode": "single"}, ROOT)
        assert count_merged(line["merged"]) == count_merged(vector["expected_single_trigger"]["merged"])
    assert len(differing) > 10


def count_merged(merged: list[dict[str, Any]]) -> Counter[str]:
    return Counter(
        json.dumps(
            [
                flowfile["trigger"],
                flowfile["records"],
                flowfile["reason"],
                flowfile["sources"],
                {name: text for name, text in flowfile["attributes"].items() if name not in OPEN},
            ],
            sort_keys=True,
        )
        for flowfile in merged
    )
