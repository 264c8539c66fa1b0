"""Tests of adding and retracting single values in the aggregate functions, including edge cases."""

from __future__ import annotations

import itertools
import math
from decimal import Decimal
from typing import Any

import pytest

from airflow_merge_provider.core.merge_engine.accumulators import ACCUMULATORS, finish_value
from airflow_merge_provider.core.merge_engine.columns import Column
from airflow_merge_provider.core.merge_engine.exact_numbers import EMPTY, FoldError
from airflow_merge_provider.core.merge_engine.options import ColumnOptions
from airflow_merge_provider.core.merge_engine.plan import ColumnRole, ColumnRule
from tests.conformance.flink_types import spark_type

ROWS = "ARRAY<ROW<id INT, v STRING>>"
TIMED = "MAP<STRING,ROW<value STRING, ts BIGINT>>"
Step = tuple[str, Any]


def gather_values(function: str, kind: str, *steps: Step, **options: Any) -> Any:
    """Add values (``+``) and retract values (``-``) in order, and return the result."""
    rule = ColumnRule(
        Column("v", spark_type(kind)), ColumnRole.FUNCTION, function, None, ColumnOptions(**options)
    )
    does, value = ACCUMULATORS[function], EMPTY
    for sign, operand in steps:
        step = does.add if sign == "+" else does.retract
        assert step is not None
        value = step(value, operand, rule)
    return finish_value(value, rule)


@pytest.mark.parametrize(
    ("function", "kind", "steps", "expected"),
    [
        ("sum", "INT", [("-", 5)], -5),
        ("sum", "INT", [("+", 2**31), ("-", 1)], 2**31 - 1),
        ("sum", "DECIMAL(4,2)", [("+", Decimal("99.99"))], Decimal("99.99")),
        ("product", "INT", [("+", -7), ("-", 2)], -3),
        ("product", "DOUBLE", [("+", 0.0), ("-", -0.0)], math.nan),
        ("product", "DOUBLE", [("+", -1.0), ("-", 0.0)], -math.inf),
        ("product", "DECIMAL(4,2)", [("+", Decimal("1.01")), ("+", Decimal("1.10"))], Decimal("1.11")),
        ("product", "DECIMAL(10,2)", [("+", Decimal("1.00")), ("-", Decimal("8.00"))], Decimal("0.13")),
        ("product", "DECIMAL(10,2)", [("+", Decimal(2)), ("-", Decimal(8)), ("+", Decimal(4))], Decimal(1)),
        ("product", "DOUBLE", [("+", 1e200), ("+", 1e200), ("+", 1e-300)], 1e100),
        ("product", "DOUBLE", [("+", 1e308), ("+", -math.inf), ("+", 10.0)], -math.inf),
        ("product", "DOUBLE", [("+", math.inf), ("+", 0.0)], math.nan),
        ("product", "DOUBLE", [("+", 1e308), ("+", 10.0), ("-", -math.inf)], 0.0),
        ("sum", "DOUBLE", [("+", 1.7e308), ("+", 1.7e308), ("-", 1.7e308)], 1.7e308),
        ("sum", "DOUBLE", [("+", 1e16), ("+", 1.0), ("-", 1e16)], 1.0),
        ("sum", "FLOAT", [("+", 3e38), ("+", math.inf)], math.inf),
        ("max", "DOUBLE", [("+", math.inf), ("+", math.nan), ("+", 1.0)], math.nan),
        ("max", "BYTES", [("+", b"\x7f"), ("+", b"\x80")], b"\x80"),
        ("first_value", "INT", [("+", None), ("+", 1)], None),
        ("listagg", "STRING", [("+", " \u3000"), ("+", "a"), ("+", "\u00a0")], "a,\u00a0"),
        ("collect", "ARRAY<INT>", [("-", [1]), ("+", [1, 1, None]), ("-", [1, None, 7])], [1]),
        ("merge_map", "MAP<STRING,INT>", [("+", [("a", 1)]), ("+", [("a", None)])], [("a", None)]),
        ("count", "INT", [("+", None)], 0),
    ],
)  # fmt: skip
def test_values_are_gathered(function: str, kind: str, steps: list[Step], expected: Any) -> None:
    """Numbers, texts, lists and maps are aggregated, including retracted values."""
    result = gather_values(function, kind, *steps)

    assert result == expected or (math.isnan(result) and math.isnan(expected))


