"""The aggregate functions as accumulators, which process one value after the other.

``add(gathered, value, rule)`` and ``retract(gathered, value, rule)`` return the next gathered value. For a
record that is older than the gathered value, the first two arguments of ``add`` are swapped. Rows of nested
tables are dicts and maps are lists of pairs, as Arrow returns them. Source: docs/semantics/merge_engine.md,
Functions in sequence groups; Aggregate functions.
"""

# ruff: noqa: ARG001 - all functions have one signature

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from airflow_merge_provider.core.merge_engine.columns import (
    get_element_type,
    row_fields,
)
from airflow_merge_provider.core.merge_engine.exact_numbers import (
    EMPTY,
    FoldError,
    add_number,
    divide_number,
    finish_number,
    multiply_number,
    subtract_number,
)
from airflow_merge_provider.core.merge_engine.plan import ColumnRule
from airflow_merge_provider.core.value_text import Row

# Java's definition of white space, which excludes no-break spaces.
_BLANK_PATTERN = re.compile(r"[\t-\r\x1c-\x20\u1680\u2000-\u2006\u2008-\u200a\u2028\u2029\u205f\u3000]*\Z")


@dataclass(frozen=True, slots=True)
class Accumulator:
    """How a function processes a record that adds and a record that retracts.

    ``combine`` adds many values at once, oldest first, in linear time: functions that gather lists and texts
    would otherwise copy them for every record. ``check`` raises the error that adding a value would raise
    then. Late values may be placed before the others, unless ``in_order`` is set.
    """

    add: Callable[[Any, Any, ColumnRule], Any]
    retract: Callable[[Any, Any, ColumnRule], Any] | None = None
    combine: Callable[[Sequence[Any], ColumnRule], Any] | None = None
    check: Callable[[Any, ColumnRule], object] | None = None
    in_order: bool = False


def order_key(value: Any) -> tuple[Any, ...]:
    """Return the sort key of values of one type: null first, NaN last.

    >>> sorted([2.0, None, float("nan"), 1.0], key=order_key)
    [None, 1.0, 2.0, nan]
    """
    if value is None:
        return (0,)
    if isinstance(value, float):
        return (1, math.isnan(value), 0.0 if math.isnan(value) else value)
    return (1, value)


def comes_before(pairs: Iterable[tuple[Any, Any]], *, descending: bool = False) -> bool:
    """Return whether the first values of some pairs are older than the second values; null is the oldest.

    >>> comes_before([(1, 1), (None, 5)]), comes_before([(1, 2)], descending=True)
    (True, False)
    """
    for left, right in pairs:
        left_key, right_key = order_key(left), order_key(right)
        if left_key != right_key:
            is_reversed = descending and left is not None and right is not None
            return left_key > right_key if is_reversed else left_key < right_key
    return False


def normalize_value(value: Any) -> Any:
    """Return a form that equal values share, maps in any order too; it can be a key of a dict."""
    if isinstance(value, Mapping):
        return tuple((name, normalize_value(field_value)) for name, field_value in value.items())
    if isinstance(value, list | tuple):
        return (frozenset if isinstance(next(iter(value), 0), tuple) else tuple)(map(normalize_value, value))
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def finish_value(gathered: Any, rule: ColumnRule) -> Any:
    """Return the final value of the column.

    :raises FoldError: when it is beyond what the column can hold.
    """
    if gathered is EMPTY or gathered is None:
        return None
    return finish_number(gathered, rule) if rule.function in {"sum", "product", "count"} else gathered


def _skip_nulls(
    combine: Callable[[Any, Any, ColumnRule], Any], first: Callable[[Any, ColumnRule], Any] | None = None
) -> Callable[[Any, Any, ColumnRule], Any]:
    """Skip nulls: ``combine`` is only called with a value, and only if something was gathered before."""

    def add_value(gathered: Any, value: Any, rule: ColumnRule) -> Any:
        if gathered is not None and gathered is not EMPTY and value is not None and value is not EMPTY:
            return combine(gathered, value, rule)
        only = gathered if value is None or value is EMPTY else value
        return only if first is None or only is None or only is EMPTY else first(only, rule)

    return add_value


def _count_value(gathered: Any, value: Any, rule: ColumnRule) -> Any:
    step = 0 if value is None else 1
    return step if gathered is None or gathered is EMPTY else gathered + step


