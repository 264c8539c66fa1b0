"""Test random tables folded on Spark against the definition: rows and changes of every commit.

``MERGE_RANDOM_RUNS=500 MERGE_RANDOM_SEED=1`` runs other and more tables.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.conformance import merge_engine
from tests.conformance.oracles.merge_engine import Oracle
from tests.conformance.oracles.merge_engine_functions import RefusedError
from tests.conformance.oracles.merge_engine_workloads import draw_workload
from tests.long import all_long_but
from tests.random_seeds import list_seeds

SEEDS = list_seeds(8)


@pytest.mark.parametrize("seed", all_long_but(SEEDS, SEEDS[0]))
def test_spark_folds_as_the_definition_says(lean: SparkSession, tmp_path: Path, seed: int) -> None:
    """Three commits give the same rows and net changes as the definition, or both reject them."""
    vector = draw_workload(seed)
    oracle = Oracle(vector)
    try:
        changes = [oracle.commit_batch(commit) for commit in vector["commits"]]
    except RefusedError:
        changes = []

    result = merge_engine.run_vector(lean, vector, tmp_path)

    if not changes:
        assert result["error"]["stage"] == "write"
        return
    assert "error" not in result, result
    assert count_rows(result["rows"]) == count_rows(list(row.values()) for row in oracle.rows.values())
    assert [count_rows(commit) for commit in result["changes"]] == [count_rows(commit) for commit in changes]


def count_rows(rows: Iterable[Any]) -> Counter[str]:
    return Counter(json.dumps(list(row), sort_keys=True, default=lambda value: f"{value:f}") for row in rows)


def test_comparing_tells_decimals_and_counts_apart() -> None:
    """The comparison uses the text of a decimal at its scale, and counts duplicate rows."""
    assert count_rows([[Decimal("1.10")]]) == count_rows([["1.10"]])
    assert count_rows([[1], [1]]) != count_rows([[1]])
