"""The functions of match rules, patterns too: pure functions on plain values, without state or clock.

The names and semantics are those of the Sesam DTL. A value of the wrong type is ignored: a single value gives
null, in a list it is left out. Standard library only: Spark sends these functions to its workers.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

from airflow_merge_provider.core.merge_source.dtl.values import (
    BOOLEAN,
    BYTES,
    DATE,
    DATETIME,
    DICT,
    LIST,
    NI,
    NULL,
    NUMBER,
    STRING,
    URI,
    UUID,
    as_list,
    build_key,
    convert_to_decimal,
    decode_value,
    distinct_values,
    is_text,
)


def matches_wildcard(pattern: str, text: str) -> bool:
    """Return whether a pattern matches a whole text: ``*`` is any characters, ``?`` is one.

    The part between two ``*`` has a fixed length and is matched at its first occurrence, so there is no
    backtracking; a regular expression would try every position of every ``*``.

    >>> matches_wildcard("a*c?", "abcd"), matches_wildcard("a*c", "abcd")
    (True, False)
    """
    first, *later_parts = _compile_parts(pattern)
    if not later_parts:
        return first.fullmatch(text) is not None
    match = first.match(text)
    for part in later_parts[:-1]:
        if match is None:
            return False
        match = part.search(text, match.end())
    if match is None:
        return False
    end = len(pattern) - pattern.rfind("*") - 1
    return len(text) - end >= match.end() and later_parts[-1].match(text, len(text) - end) is not None


def _compile_parts(pattern: str) -> list[re.Pattern[str]]:
    # A cache in this module could not be pickled for Spark's workers; ``re`` has its own cache.
    return [
        re.compile(
            "".join("." if character == "?" else re.escape(character) for character in part), re.DOTALL
        )
        for part in pattern.split("*")
    ]


# Evaluated once per item of their second argument, in ``expressions``, which resolves ``_.``.
ITEM_FUNCTIONS = ("filter", "map")
_INTEGER_TEXT = re.compile(r"\s*[+-]?[0-9]+\s*\Z")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+\Z")
_DECIMAL_CONTEXT = Context(prec=2000, traps=[])
# A decimal with more digits is not converted to an integer, which would exhaust the memory.
_MOST_DIGITS = 5000
_MIDNIGHT = "T00:00:00.000000000Z"


@dataclass(frozen=True, slots=True)
class Function:
    """A function on values and its number of arguments; ``most`` is None if the number is not limited."""

    least: int
    most: int | None
    apply: Callable[..., Any]


def is_true(value: Any) -> bool:
    """Return whether a value counts as true: all values but false, null and the empty list."""
    return not (value is None or value is False or value == [])


def _apply_to_each(value: Any, apply: Callable[[Any], Any]) -> Any:
    """Apply a function to a value, or to the items of a list, where null results are left out."""
    if not isinstance(value, list):
        return apply(value)
    return [result for result in map(apply, value) if result is not None]


def _each_text(value: Any, apply: Callable[[str], Any]) -> Any:
    return _apply_to_each(value, lambda item: apply(item) if is_text(item) else None)


def _find_first(value: Any) -> Any:
    return (value[0] if value else None) if isinstance(value, list) else value


def _find_last(value: Any) -> Any:
    return (value[-1] if value else None) if isinstance(value, list) else value


def _one_text(value: Any) -> str | None:
    first = _find_first(value)
    return first if is_text(first) else None


def _build_strip(strip: Callable[..., str]) -> Callable[..., Any]:
    def apply(*args: Any) -> Any:
        characters = _one_text(args[0]) if len(args) > 1 else None
        if len(args) > 1 and characters is None:
            return None
        return _each_text(args[-1], lambda item: strip(item, characters))

    return apply


def _concat_texts(*args: Any) -> str:
    return "".join(item for arg in args for item in as_list(arg) if is_text(item))


def _to_string(value: Any) -> Any:
    return _apply_to_each(value, _format_value)


def _format_value(value: Any) -> str | None:
    """Return one value as text: the text after a transit tag, JSON for lists and dicts."""
    kind, content = decode_value(value)
    if kind in (LIST, DICT, BOOLEAN):
        return json.dumps(_remove_tags(value), ensure_ascii=False, sort_keys=True)
    if kind == NUMBER and not isinstance(value, str):
        return float.__repr__(value) if isinstance(value, float) else str(content)
    if kind == BYTES:
        try:
            return str(content.decode("utf-8"))
        except UnicodeDecodeError:
            return None
    if isinstance(value, str):
        return value if kind == STRING else value[2:]
    if kind == DATETIME:
        return str(content).removesuffix("Z").rstrip("0").rstrip(".") + "Z"
    return content if kind == DATE else None


def _remove_tags(value: Any) -> Any:
    if isinstance(value, list):
        return [_remove_tags(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): _remove_tags(item) for name, item in value.items()}
    plain = value is None or isinstance(value, bool | int | float)
    return value if plain else _format_value(value)


def _to_integer(value: Any) -> Any:
    return _apply_to_each(value, _parse_integer)


def _parse_integer(value: Any) -> int | None:
    """Parse one value as an integer: a number without its fraction, digits, or two's complement ``0x``."""
    if is_text(value):
        if _INTEGER_TEXT.match(value):
            return int(Decimal(value.strip()))
        if _HEXADECIMAL.match(value):
            digits = value[2:]
            octets = bytes.fromhex(digits.rjust(len(digits) + len(digits) % 2, "0"))
            return int.from_bytes(octets, signed=True)
        return None
    number = _to_number(value)
    if number is None or (isinstance(number, Decimal) and number.adjusted() > _MOST_DIGITS):
        return None
    return int(number)