def _count_back(gathered: Any, value: Any, rule: ColumnRule) -> Any:
    step = 0 if value is None else -1
    return step if gathered is None or gathered is EMPTY else gathered + step


def _last_back(gathered: Any, value: Any, rule: ColumnRule) -> Any:
    return None


def _last_non_null_back(gathered: Any, value: Any, rule: ColumnRule) -> Any:
    return gathered if value is None else None


def _last_non_null(gathered: Any, value: Any, rule: ColumnRule) -> Any:
    return gathered if value is None or value is EMPTY else value


def is_blank(text: str) -> bool:
    r"""Return whether a text is empty or white space by Java's definition.

    >>> is_blank(" \u3000"), is_blank("\u00a0")
    (True, False)
    """
    return bool(_BLANK_PATTERN.match(text))


def _listagg_first(value: str, rule: ColumnRule) -> str | None:
    return None if is_blank(value) else value


def _join_texts(values: Sequence[str], rule: ColumnRule) -> str | None:
    texts, delimiter = [value for value in values if not is_blank(value)], rule.options.delimiter
    if len(texts) <= 1 or not rule.options.distinct:
        return delimiter.join(texts) if texts else None
    text, *later_texts = texts
    if not delimiter:
        for value in later_texts:
            text += value if value != text else ""
        return text
    distinct_tokens, parts = set(text.split(delimiter)), [text]
    for token in (token for value in later_texts for token in value.split(delimiter)):
        if token not in distinct_tokens and not is_blank(token):
            distinct_tokens.add(token)
            parts.append(token)
    return delimiter.join(parts)


def _list_unique(values: list[Any]) -> list[Any]:
    unique_values: dict[Any, Any] = {}
    for value in values:
        unique_values.setdefault(normalize_value(value), value)
    return list(unique_values.values())


def _collect_first(value: list[Any], rule: ColumnRule) -> list[Any]:
    return _list_unique(value) if rule.options.distinct else list(value)


def _collect_items(values: Sequence[list[Any]], rule: ColumnRule) -> list[Any]:
    return _collect_first(list(chain.from_iterable(values)), rule)


def _collect_back(gathered: Any, value: Any, rule: ColumnRule) -> Any:
    if value is None or gathered is None or gathered is EMPTY:
        return gathered
    elements = list(gathered)
    for element in value:
        position = next(
            (at for at, item in enumerate(elements) if normalize_value(item) == normalize_value(element)),
            None,
        )
        if position is not None:
            del elements[position]
    return elements


def _index_entries(pairs: Any) -> dict[Any, tuple[Any, Any]]:
    return {normalize_value(key): (key, value) for key, value in pairs}


def _merge_map(values: Sequence[Any], rule: ColumnRule) -> list[Any]:
    return list(_index_entries(chain.from_iterable(values)).values())


def _merge_map_back(gathered: Any, value: Any, rule: ColumnRule) -> Any:
    if value is None or gathered is None or gathered is EMPTY:
        return gathered
    removed_entries = _index_entries(value)
    return [entry for key, entry in _index_entries(gathered).items() if key not in removed_entries]


def _merge_map_by_time(values: Sequence[Any], rule: ColumnRule) -> list[Any]:
    ts_field = rule.options.ts_field or row_fields(get_element_type(rule.column.kind))[-1]
    entries = _index_entries(values[0])
    for key, (map_key, row) in chain.from_iterable(_index_entries(value).items() for value in values[1:]):
        if row is None:
            entries.pop(key, None)
        elif row[ts_field] is not None:
            _, stored = entries.get(key, (map_key, None))
            if (
                stored is None
                or stored[ts_field] is None
                or order_key(row[ts_field]) > order_key(stored[ts_field])
            ):
                entries[key] = (map_key, row)
    return list(entries.values())


def _build_nested_key(row: Row, rule: ColumnRule) -> tuple[Any, ...] | None:
    """Return the key of a nested row; None if the row is dropped."""
    names = rule.options.nested_key
    if any(row[name] is None for name in names):
        if rule.options.null_strategy == "ignore":
            return None
        if rule.options.null_strategy == "error":
            message = f"NULL in nested-key ({', '.join(names)}) of column {rule.column.name!r}"
            raise FoldError(f"{message}: nested-key-null-strategy is error")
    return tuple(normalize_value(row[name]) for name in names)


