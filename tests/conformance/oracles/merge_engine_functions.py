"""The functions of the merge engines' oracle, over plain values.

Source: docs/semantics/merge_engine.md, Aggregate functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

NUMBERS = {"TINYINT": 2**7, "SMALLINT": 2**15, "INT": 2**31, "BIGINT": 2**63}
CANNOT_RETRACT = {
    "max", "min", "first_value", "first_non_null_value", "listagg", "bool_and", "bool_or",
    "merge_map_with_keytime", "nested_partial_update",
}  # fmt: skip


class RefusedError(Exception):
    """Raised if a batch must be rejected."""


def add_value(function: str, gathered: Any, value: Any, options: Mapping[str, str]) -> Any:
    if function == "last_value" or (function == "first_non_null_value" and gathered is None):
        return value
    if function == "first_non_null_value":
        return gathered
    if value is None or (function == "listagg" and not value.strip()):
        if value is not None or gathered is None or function not in {"collect", "nested_update", "listagg"}:
            return gathered
        return add_value(function, None, gathered, options)  # late and first: used as first
    if function == "last_non_null_value":
        return value
    if function in {"collect", "nested_update"}:
        return add_rows(function, add_rows(function, [], gathered or [], options), value, options)
    if gathered is None or (function == "listagg" and not gathered.strip()):
        return value
    two = {
        "sum": lambda: gathered + value,
        "product": lambda: gathered * value,
        "max": lambda: max(gathered, value),
        "min": lambda: min(gathered, value),
        "bool_and": lambda: gathered and value,
        "bool_or": lambda: gathered or value,
        "merge_map": lambda: {**gathered, **value},
        "listagg": lambda: join_values(gathered, value, options),
    }
    return two[function]()  # type: ignore[no-untyped-call]


def join_values(gathered: str, value: str, options: Mapping[str, str]) -> str:
    delimiter = options.get("list-agg-delimiter", ",")
    if options.get("distinct") != "true":
        return gathered + delimiter + value
    for token in value.split(delimiter):
        if token.strip() and token not in gathered.split(delimiter):
            gathered += delimiter + token
    return gathered


def add_rows(function: str, gathered: list[Any], value: list[Any], options: Mapping[str, str]) -> list[Any]:
    if function == "collect":
        both = gathered + value
        if options.get("distinct") != "true":
            return both
        return [item for at, item in enumerate(both) if item not in both[:at]]
    rows = list(gathered)
    for item in value:
        key = options.get("nested-key", "").split(",")
        same = [at for at, row in enumerate(rows) if all(row[name] == item[name] for name in key if name)]
        if key != [""] and same:
            rows[same[0]] = item
        elif len(rows) < int(options.get("count-limit", 2**31)):
            rows.append(item)
    return rows


def _sum_back(gathered: Any, value: Any, kind: str, options: Mapping[str, str]) -> Any:
    return gathered if value is None else (gathered or 0) - value


def _product_back(gathered: Any, value: Any, kind: str, options: Mapping[str, str]) -> Any:
    if gathered is None or value is None:
        return gathered
    if value == 0:
        raise RefusedError("zero")
    return int(gathered / Decimal(value))


def _collect_back(gathered: Any, value: Any, kind: str, options: Mapping[str, str]) -> Any:
    if gathered is None or value is None:
        return gathered
    rows = list(gathered)
    for item in value:
        if item in rows:
            rows.remove(item)
    return rows


def _retract_nested(gathered: Any, value: Any, kind: str, options: Mapping[str, str]) -> Any:
    if gathered is None or value is None:
        return gathered
    key = [name for name in options.get("nested-key", "").split(",") if name] or list((value or [{}])[0])
    removed_keys = [[row[name] for name in key] for row in value]
    return [row for row in gathered if [row[name] for name in key] not in removed_keys]


def _map_back(gathered: Any, value: Any, kind: str, options: Mapping[str, str]) -> Any:
    if gathered is None or value is None:
        return gathered
    return {name: entry for name, entry in gathered.items() if name not in value}


RETRACT = {
    "sum": _sum_back,
    "count": lambda gathered, value, kind, options: (gathered or 0) - (value is not None),
    "product": _product_back,
    "last_value": lambda gathered, value, kind, options: None,
    "last_non_null_value": lambda gathered, value, kind, options: gathered if value is None else None,
    "collect": _collect_back,
    "merge_map": _map_back,
    "nested_update": _retract_nested,
}


def check_size(kind: str, value: Any, function: str | None) -> None:
    """Reject sums and products that the column cannot hold."""
    if value is None or function not in {"sum", "product", "count"}:
        return
    if kind.startswith("DECIMAL"):
        digits, scale = (int(word) for word in kind[8:-1].split(","))
        half: Any = Decimal(10) ** (digits - scale)
        fits = -half < value < half
    else:
        half = NUMBERS.get(kind)
        fits = half is None or -half <= value < half
    if not fits:
        raise RefusedError("overflow")
