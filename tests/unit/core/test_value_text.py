"""Tests of values as text and as JSON."""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from airflow_merge_provider.core.value_text import format_row, format_value, to_json_value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "NULL"),
        (False, "false"),
        (Decimal("1E+2"), "100"),
        (Decimal("12.50"), "12.50"),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
        (1e300, "1e+300"),
        (date(2024, 1, 31), "2024-01-31"),
        (datetime(2024, 1, 31, 12, tzinfo=timezone(timedelta(hours=2))), "2024-01-31T10:00:00Z"),
        (datetime.fromisoformat("2024-01-31T12:00:00.000005"), "2024-01-31T12:00:00.000005"),
        (b"\x00\xff", "0x00ff"),
        ("NULL", '"NULL"'),
        ("Zoë 日本", '"Zoë 日本"'),
        ('a"b\\c', '"a\\"b\\\\c"'),
        ("a\nb\x1b[2J", '"a\\nb\\u001b[2J"'),
        ("a\x7f\x9b\u202e\U000e0041", '"a\\u007f\\u009b\\u202e\\udb40\\udc41"'),
        ("\udcff", '"\\udcff"'),
        ([1, None, ["x"]], '[1, NULL, ["x"]]'),
        ({"a": date(2024, 1, 31), "b\n": {}}, '{"a": 2024-01-31, "b\\n": {}}'),
        ([("k", 1)], '{"k": 1}'),
    ],
)
def test_values_print_as_people_write_them(value: Any, text: str) -> None:
    """Every type has its usual form, and no value changes the terminal or hides characters."""
    assert format_value(value) == text
    json.dumps(to_json_value(value), allow_nan=False)


def test_long_values_are_shortened_as_text_only() -> None:
    """A long value ends with its number of characters; JSON has all of it."""
    assert format_value("x" * 1000).endswith("… (1002 characters)")
    assert to_json_value("x" * 1000) == "x" * 1000
    assert format_row({"a\x1b": 1, "b": "2"}) == 'a\\u001b = 1, b = "2"'