def _is_late(row: Row, stored: Row, rule: ColumnRule) -> bool:
    return comes_before((row[name], stored[name]) for name in rule.options.nested_sequence)


def _check_nested(value: list[Any], rule: ColumnRule) -> None:
    if rule.options.null_strategy == "error":
        for row in value:
            if row is not None:
                _build_nested_key(row, rule)


def _start_nested_update(value: list[Any], rule: ColumnRule) -> list[Any]:
    return _update_nested_rows([[], value], rule)


def _update_nested_rows(values: Sequence[list[Any]], rule: ColumnRule) -> list[Any]:
    limit, rows = rule.options.count_limit, chain.from_iterable(values)
    if not rule.options.nested_key:
        return [row for row in rows if row is not None][: max(limit, len(values[0]))]
    rows_by_key: dict[Any, Any] = {}
    for row in rows:
        key = None if row is None else _build_nested_key(row, rule)
        if key is None or (key not in rows_by_key and len(rows_by_key) >= limit):
            continue
        if key not in rows_by_key or not _is_late(row, rows_by_key[key], rule):
            rows_by_key[key] = row
    return list(rows_by_key.values())


def _retract_nested_rows(gathered: Any, value: Any, rule: ColumnRule) -> Any:
    if value is None or gathered is None or gathered is EMPTY:
        return gathered
    rows = [row for row in value if row is not None]
    if rule.options.nested_key:
        keys = {_build_nested_key(row, rule) for row in rows} - {None}
        return [row for row in gathered if _build_nested_key(row, rule) not in keys]
    removed_rows = {normalize_value(row) for row in rows}
    return [row for row in gathered if normalize_value(row) not in removed_rows]


def _start_nested_partial(value: list[Any], rule: ColumnRule) -> list[Any]:
    return _merge_nested_rows([value], rule)


def _merge_nested_rows(values: Sequence[list[Any]], rule: ColumnRule) -> list[Any]:
    rows_by_key: dict[Any, dict[str, Any]] = {}
    for row in chain.from_iterable(values):
        key = None if row is None else _build_nested_key(row, rule)
        if key is None:
            continue
        if key not in rows_by_key:
            rows_by_key[key] = dict(row)
        else:
            rows_by_key[key].update(
                (name, field_value) for name, field_value in row.items() if field_value is not None
            )
    return list(rows_by_key.values())


def _build_combined(
    combine: Callable[[Sequence[Any], ColumnRule], Any],
    first: Callable[[Any, ColumnRule], Any] | None = None,
    **more: Any,
) -> Accumulator:
    add = _skip_nulls(lambda gathered, value, rule: combine((gathered, value), rule), first)
    return Accumulator(add, combine=combine, **more)


ACCUMULATORS: Mapping[str, Accumulator] = {
    "sum": Accumulator(_skip_nulls(add_number), subtract_number),
    "product": Accumulator(_skip_nulls(multiply_number), divide_number),
    "count": Accumulator(_count_value, _count_back),
    "max": Accumulator(_skip_nulls(lambda a, b, _: max(a, b, key=order_key))),
    "min": Accumulator(_skip_nulls(lambda a, b, _: min(a, b, key=order_key))),
    "bool_and": Accumulator(_skip_nulls(lambda a, b, _: a and b)),
    "bool_or": Accumulator(_skip_nulls(lambda a, b, _: a or b)),
    "last_value": Accumulator(lambda _, value, __: value, _last_back),
    "last_non_null_value": Accumulator(_last_non_null, _last_non_null_back),
    "first_value": Accumulator(lambda a, value, _: value if a is EMPTY else a),
    "first_non_null_value": Accumulator(lambda a, value, _: value if a is EMPTY or a is None else a),
    "listagg": _build_combined(_join_texts, _listagg_first),
    "collect": _build_combined(_collect_items, _collect_first, retract=_collect_back),
    "merge_map": _build_combined(_merge_map, retract=_merge_map_back),
    "merge_map_with_keytime": _build_combined(_merge_map_by_time, in_order=True),
    "nested_update": _build_combined(
        _update_nested_rows, _start_nested_update, retract=_retract_nested_rows, check=_check_nested
    ),
    "nested_partial_update": _build_combined(_merge_nested_rows, _start_nested_partial, check=_check_nested),
    "primary-key": Accumulator(lambda _, value, __: value, lambda _, value, __: value),
}
