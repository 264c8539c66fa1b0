"""The joiner's vectors through Spark: every join is run into a table, and read from there."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import local
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.conformance import __main__ as runner, joiner
from tests.conformance.lean import lean_session

Vector = dict[str, Any]

VECTORS: dict[str, Vector] = {
    vector["id"]: vector
    for vector in json.loads((Path(__file__).parent / "vectors" / "joiner.json").read_text(encoding="utf-8"))[
        "vectors"
    ]
}
# Refused before there is a table; every fault of theirs is compared where no Spark is needed.
ON_SPARK = {
    id_: vector
    for id_, vector in VECTORS.items()
    if "error" not in vector["expected"] or id_ == "advanced-not-boolean-error"
}


@pytest.fixture(scope="module")
def outcomes(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Any]]]:
    """Run every selected vector, two at a time, each thread in a session of its own."""
    place = tmp_path_factory.mktemp("vectors")
    selected = {
        item.callspec.params["id_"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == Path(__file__) and hasattr(item, "callspec")
    }
    mine = local()

    def run(id_: str) -> Any:
        if not hasattr(mine, "session"):
            mine.session = lean_session(spark)
        return runner.line_of(joiner, mine.session, ON_SPARK[id_], place / id_)

    with ThreadPoolExecutor(max_workers=2) as pool:
        yield {id_: pool.submit(run, id_) for id_ in ON_SPARK if id_ in selected}


@pytest.mark.parametrize("id_", ON_SPARK)
def test_a_join_gives_what_the_vector_expects(id_: str, outcomes: dict[str, Future[Any]]) -> None:
    """Columns in order with their types and nullability, rows as a bag, and all counts."""
    expected = ON_SPARK[id_]["expected"]

    line = outcomes[id_].result()

    assert line["id"] == id_
    assert "error" not in line, line
    if "error" in expected:
        assert [each["category"] for each in line["errors"]] == [expected["error"]]
        assert all(text in line["errors"][0]["message"] for text in expected["must_mention"])
        return
    assert line["schema"] == expected["schema"]
    assert bag(line["rows"]) == bag(expected["rows"])
    assert (line["records_in"], line["records_out"]) == (expected["records_in"], expected["records_out"])


def bag(rows: list[Any]) -> Counter[str]:
    """Count equal rows, whatever their order."""
    return Counter(json.dumps(row, sort_keys=True) for row in rows)
