"""Tests of the joiner vectors on Spark: all are joined in memory, and one of some groups on Delta."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.conformance import __main__ as runner, joiner
from tests.conformance.outcomes import Outcomes, run_selected

Vector = dict[str, Any]

VECTORS: dict[str, Vector] = {
    vector["id"]: vector
    for vector in json.loads((Path(__file__).parent / "vectors" / "joiner.json").read_text(encoding="utf-8"))[
        "vectors"
    ]
}
# An invalid configuration is rejected without Spark, and compared in a test without Spark.
ACCEPTED = [id_ for id_, vector in VECTORS.items() if "error" not in vector["expected"]]
# Groups that depend on tables: names, types, nulls, empty inputs, one table twice, counts.
GROUPS = (
    "advanced",
    "empty",
    "hint",
    "metrics",
    "names",
    "nested",
    "null",
    "outer3",
    "self",
    "stage",
    "type",
)
# A result that no target can hold is compared before it is written.
WITHOUT_TARGET = "names-differing-in-case-only"
INTO_TABLES = [next(id_ for id_ in ACCEPTED if id_.startswith(f"{group}-")) for group in GROUPS]
REFUSED_BY_SPARK = "advanced-not-boolean-error"


@pytest.fixture(scope="module")
def outcomes(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Outcomes]:
    folder = tmp_path_factory.mktemp("vectors")

    def in_memory(session: SparkSession, id_: str) -> Any:
        return joiner.outcome_in_memory(session, VECTORS[id_], folder / id_)

    def into_a_table(session: SparkSession, id_: str) -> Any:
        return runner.line_of(joiner, session, VECTORS[id_], folder / id_)

    runs = {
        "test_a_join_gives_what_the_vector_expects": in_memory,
        "test_a_run_does_what_the_vector_expects": into_a_table,
    }
    with run_selected(spark, request, runs, **{"spark.sql.caseSensitive": "true"}) as results:
        yield results


@pytest.mark.parametrize("id_", [id_ for id_ in ACCEPTED if id_ != WITHOUT_TARGET])
def test_a_join_gives_what_the_vector_expects(id_: str, outcomes: Outcomes) -> None:
    """Columns have the expected order, types and nullability, and rows are compared as a bag."""
    expected = VECTORS[id_]["expected"]

    outcome = outcomes["test_a_join_gives_what_the_vector_expects", id_].result()

    assert outcome["schema"] == expected["schema"]
    # The nullability of Spark is the same; only a declared schema may allow more nulls than can occur.
    if "outputSchema" not in VECTORS[id_]["config"]:
        assert outcome["frame"] == expected["schema"]
    assert outcome["records_in"] == expected["records_in"]
    assert count_rows(outcome["rows"]) == count_rows(expected["rows"])


@pytest.mark.parametrize("id_", [*INTO_TABLES, REFUSED_BY_SPARK])
def test_a_run_does_what_the_vector_expects(id_: str, outcomes: Outcomes) -> None:
    """A run on tables writes the same rows with the expected counts, or fails with Spark's error."""
    expected = VECTORS[id_]["expected"]

    line = outcomes["test_a_run_does_what_the_vector_expects", id_].result()

    assert line["id"] == id_
    assert "error" not in line, line
    if "error" in expected:
        assert [error["category"] for error in line["errors"]] == [expected["error"]]
        assert all(text in line["errors"][0]["message"] for text in expected["must_mention"])
        return
    assert line["schema"] == expected["schema"]
    assert count_rows(line["rows"]) == count_rows(expected["rows"])
    assert (line["records_in"], line["records_out"]) == (expected["records_in"], expected["records_out"])


def count_rows(rows: list[Any]) -> Counter[str]:
    """Count equal rows, in any order."""
    return Counter(json.dumps(row, sort_keys=True) for row in rows)
