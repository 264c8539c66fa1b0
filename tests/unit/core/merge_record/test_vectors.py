"""Every MergeRecord vector, through the planner alone."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import merge_record

ROOT = Path(__file__).parents[3]
VECTORS = json.loads((ROOT / "conformance/vectors/merge_record.json").read_text(encoding="utf-8"))["vectors"]
# Generated, or of the output's format: the definition leaves them open.
OPEN = {"uuid", "path", "mime.type", "filename"}


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["id"])
def test_planning_gives_what_the_vector_expects(vector: Any, tmp_path: Path) -> None:
    """Merged files as a set per trigger, the others as sets; where we differ from NiFi, our expectation."""
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
    """Where a vector says what one trigger of NiFi does, a run without the empty-queue pass does that."""
    differing = [vector for vector in VECTORS if "expected_single_trigger" in vector]

    for vector in differing:
        line = merge_record.run_vector(None, {**vector, "mode": "single"}, ROOT)
        assert count_merged(line["merged"]) == count_merged(vector["expected_single_trigger"]["merged"])
    assert len(differing) > 10


def count_merged(merged: list[dict[str, Any]]) -> Counter[str]:
    return Counter(
        json.dumps(
            [
                each["trigger"],
                each["records"],
                each["reason"],
                each["sources"],
                {name: text for name, text in each["attributes"].items() if name not in OPEN},
            ],
            sort_keys=True,
        )
        for each in merged
    )