@pytest.mark.parametrize(
    ("function", "kind", "steps", "message"),
    [
        ("sum", "TINYINT", [("+", 127), ("+", 1)], "overflow: sum of column 'v' is 128, out of range"),
        ("sum", "DECIMAL(4,2)", [("+", Decimal("99.99")), ("+", Decimal("0.01"))], "is 100.00, out of range"),
        ("sum", "FLOAT", [("+", 3e38), ("+", 3e38)], "sum of column 'v' is infinite, out of range for FLOAT"),
        ("sum", "DOUBLE", [("-", 1.7e308), ("-", 1.7e308)], "is infinite, out of range for DOUBLE"),
        ("product", "FLOAT", [("+", 3e30), ("+", 3e30)], "is infinite, out of range for FLOAT"),
        ("product", "DOUBLE", [("+", 1e308), ("-", 1e-10)], "is infinite, out of range for DOUBLE"),
        ("product", "INT", [("+", 10**9)] * 600, "is a number with more than 38 digits, out of range"),
        ("product", "DECIMAL(38,0)", [("+", Decimal(10**37))] * 9, "is a number with more than 38 digits"),
        ("product", "INT", [("+", 1), ("-", 0)], "cannot retract a factor of zero"),
        ("product", "DECIMAL(10,2)", [("+", Decimal(1)), ("-", Decimal(3))], "not a finite decimal"),
    ],
)  # fmt: skip
def test_what_cannot_be_said_in_the_column_is_an_error(
    function: str, kind: str, steps: list[Step], message: str
) -> None:
    """A result outside the column type raises an error with the function, the column and the value."""
    with pytest.raises(FoldError, match=message):
        gather_values(function, kind, *steps)


@pytest.mark.parametrize("kind", ["DECIMAL(10,2)", "DECIMAL(38,18)", "FLOAT", "DOUBLE"])
@pytest.mark.parametrize("function", ["sum", "product"])
def test_additions_give_one_result_in_every_order(function: str, kind: str) -> None:
    """Sums and products are exact until they are stored: no order of the values changes a digit."""
    texts = ("0.05", "0.05", "20", "20", "0.3", "-7.77")
    values = [Decimal(text) if kind.startswith("DECIMAL") else float(text) for text in texts]

    results = {
        gather_values(function, kind, *(("+", value) for value in order))
        for order in itertools.permutations(values)
    }

    assert len(results) == 1
    if function == "product":
        assert float(results.pop()) == pytest.approx(-2.33, rel=1e-3)


def test_times_are_compared_by_their_type() -> None:
    """Times are compared by type: a greater number is later, an equal one is not.

    Null rows are retracts, and null times are skipped.
    """
    steps = [
        ("+", [("a", {"value": "old", "ts": 90}), ("b", {"value": "b", "ts": 1})]),
        ("+", [("a", {"value": "new", "ts": 100}), ("b", None)]),
        ("+", [("a", {"value": "same", "ts": 100}), ("c", {"value": "c", "ts": None})]),
    ]

    assert gather_values("merge_map_with_keytime", TIMED, *steps) == [("a", {"value": "new", "ts": 100})]


def test_a_limit_keeps_new_keys_out_and_updates_known_ones() -> None:
    """At the limit, rows of a known key are updated and rows of a new key are not added."""
    steps = [
        ("+", [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]),
        ("+", [{"id": 1, "v": "A"}, {"id": 3, "v": "c"}]),
    ]

    kept_rows = gather_values("nested_update", ROWS, *steps, nested_key=("id",), count_limit=2)

    assert kept_rows == [{"id": 1, "v": "A"}, {"id": 2, "v": "b"}]


@pytest.mark.parametrize(("strategy", "ids"), [("merge", [None, 1]), ("ignore", [1])])
def test_a_null_in_the_nested_key_is_a_value_or_ignored(strategy: str, ids: list[Any]) -> None:
    """A null in the nested key is a value or is ignored, as the strategy defines; ``error`` rejects it."""
    rows = [{"id": None, "v": "a"}, {"id": 1, "v": "b"}, {"id": None, "v": "c"}]

    kept_rows = gather_values("nested_update", ROWS, ("+", rows), nested_key=("id",), null_strategy=strategy)

    assert [row["id"] for row in kept_rows] == ids
    with pytest.raises(FoldError, match="nested-key-null-strategy is error"):
        gather_values("nested_update", ROWS, ("+", rows), nested_key=("id",), null_strategy="error")


def test_maps_in_lists_are_equal_in_any_order() -> None:
    """Elements that are maps are equal if their entries are, whatever their order."""
    kind, first, second = "ARRAY<MAP<STRING,INT>>", [("a", 1), ("b", 2)], [("b", 2), ("a", 1)]
    assert gather_values("collect", kind, ("+", [first]), ("+", [second]), distinct=True) == [first]
    assert gather_values("collect", kind, ("+", [first]), ("-", [second])) == []
