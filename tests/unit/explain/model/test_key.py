"""Tests of the KEY of explanations."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.explain.model.key import convert_key, parse_key


@pytest.mark.parametrize(
    ("text", "columns", "key"),
    [
        ("7", ["id"], {"id": "7"}),
        ("", ["id"], {"id": ""}),
        ("NULL", ["id"], {"id": "NULL"}),
        ('{"id": null}', ["id"], {"id": None}),
        ('{"ID": 1.50, "day": true}', ["id", "day"], {"id": "1.50", "day": "true"}),
        ('{"id": 12345678901234567890.12345}', ["id"], {"id": "12345678901234567890.12345"}),
        ('{"any": "x"}', [], {"any": "x"}),
    ],
)
def test_a_key_is_a_value_or_an_object(text: str, columns: list[str], key: Any) -> None:
    """A value alone is that of the only key column; an object names columns. Numbers keep their digits."""
    assert parse_key(text, columns, ["any", "other"]) == key


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("7", ["a", "b"], 'key: must be a JSON object with the key columns ({"a": …, "b": …})'),
        ("7", [], 'key: must be a JSON object with the key columns (such as {"any": …})'),
        ('{"a": 1}', ["a", "b"], 'key: must be a JSON object with the key columns ({"a": …, "b": …})'),
        ("{}", [], "key: must be a JSON object"),
        ('{"a', ["a"], "key: '{\"a' is not a valid JSON object: "),
        ('{"aa": 1}', ["aaa", "b"], "key: unknown key column 'aa' (did you mean 'aaa'?)"),
    ],
)
def test_another_form_is_refused(text: str, columns: list[str], message: str) -> None:
    """The error names what is wrong, and shows an object with the columns of the key."""
    with pytest.raises(ConfigError) as refused:
        parse_key(text, columns, ["any", "other"])

    assert refused.value.message.startswith(message)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("7", "byte", 7),
        ("1.5", "double", 1.5),
        ("1.50", "decimal(10,1)", Decimal("1.50")),
        ("TRUE", "boolean", True),
        ("2024-01-31", "date", date(2024, 1, 31)),
        ("2024-01-31T12:00+02:00", "timestamp", datetime(2024, 1, 31, 10, tzinfo=UTC)),
        ("2024-01-31", "timestamp", datetime(2024, 1, 31, tzinfo=UTC)),
        ("2024-01-31T10:00:00.123456000Z", "timestamp", datetime(2024, 1, 31, 10, 0, 0, 123456, UTC)),
        ("-Infinity", "double", float("-inf")),
        ("2024-01-31 12:00", "timestamp_ntz", datetime(2024, 1, 31, 12)),  # noqa: DTZ001 - without a zone
        ("0x00ff", "binary", b"\x00\xff"),
        (None, "struct", None),
    ],
)
def test_values_get_the_type_of_their_column(text: str | None, kind: str, value: Any) -> None:
    """The text of a value becomes a value of the column's type; NULL needs none."""
    assert convert_key({"c": text}, {"c": kind}) == {"c": value}


@pytest.mark.parametrize(
    ("text", "kind", "hint"),
    [
        ("x", "long", "write a number"),
        ("1.55", "decimal(10,1)", "write a number"),
        ("12345678901", "decimal(10,1)", "write a number"),
        ("NaN", "decimal(10,1)", "write a number"),
        ("yes", "boolean", "write true or false"),
        ("31.01.2024", "date", "write a date such as 2026-11-24"),
        ("today", "timestamp", "write a timestamp such as 2026-11-24T10:00:00Z"),
        ("2024-01-31T10:00:00.1234567", "timestamp", "write a timestamp such as 2026-11-24T10:00:00Z"),
        ("2024-01-31T10:00:00+02:00", "timestamp_ntz", "write a timestamp such as 2026-11-24T10:00:00"),
        ("1e400", "double", "write a number"),
        ("xyz", "binary", "write hexadecimal digits such as 0x00ff"),
        ("1", "struct", "valid types: numbers, strings, booleans, dates, timestamps and binary"),
    ],
)
def test_a_value_of_another_type_is_refused(text: str, kind: str, hint: str) -> None:
    """The error names the value, the column, its type, and how to write a value."""
    with pytest.raises(ConfigError) as refused:
        convert_key({"c": text}, {"c": kind})

    assert "column 'c' of type" in refused.value.message
    assert refused.value.message.endswith(f"({hint})")
