"""Values as people write them: in one line of text without control characters, or as JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from ctypes import c_float
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import total_ordering
from typing import Any

# The values of a row by the names of its columns.
Row = Mapping[str, Any]

_VALUE_TEXT_MAX_CHARS = 200
_CUT_DIGITS = re.compile(r"[.,]\d{6}0*[1-9]")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# A year with a sign, or with more than four digits, as ISO 8601 has it.
_YEAR = re.compile(r"([+-]?\d{4,})(?=-\d\d-\d\d)")
# The calendar repeats after 400 years, and the first year of each turn that Python has.
_TURN_DAYS, _TURN_YEARS, _FIRST_DATE_DAY = 146_097, 400, -719_162
_DATE_DAYS = range(_FIRST_DATE_DAY, 2_932_897)
# So many digits distinguish all values of a FLOAT.
_FLOAT_DIGITS_MAX = 9


@total_ordering
@dataclass(frozen=True, slots=True)
class DistantTime:
    """A date or time outside of the years 1 to 9999, which Python does not have.

    It is before or after all dates and times that Python has.
    """

    number: int
    text: str

    def __lt__(self, other: Any) -> bool:
        return self.number < (other.number if isinstance(other, DistantTime) else 0)

    def __str__(self) -> str:
        return self.text


class Float32(float):
    """A FLOAT, whose text has as many digits as distinguish it from other FLOATs.

    >>> Float32(0.10000000149011612), Float32(16777216)
    (0.1, 16777216.0)
    """

    __slots__ = ()

    def __repr__(self) -> str:
        texts = (f"{float(self):.{digits}g}" for digits in range(1, _FLOAT_DIGITS_MAX))
        shortest = next((text for text in texts if c_float(float(text)).value == self), float(self))
        return repr(float(shortest))


def read_day(days: int) -> date | DistantTime:
    """Return a date by its days since 1970.

    >>> read_day(0), str(read_day(-735_525)), str(read_day(3_672_485))
    (datetime.date(1970, 1, 1), '-0044-03-15', '+12024-12-03')
    """
    turns, day = divmod(days - _FIRST_DATE_DAY, _TURN_DAYS)
    if days in _DATE_DAYS:
        return date.fromordinal(days - _FIRST_DATE_DAY + 1)
    near = date.fromordinal(day + 1)
    year = near.year + turns * _TURN_YEARS
    return DistantTime(days, f"{f'{year:+05d}' if year else '0000'}-{near:%m-%d}")


def shift_year(text: str) -> tuple[str, int]:
    """Return a date or time as one in the years 1 to 400, and the days between the two.

    >>> shift_year("-0044-03-15"), shift_year("+12024-12-03T10:00"), shift_year("20240131")
    (('0356-03-15', -146097), ('0024-12-03T10:00', 4382910), ('20240131', 0))
    """
    parts = _YEAR.match(text)
    if parts is None:
        return text, 0
    turns, year = divmod(int(parts[1]) - 1, _TURN_YEARS)
    return f"{year + 1:04d}{text[parts.end() :]}", turns * _TURN_DAYS


def read_micros(micros: int, *, in_utc: bool) -> datetime | DistantTime:
    """Return a timestamp by its microseconds since 1970, with or without a time zone.

    >>> str(read_micros(-62_198_755_200_000_000, in_utc=True))
    '-0001-01-01T00:00:00Z'
    """
    seconds, fraction = divmod(micros, 1_000_000)
    days, second = divmod(seconds, 86_400)
    if days in _DATE_DAYS:
        moment = EPOCH + timedelta(microseconds=micros)
        return moment if in_utc else moment.replace(tzinfo=None)
    clock = (EPOCH + timedelta(seconds=second, microseconds=fraction)).time()
    return DistantTime(micros, f"{read_day(days)}T{clock.isoformat()}{'Z' if in_utc else ''}")


def format_value(value: Any) -> str:
    r"""Return a value as text: strings in double quotes, everything else as SQL or JSON writes it.

    >>> format_value(None), format_value("a\tb"), format_value(True), format_value([1, {"a": None}])
    ('NULL', '"a\\tb"', 'true', '[1, {"a": NULL}]')
    >>> from datetime import UTC, datetime
    >>> format_value(Decimal("1.50")), format_value(datetime(2024, 1, 31, 10, tzinfo=UTC))
    ('1.50', '2024-01-31T10:00:00Z')
    """
    text = format_whole(value)
    if len(text) <= _VALUE_TEXT_MAX_CHARS:
        return text
    return f"{text[:_VALUE_TEXT_MAX_CHARS]}… ({len(text)} characters)"


def format_whole(value: Any) -> str:
    """Return a value as ``format_value``, however long it is."""
    if isinstance(value, str):
        return _quote_text(value)
    if isinstance(value, Mapping) or is_map(value):
        entries = value.items() if isinstance(value, Mapping) else value
        return f"{{{', '.join(f'{format_whole(name)}: {format_whole(item)}' for name, item in entries)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(format_whole, value))}]"
    return _format_scalar(value)


def format_change(before: Any, after: Any, max_chars: int = _VALUE_TEXT_MAX_CHARS) -> tuple[str, str]:
    """Return a value before and after as text; long ones are shown from shortly before they differ.

    >>> format_change(["same"] * 9 + [1], ["same"] * 9 + [2], 30)
    ('…same", "same", 1]', '…same", "same", 2]')
    """
    texts = format_whole(before), format_whole(after)
    common = next((at for at, pair in enumerate(zip(*texts, strict=False)) if pair[0] != pair[1]), 0)
    start = max(0, common - max_chars // 2) if max(map(len, texts)) > max_chars else 0
    return _cut_text(texts[0], start, max_chars), _cut_text(texts[1], start, max_chars)


def format_row(row: Row) -> str:
    """Return the columns of a row in one line.

    >>> format_row({"id": 1, "name": "Ann"})
    'id = 1, name = "Ann"'
    """
    return ", ".join(f"{escape_text(name)} = {format_value(value)}" for name, value in row.items())


def has_cut_digits(text: str) -> bool:
    """Return whether a time has digits below a microsecond, which Python would cut.

    >>> has_cut_digits("2024-01-31T10:00:00.1234560Z"), has_cut_digits("2024-01-31T10:00:00.1234567Z")
    (False, True)
    """
    return bool(_CUT_DIGITS.search(text))


def escape_text(text: str) -> str:
    r"""Return text in which every character that a terminal would not show is written as an escape.

    >>> escape_text("run 1\x1b[2J")
    'run 1\\u001b[2J'
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape_char(char) for char in text)


