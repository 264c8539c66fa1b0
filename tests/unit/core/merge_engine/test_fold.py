"""Tests that folding many changes of one key at once equals folding them one by one, in linear time."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructField, StructType

from airflow_merge_provider.core.merge_engine.accumulators import ACCUMULATORS
from airflow_merge_provider.core.merge_engine.checks import plan_fold
from airflow_merge_provider.core.merge_engine.columns import parse_columns
from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig
from airflow_merge_provider.core.merge_engine.exact_numbers import EMPTY
from airflow_merge_provider.core.merge_engine.fold import Record, fold_records
from airflow_merge_provider.core.merge_engine.plan import ColumnRule, Plan

ROW = StructType([StructField("a", LongType()), StructField("b", LongType())])
Value = Callable[[int], Any]
# Function, options, column type, and the function that returns the n-th value.
CASES: dict[str, tuple[str, dict[str, str], Any, Value]] = {
    "listagg": ("listagg", {}, StringType(), lambda n: f"v{n}"),
    "listagg distinct": ("listagg", {"distinct": "true"}, StringType(), lambda n: f"v{n},w{n % 3}"),
    "collect": ("collect", {}, ArrayType(LongType()), lambda n: [n, None]),
    "collect distinct": ("collect", {"distinct": "true"}, ArrayType(LongType()), lambda n: [n, n % 3]),
    "merge_map": ("merge_map", {}, MapType(StringType(), LongType()), lambda n: [(f"k{n}", n)]),
    "keytime": (
        "merge_map_with_keytime",
        {},
        MapType(StringType(), ROW),
        lambda n: [(f"k{n}", None if n % 7 == 6 else {"a": n, "b": n % 5})],
    ),
    "nested_update": ("nested_update", {"nested-key": "a"}, ArrayType(ROW), lambda n: [{"a": n, "b": n}]),
    "nested_update of some": (
        "nested_update",
        {"nested-key": "a", "count-limit": "4"},
        ArrayType(ROW),
        lambda n: [{"a": n, "b": n}, None],
    ),
    "nested_update without a key": (
        "nested_update",
        {"count-limit": "9"},
        ArrayType(ROW),
        lambda n: [{"a": n, "b": n}],
    ),
    "nested_partial_update": (
        "nested_partial_update",
        {"nested-key": "a"},
        ArrayType(ROW),
        lambda n: [{"a": n, "b": None if n % 2 else n}],
    ),
}


def make_plan(case: str, group: str = "") -> tuple[Plan, ColumnRule]:
    """Build a plan for one column, in a sequence group if one is named."""
    function, options, kind, _ = CASES[case]
    table_options = {"fields.v.aggregate-function": function} | {
        f"fields.v.{k}": v for k, v in options.items()
    }
    if group:
        table_options |= {f"fields.{group}.sequence-group": "v"}
    engine = "partial-update" if group else "aggregation"
    config = MergeEngineConfig.parse(
        {"source": "s", "target": "t", "primary_key": ["k"], "merge_engine": engine, "options": table_options}
    )
    schema = StructType([StructField("k", LongType()), StructField("v", kind), StructField("s", LongType())])
    plan = plan_fold(config, parse_columns(schema.jsonValue()["fields"]), retracts=True)
    return plan, next(rule for rule in plan.rules if rule.name == "v")


@pytest.mark.parametrize("case", CASES)
def test_many_changes_of_one_key_take_linear_time(case: str) -> None:
    """Ten times as many changes of one key take less than thirty times as long.

    Copying the accumulator for each change would take a hundred times as long.
    """
    plan, rule = make_plan(case)
    value = CASES[case][3]

    def measure_fold(changes: int) -> float:
        began = time.process_time()
        result = fold_records(plan, [rule], (Record({"k": 1, "v": value(n), "s": n}) for n in range(changes)))
        assert result.problem is None
        return time.process_time() - began

    shortest = min(measure_fold(2_000) for _ in range(3))

    assert measure_fold(20_000) < 30 * shortest


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("group", ["", "s"], ids=["in order", "late"])
def test_values_that_are_combined_give_what_each_in_turn_gives(case: str, group: str) -> None:
    """Combined values equal values folded one by one, also with missing, late or retracted values."""
    plan, rule = make_plan(case, group)
    does = ACCUMULATORS[str(rule.function)]
    for seed in range(300):
        random = Random(seed)  # noqa: S311 - repeatable
        records = [Record({"k": 1, "v": CASES[case][3](0), "s": 10}, stored=True)]
        for _ in range(random.randrange(9)):
            value = None if random.random() < 0.1 else CASES[case][3](random.randrange(7))
            adds = does.retract is None or random.random() < 0.8
            records.append(Record({"k": 1, "v": value, "s": random.randrange(20)}, adds=adds))
        stored, *batch = records
        gathered, newest = EMPTY, -1
        for record in [stored, *(sorted(batch, key=lambda one: one.values["s"]) if group else batch)]:
            value, sequence, adds = record.values["v"], record.values["s"], record.adds
            is_last = not group or sequence >= newest or rule.function == "collect"
            newest = max(newest, sequence)
            if not adds:
                gathered = does.retract(gathered, value, rule)  # type: ignore[misc]
            else:
                gathered = does.add(*((gathered, value) if is_last else (value, gathered)), rule)

        result = fold_records(plan, plan.folded_rules, records)

        assert result.problem is None, seed
        assert result.values["v"] == (None if gathered is EMPTY else gathered), seed
