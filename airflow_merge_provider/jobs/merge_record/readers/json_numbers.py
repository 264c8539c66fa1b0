"""Numbers of JSON files without a schema that a DOUBLE does not hold.

Source: docs/semantics/merge_record.md, Numbers of JSON files.
"""

from __future__ import annotations

import io
import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import chain
from typing import Any, BinaryIO

from pyspark.sql import Column, functions as F
from pyspark.sql.types import StringType, StructType

from airflow_merge_provider.jobs.spark.text_values import trim_zeros

# A number with more digits than each DOUBLE holds, or with an exponent.
_LONG = r"[0-9](\.?[0-9]){15}|[0-9][eE]"
# Numbers between the marks that separate values; texts that look like this cost time only.
_NUMBERS = r"[\[:,]\s*(-?[0-9][0-9.eE+-]*)\s*(?=[,\]}])"


# Numbers with a fraction or an exponent that may have more digits than a DOUBLE holds, and words such as NaN;
# for RE2 and Python.
LONG_FRACTION = r"[\[:,]\s*[-+]?(?:[0-9]+\.[0-9]{8,}|[0-9]{8,}\.[0-9]|[0-9.]+[eE]|NaN|I)"
_FRACTION = re.compile(r"[\[:,]\s*([-+]?(?:[0-9]+(?:\.[0-9]+(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)|NaN|I))")


# A number with a fraction or an exponent, or a zero with a sign.
_FRACTIONAL = r"-?[0-9]+[.eE]|-0"
_NEVER = r"[^\s\S]"


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


def build_number_pattern(schema: StructType) -> str:
    r"""Return a pattern of lines in which a value of type STRING may be, or contain, a number that changes.

    >>> print(build_number_pattern(StructType().add("id", "integer").add("v", "string").add("w", "string")))
    "(?:v|w)"\s*:\s*(?:-?[0-9]+[.eE]|-0|[\[{])
    """
    names, is_anywhere = _list_texts(schema)
    if is_anywhere:
        return rf"[\[:,]\s*(?:{_FRACTIONAL})"
    quoted = "|".join(map(re.escape, names))
    return rf'"(?:{quoted})"\s*:\s*(?:{_FRACTIONAL}|[\[{{])' if names else _NEVER


def _list_texts(schema: StructType) -> tuple[list[str], bool]:
    """Return the names of the fields of type STRING, and whether arrays or maps have values of this type."""
    names, is_anywhere = [], False
    for field in schema.fields:
        kind = field.dataType
        if isinstance(kind, StringType):
            names.append(field.name)
        elif isinstance(kind, StructType):
            inner, is_inside = _list_texts(kind)
            names += inner
            is_anywhere = is_anywhere or is_inside
        else:
            is_anywhere = is_anywhere or "string" in kind.simpleString().removeprefix("map<string")
    return names, is_anywhere


def has_lossy_fraction(line: str) -> bool:
    """Return whether a line of JSON has a number with a fraction or an exponent that no DOUBLE equals.

    >>> has_lossy_fraction('{"v": 0.30000000000000004}'), has_lossy_fraction('{"v": [1, 1e400]}')
    (False, True)
    """
    numbers = _FRACTION.findall(line)
    return not all(number[-1].isdigit() and _is_double(number) for number in numbers)


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
