"""Convert a row of typed columns to an entity inside a Python worker; standard library only."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

_FLOAT_DIGITS = (6, 7, 8, 9)


def to_plain(value: Any) -> Any:
    """Convert rows to dicts; a NULL field of a struct is absent.

    A map (a dict) keeps its nulls, as its entries are values and not columns.
    """
    if isinstance(value, tuple) and hasattr(value, "__fields__"):
        return {
            name: to_plain(item)
            for name, item in zip(value.__fields__, value, strict=True)
            if item is not None
        }
    if isinstance(value, list):
        return [to_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): to_plain(item) for name, item in value.items()}
    return value


def shortest_float(value: float | None) -> Decimal | None:
    """Return the shortest decimal of a FLOAT: as a DOUBLE 0.1 would be 0.10000000149011612.

    >>> shortest_float(0.10000000149011612)
    Decimal('0.1')
    """
    if value is None:
        return None
    try:
        same = struct.pack("f", value)
        texts = (f"{value:.{digits}g}" for digits in _FLOAT_DIGITS)
        return Decimal(next(text for text in texts if struct.pack("f", float(text)) == same))
    except (StopIteration, OverflowError):
        return Decimal("NaN")
