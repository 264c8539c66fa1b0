"""Read typed values inside a Python worker, exactly and in any time zone; standard library only.

Times arrive as numbers, and a VARIANT in its binary form: https://parquet.apache.org/docs/file-format/types/variantencoding/
"""

from __future__ import annotations

import datetime as dt
import json
import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from decimal import Context, Decimal
from typing import Any, NamedTuple

Read = Callable[[Any], Any]

_FLOAT_DIGIT_COUNTS = (6, 7, 8, 9)
_EPOCH_WITHOUT_ZONE = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - a time without a zone is taken as UTC
_DAY_MICROS = 86_400_000_000
# The days of the years 1 to 9999, which Python has, and the number of its first day.
_PYTHON_DAYS, _EPOCH_ORDINAL = range(-719_162, 2_932_897), 719_163


def keep_value(value: Any) -> Any:
    """Return a value that is the same in Python."""
    return value


def read_fields(fields: Mapping[str, Read], value: Any) -> dict[str, Any]:
    """Return a struct as a dict; a NULL field is absent."""
    named = zip(value.__fields__, value, strict=True)
    return {name: fields[name](item) for name, item in named if item is not None}


def read_items(read: Read, value: Sequence[Any]) -> list[Any]:
    """Return a list; NULLs stay."""
    return [None if item is None else read(item) for item in value]


