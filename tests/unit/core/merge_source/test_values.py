"""Tests of value equality and of keys of values."""

from __future__ import annotations

import base64
import datetime as dt
import itertools
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, strategies as st

from airflow_merge_provider.core.merge_source.dtl.values import (
    build_key,
    build_keys,
    decode_value,
    distinct_values,
    is_text,
)
from tests.key_values import VALUES as KEYS, convert_values

NUMBERS = (
    st.integers(-3, 3)
    | st.integers()
    | st.sampled_from([0.0, -0.0, 0.5, 1.0, 2.0, 1e300])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["~f1", "~f1.0", "~f0.50", "~f-0", "~f1e1", "~f10"])
)
TEXTS = st.sampled_from(
    ["", "1", "a", "~", "~zfoo", "~:a", "~ra", "~t2020-01-01", "~t2020-13-01", "~bYQ==", "~bYQ", "true"]
)
SCALARS = st.none() | st.booleans() | NUMBERS | TEXTS
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2)
    ),
    max_leaves=6,
)


def is_equal(left: Any, right: Any) -> bool:
    """Compare values without keys: by kind, numbers exactly; null is a value inside lists and dicts."""
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(is_equal, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(is_equal(left[name], right[name]) for name in left)
    if isinstance(left, list | dict) or isinstance(right, list | dict):
        return False
    return decode_json(left) == decode_json(right)


def decode_json(value: Any) -> tuple[str, Any]:
    if value is None or isinstance(value, bool):
        return type(value).__name__, value
    if isinstance(value, float):
        return "number", Fraction(repr(value))
    if isinstance(value, int):
        return "number", Fraction(value)
    if value.startswith("~f"):
        return "number", Fraction(value[2:])
    if value in ("~zfoo", "~", "~t2020-13-01", "~bYQ") or not value.startswith("~"):
        return "text", value
    return value[:2], base64.b64decode(value[2:]) if value[1] == "b" else value[2:]


@given(VALUES, VALUES)
def test_equal_keys_mean_equal_values(left: Any, right: Any) -> None:
    """Two values have the same key exactly if they are equal; null has no key."""
    assert (build_key(left) is None) == (left is None)
    if left is not None and right is not None:
        assert (build_key(left) == build_key(right)) == is_equal(left, right)


def test_typed_values_of_two_types_are_equal_by_value() -> None:
    """Numbers of all types link if they are equal; a day, a text, bytes and a time link their own kind only.

    A float is the number that its shortest text shows, and NULL, NaN and infinities link nothing.
    """
    values = [(kind, value) for kind in KEYS if "<" not in kind for value in convert_values(kind)]
    for (kind, left), (_, right) in itertools.product(values, repeat=2):
        keys = build_key(left), build_key(right)
        is_linked = None not in keys and keys[0] == keys[1]
        assert is_linked == (decode_typed(left) == decode_typed(right) is not None), (kind, left, right)


def decode_typed(value: Any) -> Any:
    """Return a value with its kind, as equal values of other types have it; None if it equals nothing."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, dt.datetime):
        return "time", value.replace(tzinfo=dt.UTC)
    if isinstance(value, bool | str | bytes | dt.date):
        return type(value).__name__, value
    return "number", Fraction(repr(value) if isinstance(value, float) else value)


@given(st.lists(VALUES, max_size=4))
def test_a_list_joins_by_each_item(items: list[Any]) -> None:
    """A list has the keys of its items, each once, in order."""
    keys = [build_key(item) for item in items if item is not None]

    assert build_keys(items) == list(dict.fromkeys(keys))


@given(st.lists(VALUES, max_size=5))
def test_distinct_values_keep_the_first(items: list[Any]) -> None:
    """The distinct values contain no equal pair, and every removed value equals a remaining one."""
    distinct = distinct_values(items)

    assert not any(is_equal(left, right) for left, right in itertools.combinations(distinct, 2))
    assert all(any(is_equal(item, value) for value in distinct) for item in items)


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (True, "b:true"),
        (-0.0, "n:0"),
        (-12.50, "n:-12.5"),
        (0.001, "n:0.001"),
        (1e22, "n:10000000000000000000000"),
        (2**70, "n:1180591620717411303424"),
        (Decimal("1.10"), "n:1.1"),
        ("~f1e999999", "n:1e999999"),
        ("~f-10e-999999", "n:-1e-999998"),
        (" a", "s: a"),
        ("~:ns:1", "i:ns:1"),
        ("~:", "i:"),
        ("~rhttp://x", "r:http://x"),
        ("~t2020-02-29", "d:2020-02-29"),
        ("~t2021-02-29", "s:~t2021-02-29"),
        ("~t2020-01-01T10:00:00.5Z", "t:2020-01-01T10:00:00.500000000Z"),
        ("~t2020-01-01T10:00:00", "s:~t2020-01-01T10:00:00"),
        ("~t2020-01-01T24:00:00Z", "s:~t2020-01-01T24:00:00Z"),
        ("~t2020-01-01T10:00:00.1234567890Z", "s:~t2020-01-01T10:00:00.1234567890Z"),
        ("~t2020-01-01\n", "s:~t2020-01-01\n"),
        ("~u531A379E-31bb-4ce1-8690-158dceb64be6", "u:531a379e-31bb-4ce1-8690-158dceb64be6"),
        ("~u1", "s:~u1"),
        ("~bAAEC", "y:000102"),
        ("~bAAE", "s:~bAAE"),
        ("~b\u00e9", "s:~b\u00e9"),
        ("~f1_0", "s:~f1_0"),
        ("~f1e99999999999999999999", "s:~f1e99999999999999999999"),
        (dt.date(2020, 1, 1), "d:2020-01-01"),
        (dt.datetime(2020, 1, 1, 2), "t:2020-01-01T02:00:00.000000000Z"),  # noqa: DTZ001 - intended
        (
            dt.datetime(2020, 1, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=2))),
            "t:2020-01-01T00:00:00.000000000Z",
        ),
        (b"\x00\x01", "y:0001"),
        (bytearray(b"\x00\x01"), "y:0001"),
        ([], "l:[]"),
        ({}, "o:{}"),
        ([1, [None, "~f1.0"]], 'l:["n:1",[null,"n:1"]]'),
        ({"b": "\u00e9", "a": {"c": []}}, 'o:{"a":{"c":[]},"b":"s:\u00e9"}'),
    ],
)
def test_the_key_of_a_value(value: Any, key: str) -> None:
    """Each kind of value has its own letter in the key, and each value has exactly one notation."""
    assert build_key(value) == key


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "~fNaN", "~f-Infinity", Decimal("NaN")])
def test_what_is_not_finite_equals_nothing(value: Any) -> None:
    """NaN and infinities have no key, alone, in a list or inside another value."""
    assert build_key(value) is None
    assert build_keys([value, 1]) == ["n:1"]
    assert build_key([1, {"a": value}]) is None
    assert len(distinct_values([value, value])) == 2


def test_a_number_of_any_size_has_a_short_time_to_its_key() -> None:
    """Integers longer than Python converts to text have a key too, and it is built quickly."""
    assert build_key(10**5000) == "n:1e5000"
    assert build_key(10**5000 + 1) != build_key(10**5000)


def test_an_object_of_no_known_type_is_refused() -> None:
    """An object of an unknown type is rejected, because it cannot be part of an entity."""
    with pytest.raises(TypeError, match="object"):
        build_key(object())


@pytest.mark.parametrize(
    ("value", "text"), [("a", True), ("~zfoo", True), ("~:a:b", False), (1, False), (None, False)]
)
def test_text_is_a_string_of_no_other_kind(value: Any, text: bool) -> None:
    """Only a plain string is a text.

    A transit-encoded value is not a text; a value with an unknown tag is.
    """
    assert is_text(value) is text


def test_tagged_gives_kind_and_content() -> None:
    """Functions that inspect a value use its kind and content."""
    assert decode_value("~rx") == ("r", "x")
    assert decode_value([1]) == ("l", [1])
