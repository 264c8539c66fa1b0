"""Tests of the merge load vectors on Spark: each load writes the expected rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.conformance import __main__ as runner, merge_load
from tests.conformance.outcomes import Outcomes, run_selected
from tests.long import all_long_but

Vector = dict[str, Any]

VECTORS: list[Vector] = json.loads(
    (Path(__file__).parent / "vectors" / "merge_load.json").read_text(encoding="utf-8")
)["vectors"]
# Vectors in which dlt is right. The pages of the operators document the behaviour where dlt is wrong or
# leaves the decision to this package.
MATCHING = {vector["id"]: vector for vector in VECTORS if vector["operator"]["expectation"] == "match"}
_NAMES = {"_dlt_valid_from": "valid_from", "_dlt_valid_to": "valid_to"}


# Lists are separate tables, and of equal rows the first in the file counts.
ON_DELTA_ALONE = {"di-dedup-tie", *(id_ for id_, vector in MATCHING.items() if merge_load.has_lists(vector))}
# A load writes a table for each of its lists, so that most vectors with lists take long.
SHORT = MATCHING.keys() - (ON_DELTA_ALONE - {"di-dedup-tie", "cdc-nested"})
# One vector of each strategy and each writing statement.
ON_DELTA = (
    "scd2-basic-lifecycle",
    "scd2-merge-key-natural",
    "di-pk-and-merge-key",
    "di-hard-delete-reinsert",
    "up-skip-unchanged",
    "up-new-column",
    "io-rerun",
    "cdc-hard-delete",
)


@pytest.fixture(scope="module")
def outcomes(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Outcomes]:
    folder = tmp_path_factory.mktemp("loads")

    def in_memory(session: SparkSession, id_: str) -> Any:
        run = merge_load.run_vector if id_ in ON_DELTA_ALONE else merge_load.outcome_in_memory
        return run(session, MATCHING[id_], folder / id_)

    def on_delta(session: SparkSession, id_: str) -> Any:
        return runner.line_of(merge_load, session, MATCHING[id_], folder / "delta" / id_)

    runs = {
        "test_loads_write_what_the_vector_expects": in_memory,
        "test_loads_on_delta_write_what_the_vector_expects": on_delta,
    }
    with run_selected(spark, request, runs) as results:
        yield results


@pytest.mark.parametrize("id_", all_long_but(MATCHING, *SHORT))
def test_loads_write_what_the_vector_expects(id_: str, outcomes: Outcomes) -> None:
    """After each load the target has the expected rows; a rejected load does not change them."""
    check_loads(id_, outcomes["test_loads_write_what_the_vector_expects", id_].result())


@pytest.mark.long
@pytest.mark.parametrize("id_", ON_DELTA)
def test_loads_on_delta_write_what_the_vector_expects(id_: str, outcomes: Outcomes) -> None:
    """Loads from Delta tables into a Delta table write the same rows."""
    check_loads(id_, outcomes["test_loads_on_delta_write_what_the_vector_expects", id_].result())


def check_loads(id_: str, line: Any) -> None:
    for expected, load in zip(MATCHING[id_]["expected"], line["loads"], strict=True):
        assert ("error" in load) == ("error" in expected), load.get("error")
        tables = expected.get("tables") or {}
        for name in {*tables, *load["tables"]}:
            assert to_comparable(load["tables"].get(name)) == to_comparable(tables.get(name))


def to_comparable(table: list[dict[str, Any]] | None) -> Counter[str]:
    """Return the rows of a table as a bag, without NULLs, dlt identifiers and names of validity columns."""
    rows = [
        {_NAMES.get(name, name): value for name, value in row.items() if value is not None}
        for row in table or []
    ]
    comparable_rows = [{name: row[name] for name in row if not name.startswith("_dlt")} for row in rows]
    return Counter(json.dumps(row, sort_keys=True) for row in comparable_rows)
