"""Test that the order in which records of a batch arrive changes no row if a sequence orders them."""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from random import Random
from typing import Any

from hypothesis import given, settings, strategies as st

from airflow_merge_provider.core.merge_engine.plan import Plan
from tests.conformance.oracles.merge_engine_functions import RefusedError
from tests.conformance.oracles.merge_engine_workloads import draw_workload
from tests.unit.core.merge_engine.test_random import Table, plan_vector

# Each group of columns that order the records of a workload.
ORDERS = (("s1", "s2"), ("g",), ("h1", "h2"))
# The sequence of the newest records.
LATEST = 100


def set_sequences(vector: dict[str, Any], commit: list[list[Any]], first: int, random: Random) -> None:
    """Set different sequences in the records of a key, except where a group has none."""
    names = ["#kind", *vector["schema"]]
    free: defaultdict[Any, int] = defaultdict(lambda: first)
    for order in ORDERS:
        ordered = random.sample(commit, len(commit))
        for record in ordered:
            positions = [names.index(name) for name in order if name in names]
            if order[0] != "s1" and all(record[position] is None for position in positions):
                continue
            for position in positions:
                record[position] = free[record[1], order]
            free[record[1], order] += 1
    if "sequence.field" not in vector["options"] and "free" in names:
        for record in commit:
            record[names.index("free")] = None


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 1_000_000), st.randoms(use_true_random=False))
def test_a_batch_gives_one_result_whatever_the_order_of_its_rows(seed: int, random: Random) -> None:
    """Rows and recorded removals are equal for shuffled batches, or each of them is refused."""
    vector = draw_workload(seed)
    plan = plan_vector(vector)
    if plan.engine in {"deduplicate", "first-row"} or not (plan.groups or plan.sequence):
        return
    before, late, _ = vector["commits"]
    set_sequences(vector, before, 10, random)
    set_sequences(vector, late, random.choice((0, 5, 9, 30)), random)
    outcomes = []
    for batch in (late, *(random.sample(late, len(late)) for _ in range(4))):
        table = Table(plan)
        try:
            table.commit_batch(before)
        except RefusedError:
            return
        try:
            table.commit_batch(batch)
            outcomes.append(
                (table.rows, {key: sort_removals(records) for key, records in table.removed.items()})
            )
        except RefusedError:
            outcomes.append("refused")
    assert all(outcome == outcomes[0] for outcome in outcomes), vector["id"]


def repeat_sequences(vector: dict[str, Any], commit: list[list[Any]], step: int) -> list[list[Any]]:
    """Return records of which those of a key have sequences that differ by a step, in their order."""
    names = ["#kind", *vector["schema"]]
    first, *groups = ([names.index(name) for name in order if name in names] for order in ORDERS)
    numbers: defaultdict[Any, int] = defaultdict(lambda: LATEST)
    records = [list(record) for record in commit]
    for record in records:
        numbers[record[1]] += step
        # A part of a tuple that is NULL would order records; a group without any does not take part.
        ordered = [group for group in groups if any(record[position] is not None for position in group)]
        for position in (*first, *chain.from_iterable(ordered)):
            record[position] = numbers[record[1]]
    return records


def list_unordered(plan: Plan, table: Table) -> list[dict[str, Any]]:
    """Return the rows of a table without the columns that order records."""
    ordering = {name for order in ORDERS for name in order}
    return [
        {name: value for name, value in row.items() if name not in ordering} for row in table.rows.values()
    ]


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 1_000_000))
def test_records_of_equal_sequence_are_folded_as_they_arrive(seed: int) -> None:
    """Arrival decides between equal sequences: the rows are those of sequences that grow with the arrival."""
    vector = draw_workload(seed)
    plan = plan_vector(vector)
    is_descending = plan.options.descending or any(group.descending for group in plan.groups)
    if plan.engine in {"deduplicate", "first-row"} or is_descending or not (plan.groups or plan.sequence):
        return
    before, late, _ = vector["commits"]
    outcomes = []
    for step in (0, 1):
        table = Table(plan)
        try:
            table.commit_batch(repeat_sequences(vector, before, -1))
            table.commit_batch(repeat_sequences(vector, late, step))
            outcomes.append(list_unordered(plan, table))
        except RefusedError:
            outcomes.append("refused")
    assert outcomes[0] == outcomes[1], vector["id"]


def sort_removals(records: list[Any]) -> list[str]:
    return sorted(str(record.values) for record in records)
