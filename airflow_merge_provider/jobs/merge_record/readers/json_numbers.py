"""Numbers of JSON files without a schema that a DOUBLE does not hold.

Source: docs/semantics/merge_record.md, Numbers of JSON files.
"""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import chain
from typing import Any, BinaryIO

from pyspark.sql import Column, functions as F

# A number with more digits than each DOUBLE holds, or with an exponent.
_LONG = r"[0-9](\.?[0-9]){15}|[0-9][eE]"
# Numbers between the marks that separate values; texts that look like this cost time only.
_NUMBERS = r"[\[:,]\s*(-?[0-9][0-9.eE+-]*)\s*(?=[,\]}])"


class _Number(str):
    """A number as it is written."""

    __slots__ = ()


def find_long_number(text: Column) -> Column:
    """Return a number of a JSON text that no DOUBLE equals; NULL if there is none."""
    numbers = F.regexp_extract_all(text, F.lit(_NUMBERS), F.lit(1))
    lossy = F.filter(
        numbers, lambda number: trim_zeros(number) != trim_zeros(number.try_cast("double").cast("string"))
    )
    return F.when(text.rlike(_LONG), F.get(lossy, F.lit(0)))


def build_lossy_finder(*, is_array: bool) -> Callable[[BinaryIO], dict[str, str]]:
    """Return a function that returns the first lossy number of each field of a JSON file, by its path."""

    def find_lossy_numbers(file: BinaryIO) -> dict[str, str]:
        lossy: dict[str, str] = {}
        with io.TextIOWrapper(file, encoding="utf-8-sig") as text:
            documents = filter(str.strip, [text.read()] if is_array else text)
            for path, number in chain.from_iterable(map(_list_numbers, documents)):
                if not _is_double(number):
                    lossy.setdefault(path, str(number))
        return lossy

    return find_lossy_numbers


def _list_numbers(document: str) -> Iterator[tuple[str, _Number]]:
    return _walk_value(json.loads(document, parse_int=_Number, parse_float=_Number), "")


def _walk_value(value: Any, path: str) -> Iterator[tuple[str, _Number]]:
    """Yield the numbers of a record with their paths: names of fields, and ``[]`` for the items of a list."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _walk_value(item, f"{path}.{name}")
    elif isinstance(value, list):
        # The records of a file are the items of its array.
        for item in value:
            yield from _walk_value(item, f"{path}[]" if path else path)
    elif isinstance(value, _Number):
        yield path, value


def _is_double(number: str) -> bool:
    double, exact = float(number), Decimal(number)
    if math.isinf(double):
        return False
    # Programs write the smallest numbers with different digits: 4.9E-324 in Java is 5e-324 in Python.
    digits = len(exact.as_tuple().digits) if abs(double) < sys.float_info.min else 0
    return exact in (Decimal(repr(double)), Decimal(f"{double:.{max(digits - 1, 0)}e}"))


def trim_zeros(number: Column) -> Column:
    """Return the digits of a number without exponent, and without zeros at both ends."""
    mantissa = F.regexp_replace(number, r"[eE].*$|[-.]", "")
    return F.regexp_replace(mantissa, "^0+|0+$", "")