def read_entries(read: Read, value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a map as a dict; NULLs stay, as entries are values and not columns."""
    return {name: None if item is None else read(item) for name, item in value.items()}


def read_day(days: int) -> dt.date | str:
    """Return a date by its days since 1970; one that Python lacks as a text that only equals itself.

    >>> read_day(0), read_day(-800_000)
    (datetime.date(1970, 1, 1), '~t-800000 days')
    """
    return dt.date.fromordinal(days + _EPOCH_ORDINAL) if days in _PYTHON_DAYS else f"~t{days} days"


def read_time(micros: int) -> str:
    """Return a time as in JSON by its microseconds since 1970, or a text as for ``read_day``.

    >>> read_time(1)
    '~t1970-01-01T00:00:00.000001Z'
    """
    if micros // _DAY_MICROS not in _PYTHON_DAYS:
        return f"~t{micros} microseconds"
    return (
        f"~t{(_EPOCH_WITHOUT_ZONE + dt.timedelta(microseconds=micros)).isoformat(timespec='microseconds')}Z"
    )


def read_float(value: float) -> Decimal:
    """Return the shortest decimal of a FLOAT: as a DOUBLE 0.1 would be 0.10000000149011612.

    >>> read_float(0.10000000149011612)
    Decimal('0.1')
    """
    try:
        same = struct.pack("f", value)
        texts = (f"{value:.{digits}g}" for digits in _FLOAT_DIGIT_COUNTS)
        return Decimal(next(text for text in texts if struct.pack("f", float(text)) == same))
    except (StopIteration, OverflowError):
        return Decimal("NaN")


def read_json(text: str) -> Any:
    """Return a JSON value whose numbers have all of their digits."""
    return json.loads(text, parse_float=read_number)


def read_number(text: str) -> float | Decimal:
    """Return a number as a float if the float has the same value, else as a Decimal.

    >>> read_number("2.50"), read_number("2.000000000000000001")
    (2.5, Decimal('2.000000000000000001'))
    """
    number = float(text)
    return number if Decimal(float.__repr__(number)) == Decimal(text) else Decimal(text)


def find_inexact_number(text: str | None) -> str | None:
    """Return the first number of a JSON text that VARIANT does not hold exactly; None if it holds all.

    It holds 38 digits without an exponent, and the value of a DOUBLE.
    """
    inexact: list[str] = []

    def read(number: str) -> None:
        integral, _, fraction = number.lstrip("-").partition(".")
        digits = (integral + fraction).lstrip("0")
        is_decimal = (digits or "0").isdigit() and max(len(digits), len(fraction)) <= _DECIMAL_MAX_DIGITS
        if not is_decimal and isinstance(read_number(number), Decimal):
            inexact.append(number)

    if text is not None:
        json.loads(text, parse_float=read, parse_int=read)
    return inexact[0] if inexact else None


_DECIMAL_MAX_DIGITS = 38


def read_variant(variant: Any) -> Any:
    """Return the Python value of a VARIANT; a date or time that Python lacks as for ``read_day``."""
    return _Variant(bytes(variant.value), bytes(variant.metadata)).read(0)


class _Variant(NamedTuple):
    """The two binary parts of a VARIANT."""

    value: bytes
    names: bytes

    def read(self, at: int) -> Any:
        """Return the value at a position."""
        kind, info = self.value[at] & 3, self.value[at] >> 2
        if kind == _SHORT_TEXT:
            return self.value[at + 1 : at + 1 + info].decode()
        if kind == _OBJECT:
            return self._read_object(at + 1, info)
        if kind == _VARIANT_ARRAY:
            return self._read_array(at + 1, info)
        return self._read_scalar(at + 1, info)

    def _read_scalar(self, at: int, kind: int) -> Any:
        if kind in _CONSTANTS:
            return _CONSTANTS[kind]
        if kind in _VARIANT_INTEGERS:
            size, convert = _VARIANT_INTEGERS[kind]
            return convert(self._read_number(at, size, signed=True))
        if kind in _DECIMALS:
            digits = self._read_number(at + 1, _DECIMALS[kind], signed=True)
            return Decimal(digits).scaleb(-self.value[at], _DECIMAL_38)
        if kind in _VARIANT_FLOATS:
            code, convert_float = _VARIANT_FLOATS[kind]
            return convert_float(struct.unpack_from(code, self.value, at)[0])
        if kind == _VARIANT_UUID:
            return f"~u{uuid.UUID(bytes=self.value[at : at + 16])}"
        if kind not in (_VARIANT_BINARY, _VARIANT_STRING):
            raise TypeError(f"a VARIANT value of type {kind} cannot be part of an entity")
        content = self.value[at + 4 : at + 4 + self._read_number(at, 4)]
        return content if kind == _VARIANT_BINARY else content.decode()

    def _read_object(self, at: int, info: int) -> dict[str, Any]:
        size_width, id_width, width = 4 if info >> 4 & 1 else 1, (info >> 2 & 3) + 1, (info & 3) + 1
        size, ids = self._read_number(at, size_width), at + size_width
        offsets = ids + size * id_width
        start = offsets + (size + 1) * width
        return {
            self._read_name(self._read_number(ids + number * id_width, id_width)): self.read(
                start + self._read_number(offsets + number * width, width)
            )
            for number in range(size)
        }

    def _read_array(self, at: int, info: int) -> list[Any]:
        size_width, width = 4 if info >> 2 & 1 else 1, (info & 3) + 1
        size, offsets = self._read_number(at, size_width), at + size_width
        start = offsets + (size + 1) * width
        return [self.read(start + self._read_number(offsets + n * width, width)) for n in range(size)]

    def _read_name(self, number: int) -> str:
        width = (self.names[0] >> 6) + 1
        start = 1 + (int.from_bytes(self.names[1 : 1 + width], "little") + 2) * width
        first, end = (
            int.from_bytes(self.names[at : at + width], "little")
            for at in (1 + (number + 1) * width, 1 + (number + 2) * width)
        )
        return self.names[start + first : start + end].decode()

    def _read_number(self, at: int, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(self.value[at : at + size], "little", signed=signed)


_SHORT_TEXT, _OBJECT, _VARIANT_ARRAY = 1, 2, 3
_VARIANT_BINARY, _VARIANT_STRING, _VARIANT_UUID = 15, 16, 20
_DECIMAL_38 = Context(prec=50)
_CONSTANTS: Mapping[int, bool | None] = {0: None, 1: True, 2: False}
# The size of each type of number, and what it becomes.
_VARIANT_INTEGERS: Mapping[int, tuple[int, Read]] = {
    3: (1, int),
    4: (2, int),
    5: (4, int),
    6: (8, int),
    11: (4, read_day),
    12: (8, read_time),
    13: (8, read_time),
}
_DECIMALS: Mapping[int, int] = {8: 4, 9: 8, 10: 16}
_VARIANT_FLOATS: Mapping[int, tuple[str, Read]] = {7: ("<d", float), 14: ("<f", read_float)}
