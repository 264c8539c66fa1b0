"""Tests of the trace: it names the record that set each value and does not change the result of the fold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from airflow_merge_provider.core.merge_engine.fold import Record, fold_records
from airflow_merge_provider.core.merge_engine.plan import ColumnRole, Plan
from airflow_merge_provider.core.merge_engine.trace import KeyTrace, trace_records
from tests.conformance.oracles.merge_engine_workloads import draw_workload
from tests.unit.core.merge_engine.test_random import plan_vector, to_arrow


def trace_vector(engine: str, schema: dict[str, str], options: dict[str, Any], *records: Record) -> KeyTrace:
    vector = {"engine": engine, "schema": schema, "primary_key": ["k"], "options": options}
    return trace_records(plan_vector(vector), records)


def build_record(kind: str = "+I", **values: Any) -> Record:
    return Record({"k": 1, **values}, kind in {"+I", "+U"}, kind == "-D")


def as_record(plan: Plan, change: Sequence[Any]) -> Record:
    kind, *values = change
    pairs = zip(plan.columns, values, strict=True)
    return Record(
        {column.name: to_arrow(value, column.family) for column, value in pairs},
        kind in {"+I", "+U"},
        kind == "-D",
    )


def test_taking_notes_changes_nothing() -> None:
    """With a trace, the values equal those of the fold, for all records of a key in all tables."""
    compared = 0
    for seed in range(150):
        vector = draw_workload(seed)
        plan = plan_vector(vector)
        if plan.engine in {"deduplicate", "first-row"}:
            continue
        for key in range(1, 7):
            records = [as_record(plan, change) for change in vector["commits"][0] if change[1] == key]
            rules = [rule for rule in plan.rules if rule.role is not ColumnRole.KEY]
            folded = fold_records(plan, rules, records)
            if folded.problem:
                continue
            trace = trace_records(plan, records)
            assert trace.is_live == folded.is_live
            if trace.is_live:
                assert {name: source.value for name, source in trace.values.items()} == folded.values
                compared += 1
    assert compared > 200


@pytest.mark.parametrize(("engine", "winner"), [("deduplicate", 1), ("first-row", 0)])
def test_whole_rows_come_from_one_record(engine: str, winner: int) -> None:
    """A whole row comes from one record: the newest or the first."""
    trace = trace_vector(engine, {"k": "INT", "v": "INT"}, {}, build_record(v=1), build_record(v=2))

    assert trace.values["v"].records == (winner,)
    assert trace.did[1 - winner] == f"overridden by record {winner}"


def test_functions_name_the_records_that_count() -> None:
    """The trace names the records that count: all summed records, the first or the last one.

    Nulls are omitted.
    """
    functions = {"a": "sum", "b": "first_non_null_value", "c": "last_non_null_value"}
    options = {f"fields.{name}.aggregate-function": function for name, function in functions.items()}
    schema = {"k": "INT", "a": "INT", "b": "INT", "c": "INT"}

    trace = trace_vector(
        "aggregation",
        schema,
        options,
        build_record(a=1, b=None, c=5),
        build_record(a=None, b=7, c=6),
        build_record(a=2, b=8, c=None),
    )

    assert {name: (source.value, source.records) for name, source in trace.values.items()} == {
        "a": (3, (0, 2)), "b": (7, (1,)), "c": (6, (1,)),
    }  # fmt: skip


def test_records_without_effect_say_why() -> None:
    """A record without effect has a reason: late for its group, without values, or before a removal."""
    options = {"fields.g.sequence-group": "a", "partial-update.remove-record-on-sequence-group": "g"}
    schema = {"k": "INT", "g": "INT", "a": "INT"}

    trace = trace_vector(
        "partial-update", schema, options,
        Record({"k": 1, "g": 1, "a": 1}, stored=True), build_record("-D", g=2, a=None),
        build_record(g=3, a=3), build_record(g=0, a=2), build_record(g=None, a=9),
    )  # fmt: skip

    assert trace.did == (
        "set a, g",
        "removed the row",
        "set a, g",
        "late: older than the row by g",
        "no effect: its values are NULL",
    )
    assert trace.values["a"].records == (2,)
