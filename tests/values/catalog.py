"""The types of columns of Spark, each with awkward values that Hypothesis adds to.

The values of a kind differ from each other by the rules of docs/values.md; neighbours are as near as the
type allows, so a comparison that rounds, cuts or formats takes two of them for one. Arrow's types and
Python's values are what the tests compare with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, Phase, given, seed, settings, strategies as st

_TEXTS = (
    "", " ", "a", "A", "a ", " a", "é", "e\u0301", "\u200b", "a\nb", "a\r\nb", "\t", '"', '""', "'", ",", ";",
    "\\", "\\n", "null", "NULL", "NaN", "true", "TRUE", "1", "01", "1.0", "1.10", "1e3", "2024-05-01", "[",
    "{}", "<a>&amp;</a>", "\U0001f600", "\u2028", "\ufeff", "%20", "#", "__HIVE_DEFAULT_PARTITION__",
)  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A type: its name as a column, Spark's spelling, Arrow's type, its values but NULL, and more of them.

    ``arrow`` is None for a type that only Spark has; its values are then expressions in SQL.
    """

    name: str
    spark: str
    arrow: pa.DataType | None
    values: tuple[Any, ...]
    more: st.SearchStrategy[Any] | None = None

    def draw_values(self, number: int, count: int) -> list[Any]:
        """Return ``count`` values that differ: the awkward ones, then what Hypothesis makes of a seed."""
        values = dict.fromkeys(map(_Same, self.values))
        if self.more is not None and count > len(values):
            values |= dict.fromkeys(map(_Same, _draw(self.more, number, count)))
        return [one.value for one in values][:count]


