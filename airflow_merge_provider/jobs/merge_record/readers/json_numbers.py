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
from pyspark.sql.types import DataType, DoubleType, StringType, StructType

from airflow_merge_provider.core.change_plan.shown_rows import mask_text
from airflow_merge_provider.jobs.spark.text_values import trim_zeros

# A number with more digits than each DOUBLE holds, or with an exponent.
_LONG = r"[0-9](\.?[0-9]){15}|[0-9][eE]"
# Numbers between the marks that separate values; texts that look like this cost time only.
_NUMBERS = r"[\[:,]\s*(-?[0-9][0-9.eE+-]*)\s*(?=[,\]}])"


# Numbers with a fraction or an exponent that may have more digits than a DOUBLE holds, and words such as NaN;
# for RE2 and Python.
_SPECIAL_NUMBERS = r"NaN\b|I[nN][fF]"
LONG_FRACTION = rf"[\[:,]\s*[-+]?(?:[0-9]+\.[0-9]{{8,}}|[0-9]{{8,}}\.[0-9]|[0-9.]+[eE]|{_SPECIAL_NUMBERS})"
# A number with a fraction or an exponent, or a zero with a sign.
_FRACTIONAL = r"-?[0-9]+[.eE]|-0"
# A whole number that may be beyond those of which a DOUBLE has each one.
_LONG_INTEGER = r"-?[0-9]{16}"
_ANY_FRACTION = re.compile(rb"[\s\[:,]-?[0-9]+[.eE]")
# A VARIANT has other numbers, of up to 38 digits, as decimals.
NO_VARIANT = r"[eE]|([0-9]\.?){39}"
_CHUNK, _OVERLAP = 1 << 20, 1 << 10
_NEVER = r"[^\s\S]"


class _Number(str):
    """A number as it is written."""

    __slots__ = ()


_WORDS_OF_TYPES = {_Number: "number", str: "text", bool: "boolean", list: "list", dict: "record"}
_NUMBER_MAX_CHARS = 50
_TYPE_HINT = (
    "write values of one type, or set a schema of the reader in which the field is a STRING, or "
    "schema_merge='union', which writes texts of them"
)


def find_long_number(text: Column, pattern: str = "") -> Column:
    """Return a number of a JSON text that matches a pattern and no DOUBLE equals; NULL if there is none."""
    numbers = F.regexp_extract_all(text, F.lit(_NUMBERS), F.lit(1))
    lossy = F.filter(
        numbers,
        lambda number: (
            number.rlike(pattern)
            & (trim_zeros(number) != trim_zeros(number.try_cast("double").cast("string")))
        ),
    )
    return F.when(text.rlike(_LONG), F.get(lossy, F.lit(0)))


def build_number_pattern(schema: StructType) -> str:
    r"""Return a pattern of lines with a number that Spark changes when it parses the line by a schema.

    This is a number of which it makes a text, or a whole number of which it makes a DOUBLE.

    >>> print(build_number_pattern(StructType().add("id", "integer").add("v", "string")))
    (?:"(?:v)"|\\.[^"\\]*")\s*:\s*(?:-?[0-9]+[.eE]|-0|[\[{])
    """
    patterns = (
        *_build_patterns(schema, StringType(), _FRACTIONAL, rf"{_FRACTIONAL}|[\[{{]"),
        *_build_patterns(schema, DoubleType(), _LONG_INTEGER, _LONG_INTEGER),
    )
    return "|".join(patterns) or _NEVER


def _build_patterns(schema: StructType, kind: DataType, number: str, value: str) -> Iterator[str]:
    """Yield a pattern of the values of fields of a type, or of numbers anywhere."""
    names, is_anywhere = _list_fields(schema, kind)
    if is_anywhere:
        yield rf"[\[:,]\s*(?:{number})"
    elif names:
        # A name with an escape, such as \u00e9, may be any of them.
        yield rf'(?:"(?:{"|".join(map(re.escape, names))})"|\\.[^"\\]*")\s*:\s*(?:{value})'


def _list_fields(schema: StructType, kind: DataType) -> tuple[list[str], bool]:
    """Return the names of the fields of a type, and whether arrays or maps have values of this type."""
    names, is_anywhere = [], False
    for field in schema.fields:
        if field.dataType == kind:
            names.append(field.name)
        elif isinstance(field.dataType, StructType):
            inner, is_inside = _list_fields(field.dataType, kind)
            names += inner
            is_anywhere = is_anywhere or is_inside
        else:
            description = field.dataType.simpleString().removeprefix("map<string")
            is_anywhere = is_anywhere or kind.simpleString() in description
    return names, is_anywhere


