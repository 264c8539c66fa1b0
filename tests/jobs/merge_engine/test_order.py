"""Test on Spark that the order in which the records of a batch arrive does not change rows."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from tests.conformance import merge_engine
from tests.long import all_long_but

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


# Records of unknown keys, by run: those of key 7 come in one run, of 8 in two, and of 9 in three.
REMOVED, UPDATED = {"g": 2, "row_kind": "-D"}, {"g": 4, "row_kind": "+U"}
BATCHES = [
    [{"k": 1, "g": 3, "row_kind": "+I"}],
    [{"k": 7, **REMOVED}, {"k": 7, **UPDATED}, {"k": 8, **REMOVED}, {"k": 9, **REMOVED}],
    [{"k": 8, **UPDATED}],
    [{"k": 9, **UPDATED}],
]


# Without a retention, nothing of the removal is stored for a later run (test_runs.py has such runs on Delta).
@pytest.mark.parametrize("retention", all_long_but([None, "7 days"], "7 days"))
def test_a_removal_of_an_unknown_key_counts_once(
    lean: SparkSession, tmp_path: Path, retention: str | None
) -> None:
    """In descending order the removal is newer than the update that arrives with it, or in a later run."""
    settings = {
        "source": merge_engine.SOURCE, "target": merge_engine.TARGET, "primary_key": "k",
        "row_kind_column": "row_kind", "tombstone_retention": retention,
        "options": {"sequence.field": "g", "sequence.field.sort-order": "descending"},
    }  # fmt: skip
    columns = StructType().add("k", "integer").add("g", "integer")
    schema = pa.schema({"k": pa.int32(), "g": pa.int32(), "row_kind": pa.string()})
    lake = merge_engine.MemoryLake(lean, tmp_path, MergeEngineConfig.parse(settings), columns)
    orphans = []
    for number, records in enumerate(BATCHES):
        lake.append_rows(pa.Table.from_pylist(records, schema))
        request = JobRequest(
            job="merge_engine", config=settings, warehouse=str(tmp_path), started_at=number,
            run=RunToken(dag_id="d", run_id=str(number), task_id="t"),
        )  # fmt: skip
        orphans.append(lake.run_job(request).counts["orphan_retracts"])

    rows = lake.read_rows(merge_engine.TARGET).to_pylist()
    assert sorted((row["k"], row["g"]) for row in rows) == [(1, 3), *([] if retention else [(8, 4), (9, 4)])]
    assert orphans == [0, 3, 0, 0]