def to_json_value(value: Any) -> Any:
    r"""Return a value for JSON: numbers, booleans, NULL and strings stay, all others become text.

    >>> to_json_value({"at": date(2024, 1, 31), "price": Decimal("1.50"), "raw": b"\x00"})
    {'at': '2024-01-31', 'price': '1.50', 'raw': '0x00'}
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return float(repr(value))
    if isinstance(value, Mapping):
        return {_name_entry(name): to_json_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        if is_map(value):
            return {_name_entry(name): to_json_value(item) for name, item in value}
        return [to_json_value(item) for item in value]
    return _format_scalar(value)


def is_map(value: Any) -> bool:
    """Return whether a value is that of a map column, which Arrow returns as a list of pairs."""
    return isinstance(value, list) and bool(value) and all(isinstance(item, tuple) for item in value)


def format_time(at: datetime) -> str:
    """Return a timestamp in ISO 8601; UTC is written as Z."""
    if at.tzinfo is None:
        return at.isoformat()
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _cut_text(text: str, start: int, max_chars: int) -> str:
    end = start + max_chars
    return f"{'…' if start else ''}{text[start:end]}{'…' if len(text) > end else ''}"


def _format_scalar(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else _name_float(value)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime):
        return format_time(value)
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    return escape_text(str(value))


def _name_float(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _name_entry(name: Any) -> str:
    return name if isinstance(name, str) else format_whole(name)


def _quote_text(text: str) -> str:
    return escape_text(json.dumps(text, ensure_ascii=False))


def _escape_char(char: str) -> str:
    return json.dumps(char)[1:-1] if char > "\x7f" else f"\\u{ord(char):04x}"