def has_lossy_fraction(line: str) -> bool:
    """Return whether a line of JSON has a number with a fraction or an exponent that no DOUBLE equals.

    >>> has_lossy_fraction('{"v": 0.30000000000000004}'), has_lossy_fraction('{"v": [1, 1e400]}')
    (False, True)
    """
    try:
        numbers = list(_list_numbers(line))
    except (ValueError, RecursionError):
        return True
    return not all(number.lstrip("-").isdigit() or _is_double(number) for _, number in numbers)


def has_fraction(file: BinaryIO) -> bool:
    """Return whether a JSON file has a number with a fraction or an exponent; one in a text counts, too.

    >>> has_fraction(io.BytesIO(b'[{"v": 12.5}]')), has_fraction(io.BytesIO(b'[{"v": 125, "e": "x.5"}]'))
    (True, False)
    """
    end = b""
    while chunk := file.read(_CHUNK):
        content = end + chunk
        if _ANY_FRACTION.search(content):
            return True
        end = content[-_OVERLAP:]
    return False


def build_lossy_finder(*, is_array: bool) -> Callable[[BinaryIO], dict[str, str]]:
    """Return a function that returns the first lossy number of each field of a JSON file, by its path."""

    def find_lossy_numbers(file: BinaryIO) -> dict[str, str]:
        lossy: dict[str, str] = {}
        for path, number in chain.from_iterable(_read_values(file, is_array=is_array)):
            if isinstance(number, _Number) and not _is_double(number):
                lossy.setdefault(path, str(number))
        return lossy

    return find_lossy_numbers


def build_mixture_finder(*, is_array: bool) -> Callable[[BinaryIO], str | None]:
    """Return a function that describes the first field of a JSON file with values of two types, or None."""

    def find_mixture(file: BinaryIO) -> str | None:
        examples: dict[str, tuple[str, Any]] = {}
        for path, value in chain.from_iterable(_read_values(file, is_array=is_array)):
            word = _WORDS_OF_TYPES[type(value)]
            first_word, first = examples.setdefault(path, (word, value))
            if first_word != word:
                texts = (
                    f"a {word}{_format_example(one)}" for word, one in ((first_word, first), (word, value))
                )
                return f"field {path[1:]!r} is {' in one record and '.join(texts)} in another ({_TYPE_HINT})"
        return None

    return find_mixture


def _format_example(value: Any) -> str:
    if isinstance(value, dict | list):
        return ""
    text = str(value) if isinstance(value, _Number) else json.dumps(value, ensure_ascii=False)
    return f" ({mask_text(text[:_NUMBER_MAX_CHARS])})"


def _read_values(file: BinaryIO, *, is_array: bool) -> Iterator[Iterator[tuple[str, Any]]]:
    with io.TextIOWrapper(file, encoding="utf-8-sig") as text:
        for document in filter(str.strip, [text.read()] if is_array else text):
            yield _list_values(document)


def _list_numbers(document: str) -> Iterator[tuple[str, _Number]]:
    return (pair for pair in _list_values(document) if isinstance(pair[1], _Number))


def _list_values(document: str) -> Iterator[tuple[str, Any]]:
    # Spark accepts control characters in texts, too.
    value = json.loads(document, parse_int=_Number, parse_float=_Number, parse_constant=_Number, strict=False)
    return _walk_value(value, "")


def _walk_value(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the values of a record with their paths: names of fields, and ``[]`` for the items of a list."""
    if path and value is not None:
        yield path, value
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _walk_value(item, f"{path}.{name}")
    elif isinstance(value, list):
        # The records of a file are the items of its array.
        for item in value:
            yield from _walk_value(item, f"{path}[]" if path else path)


def _is_double(number: str) -> bool:
    double = float(number)
    if math.isinf(double) or math.isnan(double):
        return False
    if repr(double) == number:
        return True
    exact = Decimal(number)
    # Programs write the smallest numbers with different digits: 4.9E-324 in Java is 5e-324 in Python.
    digits = len(exact.as_tuple().digits) if abs(double) < sys.float_info.min else 0
    return exact in (Decimal(repr(double)), Decimal(f"{double:.{max(digits - 1, 0)}e}"))
