"""Which aggregate functions there are: for which types, with which options, and which take a retract back.

Source: merge_engine spec §6.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_merge_provider.core.errors import Problem, did_you_mean
from airflow_merge_provider.core.merge_engine.columns import (
    element_of,
    family,
    is_number,
    is_ordered,
    row_fields,
)

_NESTED = ("nested-key", "nested-key-null-strategy", "nested-sequence-field", "count-limit")
_LEAST_KEYTIME_FIELDS = 2


@dataclass(frozen=True, slots=True)
class Function:
    """An aggregate function: the types it takes in words and as a test, its options, and what it can."""

    takes: str
    accepts: Callable[[Any], bool]
    retracts: bool = False
    options: tuple[str, ...] = ()
    unavailable: str = ""


def _any(_: Any) -> bool:
    return True


def _is(*families: str) -> Callable[[Any], bool]:
    return lambda kind: family(kind) in families


def _bytes(kind: Any) -> bool:
    """Tell bytes of any length; a schema may come from where they have a fixed one."""
    return bool(kind == "binary")


def _rows(kind: Any) -> bool:
    return family(kind) == "array" and family(element_of(kind)) == "struct"


def _keytime(kind: Any) -> bool:
    if family(kind) != "map" or family(element_of(kind)) != "struct":
        return False
    return len(row_fields(element_of(kind))) >= _LEAST_KEYTIME_FIELDS


FUNCTIONS: Mapping[str, Function] = {
    "sum": Function("a number", is_number, retracts=True),
    "product": Function("a number", is_number, retracts=True),
    "count": Function("INT or BIGINT", _is("integer", "long"), retracts=True),
    "max": Function("a type with an order", is_ordered),
    "min": Function("a type with an order", is_ordered),
    "last_value": Function("any type", _any, retracts=True),
    "last_non_null_value": Function("any type", _any, retracts=True),
    "first_value": Function("any type", _any),
    "first_non_null_value": Function("any type", _any),
    "listagg": Function(
        "STRING of any length", lambda kind: kind == "string", options=("list-agg-delimiter", "distinct")
    ),
    "bool_and": Function("BOOLEAN", _is("boolean")),
    "bool_or": Function("BOOLEAN", _is("boolean")),
    "collect": Function("ARRAY", _is("array"), retracts=True, options=("distinct",)),
    "merge_map": Function("MAP", _is("map"), retracts=True),
    "merge_map_with_keytime": Function(
        "MAP<…, STRUCT> whose STRUCT has at least two fields", _keytime, options=("ts-field",)
    ),
    "nested_update": Function("ARRAY<STRUCT>", _rows, retracts=True, options=_NESTED),
    "nested_partial_update": Function("ARRAY<STRUCT>", _rows, options=_NESTED[:2]),
    "hll_sketch": Function("BINARY", _bytes),
    "theta_sketch": Function("BINARY", _bytes),
    "rbm32": Function("BINARY", _bytes),
    "rbm64": Function(
        "BINARY", _bytes, unavailable="the bytes of rbm64 are a format of the Java library alone"
    ),
    "primary-key": Function("any type", _any, retracts=True),
}
ALIASES = {"first_not_null_value": "first_non_null_value"}

# Kept as bytes that only aggregates of Spark unite, not the fold.
SERIALIZED = ("hll_sketch", "theta_sketch", "rbm32")


def function_named(word: str) -> str | None:
    """Give the function that a word names, None when there is none."""
    known = ALIASES.get(word, word)
    return known if known in FUNCTIONS else None


def unknown_function(path: str, word: str) -> Problem:
    """Say that a word names no function."""
    hint = did_you_mean(word, FUNCTIONS) or f"known: {', '.join(FUNCTIONS)}"
    return Problem(path, "function", f"unknown aggregate function {word!r}", hint)
