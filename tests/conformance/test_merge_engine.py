"""Tests of the merge engine vectors: rejections without Spark, and folds on Spark with changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.conformance import __main__ as runner, merge_engine
from tests.conformance.outcomes import Outcomes, run_selected

Vector = dict[str, Any]

VECTORS: list[Vector] = json.loads(
    (Path(__file__).parent / "vectors" / "merge_engine.json").read_text(encoding="utf-8")
)["vectors"]
# The bytes of rbm64 are a format of the Java library only: it is rejected.
UNREADABLE = "rbm64"


def read_expected(vector: Vector) -> Any:
    """Return the expected rows, or ``{"error": {"stage", "mentions"}}``."""
    if "ours" in vector:
        return vector["ours"]
    return vector["expected"] if vector["expected"] is not None else {"error": vector["expected_error"]}


def is_refused(vector: Vector, stage: str) -> bool:
    expected = read_expected(vector)
    return isinstance(expected, dict) and expected.get("error", {}).get("stage") == stage


CONFIGURATIONS = [vector for vector in VECTORS if is_refused(vector, "create")]
FOLDED = {
    vector["id"]: vector
    for vector in VECTORS
    if not is_refused(vector, "create") and UNREADABLE not in vector["options"].values()
}


# Each engine with groups, sequences, removals and functions, and several commits.
ON_DELTA = (
    "dedup-003-whole-row-is-replaced-nulls-included",
    "dedup-004-delete-last-removes-key",
    "pu-001-seed-example",
    "pu-005-update-after-like-insert",
    "sg-002-seed-example",
    "sga-001-doc-first-value-and-sum",
    "sga-003-null-sequence-does-not-sum",
    "agg-001-seed-max-and-sum",
    "agg-002-default-is-last-non-null",
    "fr-002-first-row-across-commits",
    "fr-003-nulls-of-the-first-row-stay",
    "acc-001-group-protects-its-own-field",
)


@pytest.mark.parametrize("vector", CONFIGURATIONS, ids=lambda vector: vector["id"])
def test_a_wrong_configuration_is_refused(vector: Vector, tmp_path: Path) -> None:
    """An invalid configuration is rejected without Spark, with all expected words in the message."""
    line = merge_engine.run_vector(None, vector, tmp_path)  # not reached

    assert list_mentions(vector) - find_mentions(line, vector) == set()


@pytest.fixture(scope="module")
def outcomes(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Outcomes]:
    folder = tmp_path_factory.mktemp("vectors")

    def in_memory(session: SparkSession, id_: str) -> Any:
        return merge_engine.outcome_in_memory(session, FOLDED[id_], folder)

    def on_delta(session: SparkSession, id_: str) -> Any:
        return runner.line_of(merge_engine, session, FOLDED[id_], folder / id_)

    runs = {"test_a_vector_comes_out": in_memory, "test_a_vector_comes_out_of_tables": on_delta}
    with run_selected(spark, request, runs) as results:
        yield results


@pytest.mark.parametrize("id_", FOLDED)
def test_a_vector_comes_out(id_: str, outcomes: Outcomes) -> None:
    """Rows and net changes are as expected, as bags, or the error has all expected words."""
    check_outcome(FOLDED[id_], outcomes["test_a_vector_comes_out", id_].result())


@pytest.mark.long
@pytest.mark.parametrize("id_", ON_DELTA)
def test_a_vector_comes_out_of_tables(id_: str, outcomes: Outcomes) -> None:
    """The same result is written from a Delta table to another one and its change log."""
    check_outcome(FOLDED[id_], outcomes["test_a_vector_comes_out_of_tables", id_].result())


def check_outcome(vector: Vector, line: Any) -> None:
    if isinstance(read_expected(vector), dict):
        assert list_mentions(vector) - find_mentions(line, vector) == set()
        return
    assert "error" not in line, line
    assert build_bag(vector, line["rows"]) == build_bag(vector, read_expected(vector))
    if "ours_changes" in vector:
        assert [build_bag(vector, commit, 1) for commit in line["changes"]] == [
            build_bag(vector, commit, 1) for commit in vector["ours_changes"]
        ]


def list_mentions(vector: Vector) -> set[str]:
    return {text.lower() for text in read_expected(vector)["error"].get("mentions", [])}


def find_mentions(line: Vector, vector: Vector) -> set[str]:
    message = json.dumps(line["error"]).lower()
    return {text for text in list_mentions(vector) if text in message}


def build_bag(vector: Vector, rows: list[list[Any]], skip: int = 0) -> list[str]:
    """Format rows so that ``==`` compares them as bags, also inside columns without an order."""
    positions = {skip + at for at, name in enumerate(vector["schema"]) if name in vector.get("unordered", [])}

    def sort_bags(at: int, value: Any) -> Any:
        return sorted(value, key=format_value) if at in positions and isinstance(value, list) else value

    return sorted(format_value([sort_bags(at, value) for at, value in enumerate(row)]) for row in rows)


def format_value(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def test_bags_tell_rows_apart() -> None:
    """Bags ignore the order of rows and of columns without an order, but count equal rows."""
    vector = {"schema": {"k": "INT", "v": "ARRAY<INT>"}, "unordered": ["v"]}

    assert build_bag(vector, [[1, [1, 2]], [2, []]]) == build_bag(vector, [[2, []], [1, [2, 1]]])
    assert build_bag(vector, [[1, [1, 1]]]) != build_bag(vector, [[1, [1]]])