def _replace_texts(*args: Any) -> Any:
    if len(args) == 2:  # noqa: PLR2004 - a dict of replacements, and the values
        return _replace_all(*args)
    old, new = _one_text(args[0]), _one_text(args[1])
    if old is None or new is None:
        return None
    return _each_text(args[2], lambda item: item.replace(old, new))


def _replace_all(replacements: Mapping[str, Any], values: Any) -> Any:
    """Replace all keys in one pass, so that replacements are not replaced again; the longest key wins."""
    usable = {old: new for old, new in replacements.items() if old and is_text(new)}
    if not usable:
        return _each_text(values, str)
    pattern = re.compile("|".join(map(re.escape, sorted(usable, key=len, reverse=True))))
    return _each_text(values, lambda item: pattern.sub(lambda match: usable[match[0]], item))


def _split_text(*args: Any) -> Any:
    separator = _one_text(args[0]) if len(args) > 1 else None
    if len(args) > 1 and separator is None:
        return None

    def split_item(item: str) -> list[str]:
        return list(item) if separator == "" else item.split(separator)

    parts = _each_text(args[-1], split_item)
    return list(itertools.chain.from_iterable(parts)) if isinstance(args[-1], list) else parts


def _cut_text(*args: Any) -> Any:
    indexes = [_find_first(arg) for arg in args[:-1]]
    if any(isinstance(index, bool) or not isinstance(index, int) for index in indexes):
        return None
    start, end = indexes[0], indexes[1] if len(indexes) > 1 else None
    return _each_text(args[-1], lambda item: item[start:end])


def _to_number(value: Any) -> float | Decimal | None:
    """Return a finite number unchanged, and a transit decimal as a Decimal."""
    kind, content = decode_value(value)
    if kind != NUMBER or not content.is_finite():
        return None
    number: float | Decimal = content if isinstance(value, str) else value
    return number


def _build_arithmetic(sign: int) -> Callable[[Any, Any], Any]:
    def apply(left: Any, right: Any) -> Any:
        first, second = _to_number(_find_first(left)), _to_number(_find_first(right))
        if first is None or second is None:
            return None
        total = _DECIMAL_CONTEXT.add(
            convert_to_decimal(first), _DECIMAL_CONTEXT.multiply(Decimal(sign), convert_to_decimal(second))
        )
        exact = f"~f{total}" if total.is_finite() else None
        if isinstance(first, Decimal) or isinstance(second, Decimal):
            return exact
        if type(first) is type(second):
            result = first + sign * second
            return result if isinstance(result, int) or math.isfinite(result) else None
        # A float may not hold the sum with an integer.
        rounded = float(total)
        return rounded if convert_to_decimal(rounded) == total else exact

    return apply


def _combine_lists(*args: Any) -> list[Any]:
    return [item for arg in args for item in as_list(arg)]


def _flatten_list(value: Any) -> list[Any]:
    return [inner for item in as_list(value) for inner in (item if isinstance(item, list) else [item])]


def _build_tuples(*args: Any) -> list[Any]:
    if not args:
        return []
    parts = ([item for item in as_list(arg) if item is not None] for arg in args)
    return [list(combination) for combination in itertools.product(*parts)]


def _find_non_null(value: Any) -> Any:
    return next((item for item in as_list(value) if item is not None), None)


def _build_ni(*args: Any) -> Any:
    """Build namespaced identifiers from strings; without a namespace, return an identifier unchanged."""
    if len(args) == 1:
        return _apply_to_each(args[0], lambda item: item if decode_value(item)[0] == NI else _global_ni(item))
    namespace = _one_text(args[0])
    if namespace is None:
        return None
    return _each_text(args[1], lambda item: f"~:{namespace}:{item}")


def _global_ni(item: Any) -> str | None:
    return f"~:{item}" if is_text(item) else None


