"""Values of every type of keys, of which some equal values of other types, and others nearly do."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

AT = datetime(2024, 5, 1, tzinfo=UTC)
NEAR = AT.replace(microsecond=123456)
FLOATS = [0.0, -0.0, 1.0, 2.0, 16777216.0, 0.5, math.nan, math.inf]
TENTH = float(np.float32(0.1))
TEXTS = ["", "1", "a", "a ", "A", "\u00e9", "e\u0301", "2024-05-01"]
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "tinyint": (pa.int8(), [0, 1, -128, 127]),
    "smallint": (pa.int16(), [0, 1, -128, 2**15 - 1]),
    "int": (pa.int32(), [0, 1, -128, 16777217, 2**31 - 1]),
    "bigint": (pa.int64(), [0, 1, 16777217, 2**53 + 1, 2**63 - 1, -(2**63)]),
    "decimal(10,2)": (pa.decimal128(10, 2), ["0.00", "1.00", "0.10", "-128.00", "99999999.99"]),
    "decimal(38,0)": (pa.decimal128(38, 0), ["0", "1", str(2**53 + 1), str(-(2**63)), "9" * 38]),
    "decimal(38,2)": (pa.decimal128(38, 2), ["2.00", "0.10", f"{2**63 - 1}.00", f"-{'9' * 36}.99"]),
    "decimal(38,18)": (pa.decimal128(38, 18), ["2." + "0" * 17 + "1", "2", "0.1", "-0.5", "9" * 20]),
    "decimal(38,38)": (pa.decimal128(38, 38), ["0.1", "0." + "0" * 37 + "1", "-0." + "9" * 38, "-0.5"]),
    "float": (pa.float32(), [*FLOATS, TENTH]),
    "double": (pa.float64(), [*FLOATS, TENTH, 0.1, 16777217.0]),
    "string": (pa.string(), TEXTS),
    "varchar(20)": (pa.string(), TEXTS),
    "char(3)": (pa.string(), ["a  ", "ab "]),
    "char(5)": (pa.string(), ["a    ", "ab   "]),
    "binary": (pa.binary(), [b"", b"1", b"a", "\u00e9".encode()]),
    "boolean": (pa.bool_(), [True, False]),
    "date": (pa.date32(), [AT.date(), date(1582, 10, 4), date(1, 1, 1)]),
    "timestamp": (pa.timestamp("us", "UTC"), [AT, NEAR, NEAR.replace(microsecond=123457)]),
    "timestamp_ntz": (pa.timestamp("us"), [at.replace(tzinfo=None) for at in (AT, NEAR)]),
    "array<double>": (pa.list_(pa.float64()), [[0.0], [-0.0], [math.nan], [None], []]),
    "struct<a:string>": (pa.struct([("a", pa.string())]), [{"a": "x"}, {"a": "X"}, {"a": None}]),
    "map<string,int>": (pa.map_(pa.string(), pa.int32()), []),
}


def convert_values(kind: str) -> list[Any]:
    """Return the values of a type, and NULL."""
    values = VALUES[kind][1]
    return [*(map(Decimal, values) if kind.startswith("decimal") else values), None]


def list_equal(left: str, right: str) -> list[tuple[int, int]]:
    """Return the positions of the values that are equal in Python: numbers as fractions, without rounding."""
    pairs = [[normalize_value(value) for value in convert_values(kind)] for kind in (left, right)]
    return [(n, m) for n, value in enumerate(pairs[0]) for m, other in enumerate(pairs[1]) if value == other]


def normalize_value(value: Any) -> Any:
    """Return a value in a form that equal values of other types share."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, list):
        return [normalize_value(item) for item in value]
    return Fraction(value) if isinstance(value, int | float | Decimal) else value


def write_key(value: Any) -> str:
    """Return a value of a key as people write it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    return f"{value:f}" if isinstance(value, Decimal) else getattr(value, "isoformat", lambda: str(value))()


def is_same_key(*keys: tuple[Any, str]) -> bool:
    """Return whether values of two types are equal: a day is its beginning, and booleans are no numbers."""
    (value, kind), (other, other_kind) = sorted(keys, key=lambda key: key[1])
    if value is None or other is None:
        return value is other
    if kind == "date" and other_kind.startswith("timestamp"):
        return bool(datetime(value.year, value.month, value.day, tzinfo=other.tzinfo) == other)
    is_logical = {kind == "boolean", other_kind == "boolean"}
    return len(is_logical) == 1 and bool(normalize_value(value) == normalize_value(other))
