"""The KEY of an explanation: one value, or a JSON object with the values of several columns.

Source: docs/explain.md, Keys.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from ctypes import c_float
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, InvalidOperation
from functools import partial
from typing import Any

from airflow_merge_provider.core.errors import ConfigError, Problem, suggest_name
from airflow_merge_provider.core.value_text import (
    EPOCH,
    DistantTime,
    Float32,
    Row,
    format_value,
    has_cut_digits,
    read_day,
    read_micros,
    shift_year,
)

# The largest precision of a decimal in Spark.
_DIGITS_MAX = 38
_INTEGER_NAMES = frozenset({"byte", "short", "integer", "long"})
# The bits of the numbers that columns of dates and of times hold.
_DAY_BITS, _TIME_BITS = 32, 64
_DAY_MICROS = 86_400_000_000
_TIME_NAMES = frozenset({"timestamp", "timestamp_ntz"})
_LONG_DIGITS, _LONGS = 19, range(-(1 << 63), 1 << 63)
_BOOLEANS = {"true": True, "false": False}
_VALUE_FORMS = {
    "boolean": "true or false",
    "date": "a date such as 2026-11-24",
    "timestamp": "a timestamp such as 2026-11-24T10:00:00Z",
    "timestamp_ntz": "a timestamp such as 2026-11-24T10:00:00",
    "binary": "hexadecimal digits such as 0x00ff",
}


def parse_key(
    text: str, columns: Sequence[str], available: Sequence[str] | None = ()
) -> dict[str, str | None]:
    """Return the values of a key by column, as text; a NULL is None.

    A value alone is that of the only key column. A JSON object names each column.

    :param columns: the columns of the key; empty if the target has no key.
    :param available: the columns that an object may name if the target has no key; None for any name.

    >>> parse_key("7", ["id"]), parse_key('{"Id": 7, "day": null}', ["id", "day"])
    ({'id': '7'}, {'id': '7', 'day': None})

    :raises ConfigError: if the text has another form, or does not name the columns of the key.
    """
    if not text.lstrip().startswith("{"):
        if len(columns) == 1:
            return {columns[0]: text}
        raise refuse_key(columns, (available or ())[:1])
    try:
        raw = json.loads(text, parse_float=str, parse_int=str, parse_constant=str)
    except ValueError as error:
        message = f"{text!r} is not a valid JSON object: {error}"
        hint = f"write {build_example(columns)}"
        raise ConfigError.from_problems([Problem("key", "value", message, hint)]) from None
    names = columns or available
    values = {
        name if names is None else _find_column(name, names): _write_text(value)
        for name, value in raw.items()
    }
    if not values or (columns and len(values) < len(columns)):
        raise refuse_key(columns, (available or ())[:1])
    return values


def convert_key(texts: Mapping[str, str | None], types: Mapping[str, str], *, is_fitting: bool = True) -> Row:
    """Return the values of a key as values of the columns' types.

    :param types: the type of each column, as Delta names it.
    :param is_fitting: whether a number that its column cannot hold is an error; otherwise it stays a decimal.

    >>> convert_key({"id": "7", "day": "2024-01-31"}, {"id": "long", "day": "date"})
    {'id': 7, 'day': datetime.date(2024, 1, 31)}

    :raises ConfigError: with every value that is not one of its column's type.
    """
    values: dict[str, Any] = {}
    problems = []
    for name, text in texts.items():
        convert = str if text is None else _find_converter(types[name])
        if convert is None:
            hint = "valid types: numbers, strings, booleans, dates, timestamps and binary"
            message = f"column {name!r} of type {types[name]} cannot be searched"
            problems.append(Problem("key", "type", message, hint))
            continue
        try:
            values[name] = None if text is None else convert(text)
            is_valid = text is None or not is_fitting or fit_value(values[name], types[name]) is not None
        except (ValueError, KeyError, InvalidOperation):
            is_valid = False
        if not is_valid:
            hint = f"write {_VALUE_FORMS.get(types[name], 'a number')}"
            message = f"{text!r} is not a valid value of column {name!r} of type {types[name]}"
            problems.append(Problem("key", "value", message, hint))
    if problems:
        raise ConfigError.from_problems(problems)
    return values


def fit_value(value: Any, kind: str) -> Any:
    """Return the value of a type that equals a value of any type, digit by digit; None if it has none.

    Numbers are equal by their value, and a date equals the beginning of its day, as loads write it.

    :param value: a value that is not NULL.
    :param kind: the type, as Delta names it.

    >>> fit_value(Decimal("1.00"), "long"), fit_value(0.5, "decimal(3,1)"), fit_value(1.5, "integer")
    (1, Decimal('0.5'), None)
    >>> fit_value(Float32(0.10000000149011612), "double"), fit_value(0.1, "float")
    (0.10000000149011612, None)
    """
    if isinstance(value, bool):
        return value if kind == "boolean" else None
    if isinstance(value, int | float | Decimal):
        return _fit_number(value, kind)
    if isinstance(value, date | DistantTime):
        return _fit_time(value, kind)
    return value if kind == ("binary" if isinstance(value, bytes) else "string") else None


def _fit_number(value: float | Decimal, kind: str) -> Any:
    if kind in {"float", "double"}:
        # A decimal becomes the nearest number, and an integer beyond a double infinity.
        near = float(Decimal(value))
        near = Float32(c_float(near).value) if kind == "float" else near
        return near if near == value or (math.isnan(near) and math.isnan(value)) else None
    number = Decimal(value)
    if not number:
        # Its text must not be -0.
        number = abs(number)
    precision, scale = read_digits(kind) if kind.startswith("decimal") else (_LONG_DIGITS, 0)
    if not number.is_finite() or (number and number.adjusted() >= precision - scale):
        return None
    # The context must hold all digits, so that quantize does not round them.
    if number != number.quantize(Decimal(1).scaleb(-scale), context=Context(prec=2 * _DIGITS_MAX)):
        return None
    if kind.startswith("decimal"):
        return number
    return int(number) if kind in _INTEGER_NAMES and int(number) in _LONGS else None


def read_digits(kind: str) -> tuple[int, int]:
    """Return precision and scale of a decimal type.

    >>> read_digits("decimal(10,2)")
    (10, 2)
    """
    precision, scale = kind[len("decimal(") : -1].split(",")
    return int(precision), int(scale)


def _fit_time(value: date | DistantTime, kind: str) -> Any:
    """Return a date or time as one of a type; a time with a zone equals no time without one."""
    day, _, clock = format_value(value).partition("T")
    own_kind = "timestamp" if clock.endswith("Z") else "timestamp_ntz" if clock else "date"
    if kind == own_kind:
        return value
    if kind == "date":
        return _read_date(day) if clock.removesuffix("Z") == "00:00:00" else None
    # A date may be beyond the times of a column.
    with suppress(ValueError):
        return _read_time(day, in_utc=kind == "timestamp") if kind in _TIME_NAMES and not clock else None
    return None


def _find_converter(kind: str) -> Callable[[str], Any] | None:
    if kind.startswith("decimal") or kind in _INTEGER_NAMES:
        return partial(_read_number, kind=kind)
    converters: dict[str, Callable[[str], Any]] = {
        "string": str,
        "float": lambda text: _read_float(text, lambda value: Float32(c_float(value).value)),
        "double": _read_float,
        "boolean": lambda text: _BOOLEANS[text.strip().lower()],
        "date": _read_date,
        "timestamp": partial(_read_time, in_utc=True),
        "timestamp_ntz": partial(_read_time, in_utc=False),
        "binary": lambda text: bytes.fromhex(text.strip().removeprefix("0x")),
    }
    return converters.get(kind)


def _read_number(text: str, kind: str) -> Any:
    """Parse an exact number: a value of the type, or a decimal that the type does not have."""
    number = Decimal(text.strip())
    if not number.is_finite():
        raise ValueError(text)
    fitting = _fit_number(number, kind)
    return number if fitting is None else fitting


def _read_float(text: str, convert: Callable[[float], float] = float) -> float:
    value = convert(float(text))
    if math.isinf(value) and "inf" not in text.lower():
        raise ValueError(text)
    return value


def _read_date(text: str) -> date | DistantTime:
    near, days = shift_year(text.strip())
    return read_day(_check_range((date.fromisoformat(near) - EPOCH.date()).days + days, _DAY_BITS))


def _read_time(text: str, *, in_utc: bool) -> datetime | DistantTime:
    """Parse a time of microseconds; without an offset it is UTC, and a time without a zone has none."""
    near, days = shift_year(text.strip())
    at = datetime.fromisoformat(near)
    if has_cut_digits(text) or (at.tzinfo is not None and not in_utc):
        raise ValueError(text)
    duration = (at if at.tzinfo else at.replace(tzinfo=UTC)) - EPOCH
    micros = duration // timedelta(microseconds=1) + days * _DAY_MICROS
    return read_micros(_check_range(micros, _TIME_BITS), in_utc=in_utc)


def _check_range(number: int, bits: int) -> int:
    if number not in range(-(1 << bits - 1), 1 << bits - 1):
        raise ValueError(number)
    return number


def _find_column(name: str, columns: Sequence[str]) -> str:
    """Return a column by its name; names that differ only in case are the same column."""
    if name in columns:
        return name
    matches = [column for column in columns if column.casefold() == name.casefold()]
    if len(matches) == 1:
        return matches[0]
    hint = suggest_name(name, columns, "columns")
    raise ConfigError.from_problems([Problem("key", "unknown", f"unknown key column {name!r}", hint)])


def _write_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def refuse_key(columns: Sequence[str], available: Sequence[str] | None = ()) -> ConfigError:
    """Return the error of a key without the key columns; its hint shows an object with them."""
    hint = build_example(columns) if columns else f"such as {build_example(available)}"
    return ConfigError.from_problems(
        [Problem("key", "value", "must be a JSON object with the key columns", hint)]
    )


def build_example(columns: Sequence[str] | None) -> str:
    """Return an object with columns, as users write it.

    >>> build_example(["id", "day"])
    '{"id": …, "day": …}'
    """
    return (
        "{" + ", ".join(f"{json.dumps(name, ensure_ascii=False)}: …" for name in columns or ("column",)) + "}"
    )