def _ni_part(position: int) -> Callable[[Any], Any]:
    """Return a function for the namespace (0) or the ID (2); the last colon separates them."""

    def find_part(item: Any) -> str | None:
        kind, content = decode_value(item)
        return str(content).rpartition(":")[position] if kind in (NI, STRING) else None

    return lambda value: _apply_to_each(value, find_part)


def _choose_branch(condition: Any, then: Any, otherwise: Any = None) -> Any:
    return then if is_true(condition) else otherwise


def _list_keys(value: Any) -> list[str] | None:
    """Return the keys of a value treated as a list, including nulls; None if it contains NaN."""
    keys = [NULL if item is None else build_key(item) for item in as_list(value)]
    return None if None in keys else [str(key) for key in keys]


def _is_equal(left: Any, right: Any) -> bool:
    first = _list_keys(left)
    return first is not None and first == _list_keys(right)


def _is_in(values: Any, items: Any) -> bool:
    keys = _list_keys(values)
    item_keys = {NULL if item is None else build_key(item) for item in as_list(items)}
    return bool(keys) and all(key in item_keys for key in keys or ())


def _build_comparison(holds: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Compare the first values; false for values of different kinds, and for kinds without an order."""

    def apply(left: Any, right: Any) -> bool:
        first, second = _to_orderable(_find_first(left)), _to_orderable(_find_first(right))
        if first is None or second is None or first[0] != second[0]:
            return False
        return holds(first[1], second[1])

    return apply


def _to_orderable(value: Any) -> tuple[str, Any] | None:
    kind, content = decode_value(value)
    if kind == DATE:  # dates and times share one order
        return DATETIME, f"{content}{_MIDNIGHT}"
    if kind == NUMBER:
        return (kind, content) if content.is_finite() else None
    return (kind, content) if kind in (BOOLEAN, STRING, NI, URI, DATETIME, UUID, BYTES) else None


def _is_matching(pattern: Any, values: Any) -> bool:
    wildcard = _one_text(pattern)
    items = as_list(values)
    if wildcard is None or not items:
        return False
    return all(is_text(item) and matches_wildcard(wildcard, item) for item in items)


def _is_null(value: Any) -> bool:
    return _find_first(value) is None


DTL_FUNCTIONS: dict[str, Function] = {
    "lower": Function(1, 1, lambda value: _each_text(value, str.lower)),
    "upper": Function(1, 1, lambda value: _each_text(value, str.upper)),
    "strip": Function(1, 2, _build_strip(str.strip)),
    "lstrip": Function(1, 2, _build_strip(str.lstrip)),
    "rstrip": Function(1, 2, _build_strip(str.rstrip)),
    "concat": Function(1, None, _concat_texts),
    "string": Function(1, 1, _to_string),
    "integer": Function(1, 1, _to_integer),
    "replace": Function(3, 3, _replace_texts),
    "split": Function(1, 2, _split_text),
    "substring": Function(2, 3, _cut_text),
    "length": Function(1, 1, lambda value: _each_text(value, len)),
    "+": Function(2, 2, _build_arithmetic(1)),
    "-": Function(2, 2, _build_arithmetic(-1)),
    "list": Function(0, None, lambda *args: list(args)),
    "combine": Function(1, None, _combine_lists),
    "flatten": Function(1, 1, _flatten_list),
    "tuples": Function(0, None, _build_tuples),
    "coalesce": Function(1, 1, _find_non_null),
    "first": Function(1, 1, _find_first),
    "last": Function(1, 1, _find_last),
    "distinct": Function(1, 1, lambda value: distinct_values(as_list(value))),
    "ni": Function(1, 2, _build_ni),
    "ni-id": Function(1, 1, _ni_part(2)),
    "ni-ns": Function(1, 1, _ni_part(0)),
    "if": Function(2, 3, _choose_branch),
    "eq": Function(2, 2, _is_equal),
    "neq": Function(2, 2, lambda left, right: not _is_equal(left, right)),
    "gt": Function(2, 2, _build_comparison(lambda left, right: left > right)),
    "gte": Function(2, 2, _build_comparison(lambda left, right: left >= right)),
    "lt": Function(2, 2, _build_comparison(lambda left, right: left < right)),
    "lte": Function(2, 2, _build_comparison(lambda left, right: left <= right)),
    "and": Function(1, None, lambda *args: all(map(is_true, args))),
    "or": Function(1, None, lambda *args: any(map(is_true, args))),
    "not": Function(1, None, lambda *args: not all(map(is_true, args))),
    "in": Function(2, 2, _is_in),
    "matches": Function(2, 2, _is_matching),
    "is-null": Function(1, 1, _is_null),
    "is-not-null": Function(1, 1, lambda value: not _is_null(value)),
    "is-empty": Function(1, 1, lambda value: not as_list(value)),
    "is-not-empty": Function(1, 1, lambda value: bool(as_list(value))),
}
