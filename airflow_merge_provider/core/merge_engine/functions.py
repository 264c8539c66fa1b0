"""The aggregate functions: their types, their options, and which of them support retracts.

Source: docs/semantics/merge_engine.md, Aggregate functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_merge_provider.core.errors import Problem, suggest_name
from airflow_merge_provider.core.merge_engine.columns import (
    find_type_family,
    get_element_type,
    is_number,
    is_ordered,
    row_fields,
)

_NESTED_OPTIONS = ("nested-key", "nested-key-null-strategy", "nested-sequence-field", "count-limit")
_KEYTIME_FIELDS_MIN = 2


@dataclass(frozen=True, slots=True)
class Function:
    """An aggregate function: its types as text and as a test, its options, and what it supports.

    A function ``chooses`` if its result is the value of one record, so that it depends on their order. It is
    ``folded`` if Spark has no aggregate for it. It is ``masking`` if its result has no value of a record.
    """

    takes: str
    accepts: Callable[[Any], bool]
    retracts: bool = False
    options: tuple[str, ...] = ()
    unavailable: str = ""
    chooses: bool = False
    folded: bool = False
    masking: bool = False


def _accept_any(_: Any) -> bool:
    return True


def _accept_families(*families: str) -> Callable[[Any], bool]:
    return lambda kind: find_type_family(kind) in families


def _is_bytes(kind: Any) -> bool:
    """Return whether a type is bytes of any length; other systems have types with a fixed length."""
    return bool(kind == "binary")


def _is_row_list(kind: Any) -> bool:
    return find_type_family(kind) == "array" and find_type_family(get_element_type(kind)) == "struct"


def _is_keytime_map(kind: Any) -> bool:
    if find_type_family(kind) != "map" or find_type_family(get_element_type(kind)) != "struct":
        return False
    return len(row_fields(get_element_type(kind))) >= _KEYTIME_FIELDS_MIN


FUNCTIONS: Mapping[str, Function] = {
    "sum": Function("a number", is_number, retracts=True),
    "product": Function("a number", is_number, retracts=True, folded=True),
    "count": Function("INT or BIGINT", _accept_families("integer", "long"), retracts=True, masking=True),
    "max": Function("an orderable type", is_ordered),
    "min": Function("an orderable type", is_ordered),
    "last_value": Function("any type", _accept_any, retracts=True, chooses=True),
    "last_non_null_value": Function("any type", _accept_any, retracts=True, chooses=True),
    "first_value": Function("any type", _accept_any, chooses=True),
    "first_non_null_value": Function("any type", _accept_any, chooses=True),
    "listagg": Function(
        "STRING (not CHAR or VARCHAR)",
        lambda kind: kind == "string",
        options=("list-agg-delimiter", "distinct"),
        folded=True,
    ),
    "bool_and": Function("BOOLEAN", _accept_families("boolean")),
    "bool_or": Function("BOOLEAN", _accept_families("boolean")),
    "collect": Function(
        "ARRAY", _accept_families("array"), retracts=True, options=("distinct",), folded=True
    ),
    "merge_map": Function("MAP", _accept_families("map"), retracts=True, folded=True),
    "merge_map_with_keytime": Function(
        "MAP<…, STRUCT> whose STRUCT has at least two fields",
        _is_keytime_map,
        options=("ts-field",),
        folded=True,
    ),
    "nested_update": Function(
        "ARRAY<STRUCT>", _is_row_list, retracts=True, options=_NESTED_OPTIONS, folded=True
    ),
    "nested_partial_update": Function(
        "ARRAY<STRUCT>", _is_row_list, options=_NESTED_OPTIONS[:2], folded=True
    ),
    "hll_sketch": Function("BINARY", _is_bytes, masking=True),
    "theta_sketch": Function("BINARY", _is_bytes, masking=True),
    "rbm32": Function("BINARY", _is_bytes),
    "rbm64": Function("BINARY", _is_bytes, unavailable="its binary format exists only in the Java library"),
    "primary-key": Function("any type", _accept_any, retracts=True, chooses=True),
}
ALIASES = {"first_not_null_value": "first_non_null_value"}

# Stored as bytes that only Spark's aggregates can unite, not the fold.
SERIALIZED = ("hll_sketch", "theta_sketch", "rbm32")


def function_named(word: str) -> str | None:
    """Return the function with a name, None if there is none."""
    name = ALIASES.get(word, word)
    return name if name in FUNCTIONS else None


def unknown_function(path: str, word: str) -> Problem:
    """Return the problem of a word that is not the name of a function."""
    hint = suggest_name(word, FUNCTIONS, "functions")
    return Problem(path, "function", f"unknown aggregate function {word!r}", hint)
