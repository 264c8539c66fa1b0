"""Test keys whose types differ in size: rows join if, and only if, the values are equal digit by digit."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.explain.joiner import explain_joined_row
from tests.jobs.joiner.conftest import MakeLake
from tests.tables import read_rows

AT = datetime(2024, 5, 1, 12, 30, 0, 123456, tzinfo=UTC)
PRICES = ["2.00", "3.10", "-0.50", "-7.00", None, "99999999999999999999.00"]
COSTS = ["2.000000000000000001", "3.1", "-0.5", "-7.000000000000000000", None, "99999999999999999999"]


def build_table(prefix: str, values: list[str | None], scale: int) -> pa.Table:
    kind = pa.decimal128(38, scale)
    numbers = pa.array([None if value is None else Decimal(value) for value in values], kind)
    ids = [f"{prefix}{n}" for n in range(len(values))]
    return pa.table({"id": ids, "k": numbers, "at": [AT] * len(values)})


def test_decimals_of_any_size_are_compared_digit_by_digit(lake: MakeLake) -> None:
    """Decimals without a common type join if they are equal; checks and explanations compare them alike."""
    join = lake(
        inputs={"a": "a", "b": "b"}, join_keys="a.k = b.k", required_inputs="a, b", unmatched="rest",
        selected_fields="a.k, a.id as left, b.id as right, b.k as cost", expect={"b": "one_to_one"},
    )  # fmt: skip
    join.write_rows("a", build_table("a", PRICES, 2))
    join.write_rows("b", build_table("b", COSTS, 18))
    join.run_job()

    joined: list[dict[str, Any]] = read_rows(join.folder / "joined")
    assert sorted((row["left"], row["right"]) for row in joined) == [
        ("a1", "b1"), ("a2", "b2"), ("a3", "b3"), ("a4", "b4"), ("a5", "b5"),
    ]  # fmt: skip
    by_id = {row["left"]: row for row in joined}
    assert (by_id["a1"]["k"].as_tuple().exponent, by_id["a1"]["cost"].as_tuple().exponent) == (-2, -18)
    unmatched_rows = {row["row"] for row in read_rows(join.folder / "rest")}
    time = '"at":"2024-05-01T12:30:00.123456Z"'
    assert unmatched_rows == {
        f'{{"id":"a0","k":2.00,{time}}}',
        f'{{"id":"b0","k":2.000000000000000001,{time}}}',
    }
    explained = {
        key: explain_joined_row("joined", key, warehouse=str(join.folder))
        for key in ("2.00", COSTS[0], "3.1")
    }
    counts = {key: [len(rows.rows) for rows in item.inputs] for key, item in explained.items()}
    assert counts == {"2.00": [1, 0], COSTS[0]: [0, 1], "3.1": [1, 1]}
    assert explained[COSTS[0]].reasons == (f"the required input 'a' has no row with k = {COSTS[0]}",)

    join.write_rows("b", build_table("b", ["2.0", *COSTS[2:]], 18))
    shown = join.run_job(until="transform")["plan"]["examples"]
    details = {(example["after"] or example["before"])["left"]: example["detail"] for example in shown}
    assert details["a0"] == "rows in a, b"
    assert details["a1"] == "no row in b"


def test_char_keys_of_two_lengths_are_refused(lake: MakeLake) -> None:
    """Spark pads CHAR to compare it with CHAR and not with text, so both are refused with a cast."""
    join = lake(inputs={"a": "a", "b": "b"}, selected_fields="a.k")
    for name, kinds in (("a", "k CHAR(3), v VARCHAR(9)"), ("b", "k CHAR(5), v STRING")):
        join.spark.sql(f"CREATE TABLE delta.`{join.folder}/{name}` ({kinds}) USING delta").collect()

    with pytest.raises(ConfigError, match=r"char\(3\) and b.k is char\(5\).*RTRIM\(a.k\) and RTRIM\(b.k\)"):
        join.run_job(join_keys="a.k = b.k", required_inputs="a")
    with pytest.raises(ConfigError, match=r"a.k is char\(3\) and b.v is string.*with RTRIM\(a.k\) in place"):
        join.run_job(join_keys="a.k = b.v", required_inputs="a")
    assert join.run_job(join_keys="a.v = b.v", required_inputs="a")["changed"]