@dataclass(frozen=True)
class _Same:
    """A value that equals another one by the rules of docs/values.md: NaN itself, and 0.0 its negative."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and repr(_fold(self.value)) == repr(_fold(other.value))

    def __hash__(self) -> int:
        return hash(repr(_fold(self.value)))


def _fold(value: Any) -> Any:
    if isinstance(value, float):
        return value + 0.0
    if isinstance(value, dict):
        return {name: _fold(one) for name, one in value.items()}
    return [_fold(one) for one in value] if isinstance(value, list | tuple) else value


def _draw(strategy: st.SearchStrategy[Any], number: int, count: int) -> list[Any]:
    values: list[Any] = []

    @seed(number)
    @settings(
        max_examples=2 * count,
        database=None,
        phases=[Phase.generate],
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(value: Any) -> None:
        values.append(value)

    collect()
    return values


def _integers(name: str, bits: int, arrow: pa.DataType) -> Kind:
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    near = (most, most - 1, least, least + 1, 0, -1, 1) + ((2**53, 2**53 + 1) if bits == 64 else ())
    return Kind(name, name, arrow, near, st.integers(least, most))


def _decimals(precision: int, scale: int) -> Kind:
    def place(number: int) -> Decimal:
        return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))

    most, one = 10**precision - 1, 10**scale
    near = dict.fromkeys((0, 1, -1, most, most - 1, -most, one, one + 1))
    name, spark = f"decimal_{precision}_{scale}", f"decimal({precision},{scale})"
    more = st.integers(-most, most).map(place)
    return Kind(name, spark, pa.decimal128(precision, scale), tuple(map(place, near)), more)


_MOMENTS = tuple(map(datetime.fromisoformat, (
    "0001-01-01T00:00:00", "9999-12-31T23:59:59.999999", "1582-10-04T23:59:59.999999", "1582-10-15T00:00:00",
    "1677-09-21T00:12:43.000001", "1969-12-31T23:59:59.999999", "1970-01-01T00:00:00",
    "1970-01-01T00:00:00.000001", "2024-03-10T02:30:00", "2024-05-01T00:00:00.123456",
    "2024-05-01T00:00:00.123999", "2262-04-11T23:47:16.854776",
)))  # fmt: skip
_INSTANTS = tuple(moment.replace(tzinfo=UTC) for moment in _MOMENTS)
_DATES = (
    date(1, 1, 1), date(9999, 12, 31), date(1500, 2, 28), date(1582, 10, 4), date(1582, 10, 15),
    date(1969, 12, 31), date(1970, 1, 1), date(2024, 2, 29),
)  # fmt: skip
# Arrow's texts are UTF-8, which has no halves of surrogate pairs.
_CHARACTERS = st.characters(exclude_categories=["Cs"])
_TEXT = st.text(_CHARACTERS, max_size=12)
_DOUBLES = (
    0.1,
    0.1 + 2**-56,
    5e-324,
    1.7976931348623157e308,
    float("inf"),
    float("-inf"),
    float("nan"),
    0.0,
    -1.5,
    1e22,
)
_FLOATS = (0.10000000149011612, 1.401298464324817e-45, 3.4028234663852886e38, float("inf"), float("-inf"),
           float("nan"), 0.0, -1.5, 16777216.0)  # fmt: skip

_BYTES = (b"", b"\x00", b"\xff\xfe", b"a", b"a\x00")
_UTC = pa.timestamp("us", "UTC")

SIMPLE = (
    Kind("boolean", "boolean", pa.bool_(), (True, False)),
    _integers("tinyint", 8, pa.int8()),
    _integers("smallint", 16, pa.int16()),
    _integers("int", 32, pa.int32()),
    _integers("bigint", 64, pa.int64()),
    Kind("float", "float", pa.float32(), _FLOATS, st.floats(width=32)),
    Kind("double", "double", pa.float64(), _DOUBLES, st.floats()),
    _decimals(5, 2),
    _decimals(20, 0),
    _decimals(38, 0),
    _decimals(38, 18),
    Kind("string", "string", pa.string(), _TEXTS, _TEXT),
    Kind("binary", "binary", pa.binary(), _BYTES, st.binary(max_size=12)),
    Kind("date", "date", pa.date32(), _DATES, st.dates()),
    Kind("timestamp", "timestamp", _UTC, _INSTANTS, st.datetimes(timezones=st.just(UTC))),
    Kind("timestamp_ntz", "timestamp_ntz", pa.timestamp("us"), _MOMENTS, st.datetimes()),
)  # fmt: skip


def build_list(kind: Kind) -> Kind:
    """Return the kind of lists of a kind, which may be empty and have NULL items."""
    assert kind.arrow is not None
    lists = (
        [],
        [None],
        *([value] for value in kind.values[:4]),
        [kind.values[0], None],
        list(kind.values[:3]),
    )
    more = st.lists(st.none() | _any(kind), max_size=3)
    return Kind(f"array_{kind.name}", f"array<{kind.spark}>", pa.list_(kind.arrow), lists, more)


def build_struct(kind: Kind) -> Kind:
    """Return the kind of records with a field of a kind beside an integer."""
    assert kind.arrow is not None
    arrow = pa.struct([("v", kind.arrow), ("n", pa.int32())])
    records = ({"v": None, "n": None}, *({"v": value, "n": 1} for value in kind.values[:6]))
    more = st.fixed_dictionaries({"v": st.none() | _any(kind), "n": st.none() | st.integers(-9, 9)})
    return Kind(f"struct_{kind.name}", f"struct<v: {kind.spark}, n: int>", arrow, records, more)


def build_map(kind: Kind, keys: Kind) -> Kind:
    """Return the kind of maps to a kind, whose values are lists of entries as in Arrow."""
    assert kind.arrow is not None
    assert keys.arrow is not None
    maps = ([], [(keys.values[0], None)], *([(keys.values[0], value)] for value in kind.values[:4]))
    more = st.lists(
        st.tuples(_any(keys), st.none() | _any(kind)),
        max_size=3,
        unique_by=lambda entry: repr(_fold(entry[0])),
    )
    arrow = pa.map_(keys.arrow, kind.arrow)
    return Kind(f"map_{keys.name}_{kind.name}", f"map<{keys.spark}, {kind.spark}>", arrow, maps, more)


def _any(kind: Kind) -> st.SearchStrategy[Any]:
    fixed = st.sampled_from(kind.values)
    return fixed if kind.more is None else fixed | kind.more


def _find(name: str) -> Kind:
    return next(kind for kind in SIMPLE if kind.name == name)


_KEYS = ("int", "date", "timestamp", "decimal_38_18", "binary")
NESTED = (
    *(build_list(kind) for kind in SIMPLE),
    *(build_struct(kind) for kind in SIMPLE),
    *(build_map(kind, _find("string")) for kind in SIMPLE),
    *(build_map(_find("string"), _find(name)) for name in _KEYS),
)
TWICE = (
    *(build_list(build_struct(kind)) for kind in SIMPLE),
    *(build_struct(build_list(kind)) for kind in SIMPLE),
    *(build_map(build_list(_find(name)), _find("string")) for name in ("double", "timestamp")),
    build_list(build_map(_find("timestamp"), _find("int"))),
)
# Types that Arrow lacks, or writes as another one: their values are expressions of Spark.
SPARK_ONLY = (
    Kind("char_5", "char(5)", None, ("'a'", "'a    '", "''")),
    Kind("varchar_8", "varchar(8)", None, ("'a'", "'a '", "''")),
    Kind("collated", "string collate UNICODE_CI", None, ("'a'", "'A'", "'b'")),
    Kind("variant", "variant", None, ("parse_json('1')", "parse_json('[1, null]')", "parse_json('1.5')")),
    Kind("time", "time(6)", None, ("TIME'00:00:00'", "TIME'23:59:59.999999'")),
    Kind("interval_ym", "interval year to month", None, ("INTERVAL '1-2' YEAR TO MONTH",)),
    Kind("interval_ds", "interval day to second", None, ("INTERVAL '1 2:03:04.000005' DAY TO SECOND",)),
    Kind("void", "void", None, ()),
)  # fmt: skip
ALL = (*SIMPLE, *NESTED, *TWICE)
# The types whose cells ``make test`` checks; ``make test-long`` checks all.
_SHORT_NESTED = (
    "array_double", "array_string", "struct_timestamp", "struct_decimal_38_18", "map_string_timestamp_ntz",
    "map_binary_string", "array_struct_double", "struct_array_date", "array_map_int_timestamp",
)  # fmt: skip
SHORT = tuple(kind for kind in ALL if kind in SIMPLE or kind.name in _SHORT_NESTED)


def build_table(kinds: Iterator[Kind] | tuple[Kind, ...], number: int, rows: int) -> pa.Table:
    """Return a table of ``rows`` rows with a column of each kind: its values in turn, then NULLs."""
    columns = {}
    for kind in kinds:
        values = kind.draw_values(number, rows - 1)
        items = [values[row % len(values)] for row in range(rows - 1)]
        columns[kind.name] = pa.array([*items, None], kind.arrow)
    return pa.table(columns)
