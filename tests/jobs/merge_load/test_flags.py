"""Test the flags of deleted rows, and the types of columns that are compared."""

from __future__ import annotations

import re
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from airflow_merge_provider.core.errors import ConfigError, DataError
from tests.jobs.merge_load.conftest import MakeLoads

KEY = {"primary_key": "id"}


def build_source(flags: list[Any], kind: pa.DataType | None = None) -> pa.Table:
    """Return one row for each flag."""
    return pa.table({"id": range(len(flags)), "gone": pa.array(flags, kind)})


@pytest.mark.parametrize(
    ("flags", "count", "example"),
    [
        ([0, 1, None, 0], 2, "'0'"),
        ([-0.0, 1.5], 1, "'-0.0'"),
        ([Decimal("0.00"), Decimal("0.01")], 1, "'0.00'"),
        (["false", " F ", "No", "n", "0", "", " ", "OFF", "2024-01-01", "yes"], 8, "''"),
        ([date(1970, 1, 1), date(9999, 12, 31), None], 1, "'9999-12-31'"),
        ([b"", b"0"], 1, "''"),
        ([[], [0], None], 1, "'[]'"),
        ([False, True, None], 0, ""),
    ],
    ids=["int", "double", "decimal", "text", "date", "binary", "list", "boolean"],
)
def test_a_flag_that_looks_false_is_warned_of(
    memory_loads: MakeLoads, flags: list[Any], count: int, example: str
) -> None:
    """A flag that is not a boolean deletes unless it is NULL, so that 0 and "false" delete: a warning."""
    loads = memory_loads("upsert", **KEY, hard_delete="gone")
    warnings = loads.load_rows(build_source(flags))["warnings"]

    assert len(warnings) == bool(count)
    for warning in warnings:
        assert f"column 'gone' flags {count} row" in warning
        assert f"such as {example}" in warning
        assert re.search(r'use hard_delete_when="[^"]*gone', warning)


def test_a_history_warns_of_flags_too(memory_loads: MakeLoads) -> None:
    """A snapshot counts them while it compares keys."""
    loads = memory_loads("scd2", natural_key="id", hard_delete="gone")
    loads.load_rows(build_source([None, None], pa.int64()), boundary_timestamp="2024-01-01")
    report = loads.load_rows(build_source([0, None]), boundary_timestamp="2024-01-02")

    assert report["counts"]["closed"] == 1
    assert ["flags 1 row" in warning for warning in report["warnings"]] == [True]


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("upsert", {**KEY, "sequence_by": "n"}),
        ("delete-insert", KEY),
        ("scd2", {"natural_key": "id", "mode": "changes"}),
    ],
)
def test_a_condition_flags_rows(memory_loads: MakeLoads, strategy: str, settings: dict[str, Any]) -> None:
    """Rows that match hard_delete_when are deleted; NULL does not match; its columns are loaded."""
    condition = "lower({staging_table}.gone) IN ('true', '1')"
    loads = memory_loads(strategy, **settings, hard_delete_when=condition)
    rows = [{"id": number, "n": 1, "gone": "false"} for number in range(4)]
    at = ({"boundary_timestamp": f"2024-01-0{day}"} if strategy == "scd2" else {} for day in (1, 2))
    loads.load_rows(rows, **next(at))
    flags = ("TRUE", "1", "false", None)
    report = loads.load_rows(
        [{"id": number, "n": 2, "gone": flag} for number, flag in enumerate(flags)], **next(at)
    )

    stored = [row for row in loads.read_rows() if "valid_to" not in row]
    assert [(row["id"], row.get("gone")) for row in stored] == [(2, "false"), (3, None)]
    assert report["warnings"] == []


def test_a_condition_on_other_columns_is_refused(memory_loads: MakeLoads) -> None:
    """The condition is checked with the columns of the source, before anything is written."""
    loads = memory_loads("upsert", **KEY)
    rows = build_source([1])

    with pytest.raises(DataError, match=r"hard_delete_when: .*other"):
        loads.load_rows(rows, hard_delete_when="other = 1")
    with pytest.raises(ConfigError, match="hard_delete_when: cannot be combined with hard_delete"):
        loads.load_rows(rows, hard_delete_when="gone = 1", hard_delete="gone")
    assert loads.read_version() is None


def test_text_that_orders_rows_is_warned_of(memory_loads: MakeLoads) -> None:
    """Text is ordered character by character, so that the warning names the cast that helps."""
    rows = [{"id": 1, "version": "9"}, {"id": 1, "version": "10"}]
    for settings in ({"sequence_by": "version"}, {"dedup_sort": {"version": "desc"}}):
        loads = memory_loads("upsert", **KEY, **settings)
        warnings = loads.load_rows(rows)["warnings"]

        assert [warning.partition(":")[0] for warning in warnings] == list(settings)
        assert "column 'version' is text, so '9' is newer than '10'" in warnings[0]
        assert "CAST(version AS BIGINT)" in warnings[0]
    loads = memory_loads("scd2", natural_key="id", mode="changes", effective_from="version")
    with pytest.raises(DataError, match="effective_from: column 'version' has type string"):
        loads.load_rows(rows)


def test_a_key_that_cannot_be_compared_is_refused(memory_loads: MakeLoads) -> None:
    """A map or a variant is no key, also inside another type; decimals are not rounded."""
    kind = pa.struct([("map", pa.int64()), ("m", pa.map_(pa.string(), pa.int64()))])
    rows = pa.table({"id": [1], "key": pa.array([{"map": 1, "m": [("a", 1)]}], kind)})
    with pytest.raises(DataError, match="primary_key: column 'key' of the source s has type struct<map:"):
        memory_loads("upsert", primary_key="key").load_rows(rows)

    loads = memory_loads("upsert", **KEY)
    loads.load_rows(pa.table({"id": [1], "v": pa.array([Decimal("1.25")], pa.decimal128(10, 2))}))
    rows = pa.table({"id": [1], "v": pa.array([Decimal("1.2345")], pa.decimal128(10, 4))})
    message = (
        r"type decimal\(10,4\) in the source and type decimal\(10,2\) in the target, "
        r"with values such as 1.2345 \(cast it upstream with CAST\(v AS decimal\(10,2\)\)"
    )
    with pytest.raises(DataError, match=message):
        loads.load_rows(rows)
    struct = pa.table({"id": [1], "v": pa.array([{"a": 1}], pa.struct([("a", pa.int64())]))})
    with pytest.raises(DataError, match=r"\(give it the type decimal\(10,2\) upstream, or rebuild"):
        loads.load_rows(struct)
