"""Test on Spark that the order in which the records of a batch arrive does not change rows."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.conformance import merge_engine

GROUP = {"fields.g.sequence-group": "a,b,c,d"} | {
    f"fields.{name}.aggregate-function": function
    for name, function in {"b": "listagg", "c": "first_value", "d": "sum"}.items()
}
REMOVED = {"partial-update.remove-record-on-sequence-group": "g"}
FUNCTIONS = {"b": "collect", "c": "first_value", "d": "sum"}
AGGREGATION = {f"fields.{name}.aggregate-function": function for name, function in FUNCTIONS.items()}
SEQUENCE = {"sequence.field": "g"}
EQUAL = 7
# Engine, options, and the kinds and numbers of the records of a batch; the stored row has the number 2. It is
# the sequence of a record, or in a batch of equal sequences what `order_by` orders by.
CASES: dict[str, tuple[str, dict[str, Any], list[tuple[str, int]]]] = {
    "deduplicate": ("deduplicate", SEQUENCE, [("+I", 5), ("-D", 4), ("+U", 3), ("+I", 1)]),
    "deduplicate removed": ("deduplicate", SEQUENCE, [("+I", 3), ("-D", 5), ("+U", 4)]),
    "partial-update": ("partial-update", SEQUENCE, [("+I", 5), ("+U", 4), ("+U", 3), ("+I", 1)]),
    "aggregation": ("aggregation", {**AGGREGATION, **SEQUENCE}, [("+I", 5), ("+U", 4), ("+I", 3), ("+I", 1)]),
    "equal": ("deduplicate", SEQUENCE, [("+I", 5), ("-D", 4), ("+U", 3), ("+I", 1)]),
    "equal group": ("partial-update", {**GROUP, **REMOVED}, [("+I", 5), ("-D", 4), ("+U", 3), ("+I", 1)]),
    "group": ("partial-update", GROUP, [("+I", 5), ("+U", 4), ("+I", 1), ("+I", 0)]),
    "group removed": ("partial-update", {**GROUP, **REMOVED}, [("+I", 5), ("-D", 4), ("+U", 3), ("+I", 1)]),
    "removed last": ("partial-update", {**GROUP, **REMOVED}, [("+I", 5), ("-D", 6), ("+U", 3), ("-D", 4)]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_batch_gives_one_result_whatever_the_order_of_its_rows(
    lean: SparkSession, tmp_path: Path, case: str
) -> None:
    """Each key of a batch has the same records in another order, and the same row afterwards.

    Between records of equal sequence `order_by` decides.
    """
    engine, options, records = CASES[case]
    lists, is_equal = case == "aggregation", case.startswith("equal")
    schema = {"k": "INT", "g": "INT", "a": "STRING", "b": "ARRAY<INT>" if lists else "STRING"}

    def build_record(kind: str, key: int, sequence: int) -> list[Any]:
        text = f"v{sequence}"
        group = EQUAL if is_equal else sequence
        return [kind, key, group, text, [sequence] if lists else text, sequence, 10**sequence]

    orders = list(permutations(records))
    vector = {
        "id": case, "engine": engine, "primary_key": ["k"], "options": options,
        "order_by": ["c"] if is_equal else [], "schema": {**schema, "c": "INT", "d": "INT"},
        "commits": [
            [build_record("+I", key, 2) for key in range(len(orders))],
            [build_record(kind, key, at) for key, order in enumerate(orders) for kind, at in order],
        ],
    }  # fmt: skip

    result = merge_engine.outcome_in_memory(lean, vector, tmp_path)

    rows = {tuple(map(str, row[1:])) for row in result["rows"]}
    assert len(result["rows"]) in {0, len(orders)}
    assert len(rows) <= 1
    assert (not rows) == (case in {"deduplicate removed", "removed last"})
