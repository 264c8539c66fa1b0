"""Tests of the trace: it names the record that set each value and does not change the result of the fold."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from typing import Any

import pytest

from airflow_merge_provider.core.merge_engine.fold import Record
from airflow_merge_provider.core.merge_engine.plan import Plan
from airflow_merge_provider.core.merge_engine.trace import KeyTrace, trace_batches, trace_records
from tests.conformance.oracles.merge_engine import Oracle
from tests.conformance.oracles.merge_engine_functions import RefusedError
from tests.conformance.oracles.merge_engine_workloads import draw_workload
from tests.unit.core.merge_engine.test_random import plan_vector, to_arrow, to_plain


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


def test_a_trace_gives_the_rows_of_the_definition() -> None:
    """Traced batch by batch, each key of random tables has the row that the oracle has, in all engines."""
    compared = 0
    for seed in range(200):
        vector = draw_workload(seed)
        plan, oracle = plan_vector(vector), Oracle(vector)
        try:
            for commit in vector["commits"]:
                oracle.commit_batch(commit)
        except RefusedError:
            continue
        for key in range(1, 7):
            commits = [
                [as_record(plan, change) for change in commit if change[1] == key]
                for commit in vector["commits"]
            ]
            kept_records = [[one for one in records if not is_dropped(plan, one)] for records in commits]
            ends = list(accumulate(map(len, kept_records), initial=0))
            batches = [range(*ends_of_batch) for ends_of_batch in pairwise(ends)]
            trace = trace_batches(plan, list(chain.from_iterable(kept_records)), batches)
            values = {"k": key, **{name: source.value for name, source in trace.values.items()}}
            assert (to_plain(values, plan) if trace.is_live else None) == oracle.rows.get((key,)), seed
            compared += trace.is_live
    assert compared > 400


def is_dropped(plan: Plan, record: Record) -> bool:
    ignores = plan.options.ignore_update_before and not record.deletes
    return not record.adds and (plan.options.ignore_delete or ignores)


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
