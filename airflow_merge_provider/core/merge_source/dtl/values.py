"""Equality of values: every value has a typed key, and equal keys mean equal values.

Values are JSON values whose strings may be transit-coded (``~:ns:id``, ``~t2020-01-01``), or the Python
values of typed columns. Joins, the ``compact`` strategy and the union of ``$ids`` share this definition.
Standard library only: Spark sends these functions to its workers.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

# With more zeros, a number is written with an exponent, so that the key of 1e999999 stays short.
_PLAIN_ZEROS = 400
_SAFE_INTEGER_MAX = 10**18
_DECIMAL_TEXT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\Z")
_NOT_FINITE = re.compile(r"[+-]?(?:nan|inf|infinity)\Z", re.IGNORECASE)
_DATE_TEXT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}\Z")
_DATETIME = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?Z\Z")
_UUID_TEXT = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z")
# The kinds that ``decode_value`` distinguishes; the letter is also the prefix of the typed key.
NULL, BOOLEAN, NUMBER, STRING, NI, URI, DATE, DATETIME, UUID, BYTES, LIST, DICT = "zbnsirdtuylo"


def build_key(value: Any) -> str | None:
    """Return a text that equals the text of another value exactly if the two values are equal.

    Null, NaN and the infinities equal nothing, not even themselves: they have no key.

    >>> build_key(1) == build_key(1.0) == build_key("~f1.00")
    True
    >>> build_key("1"), build_key(True), build_key([2, {"b": 1, "a": None}])
    ('s:1', 'b:true', 'l:["n:2",{"a":null,"b":"n:1"}]')

    :raises TypeError: when the value is of no type that an entity can hold.
    """
    # The two most common cases first: this runs once for every key of every entity.
    if type(value) is str and not value.startswith("~"):
        return "s:" + value
    if type(value) is int and -_SAFE_INTEGER_MAX < value < _SAFE_INTEGER_MAX:
        return f"n:{value}"
    kind, content = decode_value(value)
    if kind == NULL:
        return None
    if kind in (LIST, DICT):
        try:
            tree = _write_tree(value)
        except _WithoutKeyError:
            return None
        return f"{kind}:{json.dumps(tree, ensure_ascii=False, sort_keys=True, separators=(',', ':'))}"
    return _scalar_key(kind, content)


def build_keys(value: Any) -> list[str]:
    """Return the keys by which a value joins: its own, or those of its items; nulls never join.

    >>> build_keys([1, None, 1.0, "x"]), build_keys(None), build_keys([])
    (['n:1', 's:x'], [], [])
    """
    keys = (build_key(item) for item in as_list(value))
    return list(dict.fromkeys(key for key in keys if key is not None))


def distinct_values(values: Iterable[Any]) -> list[Any]:
    """Drop the values that equal an earlier one; here null equals null, and NaN still equals nothing."""
    value_by_key: dict[str, Any] = {}
    for position, value in enumerate(values):
        value_by_key.setdefault(build_distinct_key(value, position), value)
    return list(value_by_key.values())


def build_distinct_key(value: Any, position: int) -> str:
    """Return the key of a value in a list without repetitions; for NaN it is its own, by its position."""
    key = build_key(value)
    if key is not None:
        return key
    return NULL if value is None else f"{NULL}{position}"


def as_list(value: Any) -> list[Any]:
    """Return a value as a list: null as an empty list, any value that is not a list as a list of one."""
    if isinstance(value, list):
        return value
    return [] if value is None else [value]


def decode_value(value: Any) -> tuple[str, Any]:
    """Return the kind and the content of a value: the text after the transit tag, a Decimal for a number.

    >>> decode_value("~:ns:1"), decode_value("~zfoo"), decode_value(1.5)
    (('i', 'ns:1'), ('s', '~zfoo'), ('n', Decimal('1.5')))
    """
    if isinstance(value, str):
        return _decode_text(value)
    if value is None:
        return NULL, None
    if isinstance(value, bool):
        return BOOLEAN, value
    if isinstance(value, int | float | Decimal):
        return NUMBER, convert_to_decimal(value)
    if isinstance(value, list):
        return LIST, value
    if isinstance(value, Mapping):
        return DICT, value
    return _decode_object(value)


def is_text(value: Any) -> bool:
    """Return whether a value is a string, and not a transit-coded value of another kind."""
    return isinstance(value, str) and (not value.startswith("~") or _decode_text(value)[0] == STRING)


def _decode_text(text: str) -> tuple[str, Any]:
    """Decode a transit string; one with an unknown tag or invalid content stays a plain string."""
    decode = _TAGS.get(text[:2])
    return (decode(text[2:]) if decode else None) or (STRING, text)


def _decode_number(content: str) -> tuple[str, Decimal] | None:
    if not _DECIMAL_TEXT.match(content) and not _NOT_FINITE.match(content):
        return None
    try:
        return NUMBER, Decimal(content)
    except InvalidOperation:  # an exponent beyond what Decimal holds
        return None


def _decode_time(content: str) -> tuple[str, str] | None:
    """Decode ``~t``: a date, or a time in UTC, always formatted with nine digits of a second."""
    try:
        if _DATE_TEXT.match(content):
            return DATE, dt.date.fromisoformat(content).isoformat()
        if match := _DATETIME.match(content):
            seconds = dt.datetime.fromisoformat(match[1]).isoformat()
            return DATETIME, f"{seconds}.{(match[2] or '').ljust(9, '0')}Z"
    except ValueError:  # a month 13
        pass
    return None


def _decode_bytes(content: str) -> tuple[str, bytes] | None:
    try:
        return BYTES, base64.b64decode(content, validate=True)
    except ValueError:
        return None


_TAGS: dict[str, Callable[[str], tuple[str, Any] | None]] = {
    "~:": lambda content: (NI, content),
    "~r": lambda content: (URI, content),
    "~t": _decode_time,
    "~f": _decode_number,
    "~u": lambda content: (UUID, content.lower()) if _UUID_TEXT.match(content) else None,
    "~b": _decode_bytes,
}


def _decode_object(value: Any) -> tuple[str, Any]:
    """Decode the values of typed columns that JSON does not have."""
    if isinstance(value, dt.datetime):
        # A time without a zone is taken as UTC.
        utc = value if value.tzinfo is None else value.astimezone(dt.UTC)
        return DATETIME, f"{utc.replace(tzinfo=None).isoformat(timespec='microseconds')}000Z"
    if isinstance(value, dt.date):
        return DATE, value.isoformat()
    if isinstance(value, bytes | bytearray | memoryview):
        return BYTES, bytes(value)
    raise TypeError(f"a value of type {type(value).__name__} cannot be part of an entity")


def _scalar_key(kind: str, content: Any) -> str | None:
    if kind == NUMBER:
        return f"n:{_normal_form(content)}" if content.is_finite() else None
    if kind == BOOLEAN:
        return "b:true" if content else "b:false"
    return f"y:{content.hex()}" if kind == BYTES else f"{kind}:{content}"


class _WithoutKeyError(Exception):
    """Raised for a list or dict that contains NaN or an infinity: it equals nothing."""


def _write_tree(value: Any) -> Any:
    """Format a value as JSON in which every scalar is its key: lists keep their order, dicts are sorted."""
    kind, content = decode_value(value)
    if kind == NULL:
        return None
    if kind == LIST:
        return [_write_tree(item) for item in content]
    if kind == DICT:
        return {str(name): _write_tree(item) for name, item in content.items()}
    key = _scalar_key(kind, content)
    if key is None:
        raise _WithoutKeyError
    return key


def convert_to_decimal(value: Any) -> Decimal:
    """Return a number exactly; a float by its shortest text, so that 0.1 is a tenth."""
    if isinstance(value, float):
        return Decimal(float.__repr__(value)) if math.isfinite(value) else Decimal("NaN")
    return value if isinstance(value, Decimal) else Decimal(value)


def _normal_form(number: Decimal) -> str:
    """Format a finite number in the form that all equal numbers share: plain, without trailing zeros."""
    sign, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int):
        raise TypeError(f"{number} is not finite")
    text = "".join(map(str, digits)).lstrip("0")
    significant = text.rstrip("0")
    if not significant:
        return "0"
    minus = "-" if sign else ""
    exponent += len(text) - len(significant)
    if exponent > _PLAIN_ZEROS or exponent < -_PLAIN_ZEROS:
        return f"{minus}{significant}e{exponent}"
    if exponent >= 0:
        return f"{minus}{significant}{'0' * exponent}"
    padded = significant.rjust(1 - exponent, "0")
    return f"{minus}{padded[:exponent]}.{padded[exponent:]}"
