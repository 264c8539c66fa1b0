"""The merge load's vectors through Spark: after every load the rows that the vector expects."""

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

from tests.conformance import __main__ as runner, merge_load
from tests.conformance.lean import lean_session

Vector = dict[str, Any]

VECTORS: list[Vector] = json.loads(
    (Path(__file__).parent / "vectors" / "merge_load.json").read_text(encoding="utf-8")
)["vectors"]
# Where dlt is right; the pages of the operators say what happens where it is not, or where we decide.
MATCHING = {vector["id"]: vector for vector in VECTORS if vector["operator"]["expectation"] == "match"}
_NAMES = {"_dlt_valid_from": "valid_from", "_dlt_valid_to": "valid_to"}


@pytest.fixture(scope="module")
def outcomes(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Any]]]:
    """Run every selected vector, two at a time, each thread in a session of its own."""
    place = tmp_path_factory.mktemp("loads")
    selected = {
        item.callspec.params["id_"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == Path(__file__) and hasattr(item, "callspec")
    }
    mine = local()

    def run(id_: str) -> Any:
        if not hasattr(mine, "session"):
            mine.session = lean_session(spark)
        return runner.line_of(merge_load, mine.session, MATCHING[id_], place / id_)

    with ThreadPoolExecutor(max_workers=2) as pool:
        yield {id_: pool.submit(run, id_) for id_ in MATCHING if id_ in selected}


@pytest.mark.parametrize("id_", MATCHING)
def test_loads_write_what_the_vector_expects(id_: str, outcomes: dict[str, Future[Any]]) -> None:
    """After each load the target holds the expected rows; a refused one leaves them as they were."""
    line = outcomes[id_].result()

    for expected, load in zip(MATCHING[id_]["expected"], line["loads"], strict=True):
        assert ("error" in load) == ("error" in expected), load.get("error")
        tables = expected.get("tables") or {}
        for name in {*tables, *load["tables"]}:
            assert comparable(load["tables"].get(name)) == comparable(tables.get(name))


def comparable(table: list[dict[str, Any]] | None) -> Counter[str]:
    """Give the rows of a table as a bag: NULLs, identifiers of dlt and the names of validity do not count."""
    rows = [
        {_NAMES.get(name, name): value for name, value in row.items() if value is not None}
        for row in table or []
    ]
    kept = [{name: row[name] for name in row if not name.startswith("_dlt")} for row in rows]
    return Counter(json.dumps(row, sort_keys=True) for row in kept)
