"""Tests of the package's fold against the oracle on random tables, without Spark.

``MERGE_RANDOM_RUNS=5000 MERGE_RANDOM_SEED=1`` runs more and other tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from airflow_merge_provider.core.merge_engine.accumulators import order_key
from airflow_merge_provider.core.merge_engine.checks import plan_fold
from airflow_merge_provider.core.merge_engine.columns import parse_columns
from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig
from airflow_merge_provider.core.merge_engine.fold import FoldResult, Record, fold_records
from airflow_merge_provider.core.merge_engine.plan import ColumnRole, Plan
from tests.conformance.flink_types import parse_column
from tests.conformance.oracles.merge_engine import Oracle
from tests.conformance.oracles.merge_engine_functions import RefusedError
from tests.conformance.oracles.merge_engine_workloads import draw_workload
from tests.random_seeds import list_seeds

SEEDS = list_seeds(600)


def plan_vector(vector: Mapping[str, Any]) -> Plan:
    names = ("options", "primary_key", "tombstone_retention")
    raw = {**{name: vector[name] for name in names if name in vector}, "merge_engine": vector["engine"]}
    return plan_fold(
        MergeEngineConfig.parse(raw), parse_columns(parse_column(*pair) for pair in vector["schema"].items())
    )


class Table:
    """Rows into which the package folds commits, with every column folded."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.rules = [rule for rule in plan.rules if rule.role is not ColumnRole.KEY]
        self.rows: dict[Any, dict[str, Any]] = {}
        self.removed: dict[Any, list[Record]] = {}

    def commit_batch(self, records: Sequence[Sequence[Any]]) -> None:
        batch: dict[Any, list[Record]] = {}
        for kind, *values in records:
            pairs = zip(self.plan.columns, values, strict=True)
            row = {column.name: to_arrow(value, column.family) for column, value in pairs}
            batch.setdefault(row["k"], [])
            if not self.is_ignored(kind):
                batch[row["k"]].append(Record(row, kind in {"+I", "+U"}, kind == "-D"))
        folded = {key: self.fold_key(key, entries) for key, entries in batch.items()}
        for key, result in folded.items():
            self.rows.pop(key, None)
            if result.is_live:
                self.rows[key] = {"k": key, **result.values}

    def is_ignored(self, kind: str) -> bool:
        options = self.plan.options
        deletes = options.ignore_delete and kind in {"-U", "-D"}
        return deletes or (options.ignore_update_before and kind == "-U")

    def build_order(self, record: Record) -> list[Any]:
        sign = -1 if self.plan.options.descending else 1
        values = [record.values[name] for name in self.plan.sequence]
        return [order_key(None if value is None else sign * value) for value in values]

    def fold_key(self, key: Any, entries: list[Record]) -> FoldResult:
        stored = [Record(self.rows[key], stored=True)] if key in self.rows else []
        records = [*self.removed.get(key, []), *stored, *entries]
        result = fold_records(self.plan, self.rules, sorted(records, key=self.build_order))
        if result.problem:
            raise RefusedError(result.problem)
        if self.plan.remembers:
            self.removed.setdefault(key, []).extend(self.list_removals(result, entries))
        return result

    def list_removals(self, result: FoldResult, entries: list[Record]) -> list[Record]:
        """Return the tombstones: for groups those of the fold, otherwise the records that delete."""
        nothing = dict.fromkeys(self.plan.names)
        if self.plan.folds_rows:
            tombstones = [result.removed] if result.removed else []
        else:
            deletes = [entry.values for entry in entries if entry.deletes]
            tombstones = [{name: values[name] for name in self.plan.sequence} for values in deletes]
        tombstones = [values for values in tombstones if any(value is not None for value in values.values())]
        return [Record({**nothing, **values}, adds=False, deletes=True, stored=True) for values in tombstones]


def to_arrow(value: Any, family: str) -> Any:
    return list(value.items()) if family == "map" and value is not None else value


def to_plain(row: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    maps = {column.name for column in plan.columns if column.family == "map"}
    return {name: dict(value) if name in maps and value is not None else value for name, value in row.items()}


@pytest.mark.parametrize("start", SEEDS[::100])
def test_the_fold_is_the_definition(start: int) -> None:
    """After every commit the rows equal those of the oracle, or both reject it.

    Deduplicate and first-row have no fold.
    """
    outcomes = [
        outcome for seed in range(start, start + 100) for outcome in compare_folds(draw_workload(seed))
    ]

    assert outcomes.count("refused") < 60 < outcomes.count("equal")


def compare_folds(vector: Mapping[str, Any]) -> Iterator[str]:
    """Fold a table with both implementations, commit by commit, up to the first rejected one."""
    plan = plan_vector(vector)
    if plan.engine in {"deduplicate", "first-row"}:
        return
    table, oracle = Table(plan), Oracle(vector)
    for commit in vector["commits"]:
        try:
            oracle.commit_batch(commit)
        except RefusedError:
            with pytest.raises(RefusedError):
                table.commit_batch(commit)
            yield "refused"
            return
        table.commit_batch(commit)
        rows = {(key,): to_plain(row, plan) for key, row in table.rows.items()}
        assert rows == oracle.rows, vector["id"]
        yield "equal"
