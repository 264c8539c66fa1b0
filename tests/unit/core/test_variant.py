"""Tests of the decoding of VARIANT values, against those that Spark has encoded."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql.types import VariantVal

from airflow_merge_provider.core.variant import decode_variants

VALUES = [
    None,
    True,
    False,
    -1,
    300,
    -70_000,
    2**40,
    1.5,
    "short",
    "long " * 100,
    [],
    [1, [None, "x"], {"b": [True]}],
    {},
    {"z": 1, "a": {"é": "ü"}, "m": [{"z": None}]},
    {f"name{number}": number for number in range(300)},
    list(range(300)),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: str(value)[:20])
def test_values_are_those_that_were_encoded(value: Any) -> None:
    """Every JSON value is decoded, in columns and inside of other values."""
    import json

    variant = VariantVal.parseJson(json.dumps(value))
    parts = {"metadata": bytes(variant.metadata), "value": bytes(variant.value)}

    assert decode_variants({"c": [parts, ("k", parts)]}) == {"c": [value, ("k", value)]}


@pytest.mark.parametrize(
    ("encoded", "value"),
    [
        (b"\x20\x02\x96\x00\x00\x00", Decimal("1.50")),
        (b"\x2c\x01\x00\x00\x00", date(1970, 1, 2)),
        (b"\x30" + (1_000_000).to_bytes(8, "little"), datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        (b"\x34" + (0).to_bytes(8, "little"), datetime.fromisoformat("1970-01-01T00:00:00")),
        (b"\x3c\x02\x00\x00\x00ab", b"ab"),
        (b"\x50" + bytes(16), "00000000-0000-0000-0000-000000000000"),
    ],
)
def test_types_that_json_lacks_are_decoded(encoded: bytes, value: Any) -> None:
    """Decimals, dates, timestamps, binary values and UUIDs have their type."""
    assert decode_variants({"metadata": b"\x01\x00\x00", "value": encoded}) == value


@pytest.mark.parametrize("encoded", [b"", b"\x02", b"\x02\xff", b"\xf8", b"\x18\x01", b"\x05\xff"])
def test_a_struct_of_bytes_stays_as_it_is(encoded: bytes) -> None:
    """A struct that only looks like a VARIANT keeps its bytes."""
    parts = {"metadata": b"\x01\x00\x00", "value": encoded}

    assert decode_variants(parts) == parts
