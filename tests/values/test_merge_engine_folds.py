"""Test that a merge engine folds values of each type alike by aggregates of Spark and in Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from tests.conformance.merge_engine import MemoryLake
from tests.values.catalog import ALL, NESTED, SHORT, SIMPLE, TWICE, Kind
from tests.values.merging import (
    BY_NAME,
    PAYLOAD_ROWS,
    build_payload,
    fold_value,
    list_cells,
    list_values,
    mark_long,
    require_exact,
    sort_value,
    take_rows,
)
from tests.values.outcomes import read_outcomes

pytestmark = pytest.mark.spark
OUTCOMES = read_outcomes("merge_engine")
SEQUENCES = [(kind, value) for kind in SIMPLE for value in reversed(kind.values)]
# Of each function: a column of a type, the values of its records, and the result.
Case = tuple[str, Kind, list[Any], Any]


def list_functions() -> Iterator[Case]:
    """Yield what each function makes of the values of each type."""
    for kind in SIMPLE:
        values = [*kind.values, None]
        yield "max", kind, values, max(kind.values, key=sort_value)
        yield "min", kind, values, min(kind.values, key=sort_value)
        yield "first_value", kind, values, kind.values[0]
        yield "first_non_null_value", kind, [None, *values], kind.values[0]
        yield "last_value", kind, [*values, kind.values[1]], kind.values[1]
        yield from list_number_functions(kind)
    for kind in (*NESTED, *TWICE):
        first, second = kind.values[-2:]
        if kind.name.startswith("array_"):
            yield "collect", kind, [first, None, second], [*first, *second]
        if kind.name.startswith("array_struct_"):
            yield (
                "nested_update",
                kind,
                [first, second],
                [row for row in [*first, *second] if row is not None],
            )
        if kind.name.startswith("map_"):
            yield "merge_map", kind, [first, second], list(dict([*first, *second]).items())
    boolean, text = BY_NAME["boolean"], BY_NAME["string"]
    yield "bool_and", boolean, [True, None, False], False
    yield "bool_or", boolean, [False, None, True], True
    yield "listagg", text, ["a", "\U0001f600", " ", "e\u0301,\n"], "a,\U0001f600,e\u0301,\n"
    yield "count", BY_NAME["int"], [7, None, 8], 2
    yield "count", BY_NAME["bigint"], [7, None, 8], 2


def list_number_functions(kind: Kind) -> Iterator[Case]:
    """Yield sums and products whose steps leave the range of the type, and whose results do not."""
    if kind.name in {"float", "double"}:
        yield "sum", kind, [-1.5, None, 0.25], -1.25
        yield "product", kind, [-1.5, None, 2.0], -3.0
    elif kind.name.startswith("decimal"):
        zero, least, _, most, _, lowest, *_ = kind.values
        one = (zero + 1).quantize(zero)
        yield "sum", kind, [most, lowest, None, least], least
        yield "product", kind, [most, one, one], most
    elif kind.name.endswith("int"):
        most, _, lowest, _, _, minus, _, *_ = kind.values
        yield "sum", kind, [most, most, lowest, minus], most - 2
        yield "product", kind, [most, minus, None], -most


FUNCTIONS = {f"{case[0]}_{case[1].name}": case for case in list_functions()}


@dataclass(frozen=True)
class Folds:
    """The results of the same records, folded by aggregates of Spark and one by one in Python."""

    payload: pa.Table
    results: dict[str, pa.Table]

    def read_column(self, path: str, name: str) -> dict[str, str]:
        """Return the values of a column, by key."""
        kind = (FUNCTIONS[name][1] if name in FUNCTIONS else BY_NAME[name]).arrow
        rows = self.results[path]
        keys = sorted(rows["k"].to_pylist())
        return dict(zip(keys, list_values(rows, name, kind, "k"), strict=True))

    def read_number(self, path: str, key: str) -> int:
        """Return the number of the record that won."""
        rows = self.results[path].select(["k", "n"]).to_pylist()
        return int(next(row["n"] for row in rows if row["k"] == key))


def build_records(payload: pa.Table, functions: Mapping[str, Case]) -> pa.Table:
    """Return records with a payload, with arguments of functions, and with values of sequences only."""
    keys: list[tuple[str, dict[str, Any], int | None, int]] = []
    for number in range(PAYLOAD_ROWS):
        earlier = (number + 1) % PAYLOAD_ROWS
        keys += [(f"payload {number:02}", {"s_int": at}, row, at) for at, row in ((1, earlier), (2, number))]
    size = max(len(values) for _, _, values, _ in functions.values())
    keys += [("functions", {"s_int": at}, None, at) for at in range(size)]
    keys += [
        (f"sequence {kind.name}", {f"s_{kind.name}": value}, None, at)
        for at, (kind, value) in enumerate(SEQUENCES)
    ]
    table = pa.table({"k": [key for key, *_ in keys], "n": pa.array([at for *_, at in keys], pa.int64())})
    for kind in SIMPLE:
        values = [sequence.get(f"s_{kind.name}") for _, sequence, _, _ in keys]
        table = table.append_column(f"s_{kind.name}", pa.array(values, kind.arrow))
    rows = take_rows(payload, [row for _, _, row, _ in keys])
    for name in payload.column_names:
        table = table.append_column(name, rows[name])
    for name, (_, kind, values, _) in functions.items():
        items = [values[at] if key == "functions" and at < len(values) else None for key, _, _, at in keys]
        # A NULL after the values would be the last value.
        if name.startswith("last_value"):
            items = [
                values[-1] if key == "functions" and at >= len(values) else item
                for item, (key, _, _, at) in zip(items, keys, strict=True)
            ]
        table = table.append_column(name, pa.array(items, kind.arrow))
    return table


FoldKinds = Callable[[str], Folds]


@pytest.fixture(scope="module")
def fold(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> FoldKinds:
    """Return the folds of a type, which shares its runs with others: those of ``SHORT``, or the rest."""

    @cache
    def fold_kinds(*, is_short: bool) -> Folds:
        kinds = [kind for kind in ALL if (kind in SHORT) == is_short]
        return _fold_kinds(spark, tmp_path_factory, kinds)

    return lambda name: fold_kinds(is_short=BY_NAME[name] in SHORT)


def _fold_kinds(spark: SparkSession, folders: pytest.TempPathFactory, kinds: Sequence[Kind]) -> Folds:
    """Return the rows of an aggregation, and of a partial update that folds all columns in Python."""
    payload = build_payload().select([kind.name for kind in kinds])
    cases = {name: case for name, case in FUNCTIONS.items() if case[1] in kinds}
    records = build_records(payload, cases)
    order = ",".join(f"s_{kind.name}" for kind in SIMPLE)
    functions = {f"fields.{name}.aggregate-function": function for name, (function, *_) in cases.items()}
    functions |= {"fields.n.aggregate-function": "last_value"}
    protected = ",".join(name for name in records.column_names if name != "k" and not name.startswith("s_"))
    engines = {
        "spark aggregate": ("aggregation", {"sequence.field": order}),
        "python fold": (
            "partial-update",
            {
                f"fields.{order}.sequence-group": protected,
                "fields.default-aggregate-function": "last_non_null_value",
                "partial-update.remove-record-on-sequence-group": order,
            },
        ),
    }
    results = {}
    for path, (engine, options) in engines.items():
        settings = {"merge_engine": engine, "primary_key": ["k"], "options": options | functions}
        settings |= {"source": "changes", "target": "state"}
        schema = from_arrow_schema(records.schema)
        lake = MemoryLake(spark, folders.mktemp("folds"), MergeEngineConfig.parse(settings), schema)
        lake.append_rows(records)
        run = RunToken(dag_id="tests", run_id="1", task_id="merge")
        lake.run_job(JobRequest(job="merge_engine", config=settings, run=run, started_at=1))
        results[path] = lake.read_rows("state")
    return Folds(payload, results)


@pytest.mark.parametrize(
    ("name", "use"), mark_long(list_cells(OUTCOMES, ALL, "spark aggregate", "python fold"))
)
def test_both_ways_of_folding_keep_values(fold: FoldKinds, name: str, use: str) -> None:
    """The newest value that is not NULL is the value of its record, and functions give exact results."""
    require_exact(OUTCOMES, name, use)
    folds = fold(name)
    values = [fold_value(value) for value in folds.payload[name].to_pylist()]
    expected = [
        values[(at + 1) % PAYLOAD_ROWS] if value == "None" else value for at, value in enumerate(values)
    ]
    column = folds.read_column(use, name)
    assert [column[f"payload {at:02}"] for at in range(PAYLOAD_ROWS)] == expected
    results = {column: result for column, (_, kind, _, result) in FUNCTIONS.items() if kind.name == name}
    actual = {column: folds.read_column(use, column)["functions"] for column in results}
    shaped = {column: fold_value(result) for column, result in results.items()}
    assert actual == shaped


@pytest.mark.parametrize(("name", "use"), list_cells(OUTCOMES, SIMPLE, "max", "sum"))
def test_functions_take_all_their_types(fold: FoldKinds, name: str, use: str) -> None:
    """Both ways give the result of a function, also if its steps are out of the range of the type."""
    require_exact(OUTCOMES, name, use)
    folds, expected = fold(name), fold_value(FUNCTIONS[f"{use}_{name}"][-1])
    actual = {path: folds.read_column(path, f"{use}_{name}")["functions"] for path in folds.results}
    assert actual == dict.fromkeys(folds.results, expected)


@pytest.mark.parametrize("name", [kind.name for kind in SIMPLE])
def test_both_ways_of_folding_take_the_newest_record(fold: FoldKinds, name: str) -> None:
    """The record with the largest sequence is the newest one, in an aggregate and in the fold in Python."""
    numbers = {at: value for at, (kind, value) in enumerate(SEQUENCES) if kind.name == name}
    folds, newest = fold(name), max(numbers, key=lambda number: sort_value(numbers[number]))
    actual = {path: folds.read_number(path, f"sequence {name}") for path in folds.results}
    assert actual == dict.fromkeys(folds.results, newest)
