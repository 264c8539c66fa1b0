"""Tests of schema equality, and of the union of several schemas."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_merge_provider.core.merge_record.schema import (
    Schema,
    complete_schema,
    replace_void,
    unite_schemas,
)
from tests.conformance.merge_record import project_record

_RECORD = {"fields": [{"name": "x", "type": "int"}]}


def build_schema(*fields: Any, text: Any = None) -> Any:
    named = [
        field if isinstance(field, dict) else dict(zip(("name", "type"), field, strict=True))
        for field in fields
    ]
    return Schema(tuple(named), text)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (("a", "byte"), ("a", "int")),
        (("a", "char"), ("a", "string")),
        (("a", "decimal(10, 2)"), ("a", "decimal(10,2)")),
        (("a", {"array": "short"}), ("a", {"array": "int"})),
        (("a", "int"), {"name": "a", "type": "int", "nullable": True, "aliases": []}),
    ],
)
def test_equal_schemas(left: Any, right: Any) -> None:
    """Schemas with different notations of the same types are equal."""
    assert build_schema(left).build_key() == build_schema(right).build_key()


@pytest.mark.parametrize(
    "other",
    [
        ("A", "int"),
        ("a", "long"),
        ("a", {"array": "int"}),
        ("a", ["int", "string"]),
        {"name": "a", "type": "int", "nullable": False},
        {"name": "a", "type": "int", "default": 0},
        {"name": "a", "type": "int", "aliases": ["b"]},
    ],
)
def test_different_schemas(other: Any) -> None:
    """Schemas that differ in case, type, nullability, default or aliases are different."""
    assert build_schema(("a", "int")).build_key() != build_schema(other).build_key()


def test_identity_by_text_compares_characters() -> None:
    """Identity by text compares characters, so white space makes another schema.

    Without a text the fields decide.
    """
    left, right = build_schema(("a", "int"), text="{ }"), build_schema(("a", "int"), text="{}")

    assert left.build_key("text") != right.build_key("text")
    assert left.build_key() == right.build_key() == build_schema(("a", "int")).build_key("text")


@pytest.mark.parametrize(
    ("left", "right", "both"),
    [
        ("int", "long", "long"),
        ("long", "float", "float"),
        ("int", "double", "double"),
        ("uuid", "char", "string"),
        ("decimal(10,2)", "decimal(8,4)", "decimal(12,4)"),
        ("int", "decimal(4,2)", "decimal(12,2)"),
        ("double", "decimal(4,2)", "double"),
        ("int", "string", ["int", "string"]),
        (["int", "string"], "string", ["int", "string"]),
        ({"array": "int"}, {"array": "long"}, {"array": "long"}),
        ({"map": "int"}, {"array": "int"}, [{"map": "int"}, {"array": "int"}]),
        ("void", "timestamp", "timestamp"),
        ("void", ["int", "string"], ["int", "string"]),
        ({"array": "void"}, {"array": {"map": "int"}}, {"array": {"map": "int"}}),
        ({"map": "void"}, {"map": "int"}, {"map": "int"}),
        ({"map": "void"}, _RECORD, _RECORD),
        ("timestamp_nanos", "timestamp", "timestamp"),
        ("timestamp_ntz", "timestamp_ntz_nanos", "timestamp_ntz"),
        ("timestamp", "timestamp_ntz", ["timestamp", "timestamp_ntz"]),
    ],
)
def test_a_union_of_types_holds_both(left: Any, right: Any, both: Any) -> None:
    """A union of types holds both.

    Numbers are widened, texts stay texts, and anything else becomes a choice.
    """
    (field,) = unite_schemas([build_schema(("a", left)), build_schema(("a", right))]).fields

    assert field["type"] == both


def test_only_values_without_type_take_that_of_others() -> None:
    """Other fields keep their types, also if others have wider ones; without others, a word replaces it."""
    first = build_schema(("a", "void"), ("l", {"array": "void"}), ("n", "int"), ("z", "void"))
    other = build_schema(("n", "long"), ("a", "date"), ("l", {"array": "double"}), ("b", "int"))

    completed = replace_void(complete_schema(first, [first, other]), "string")

    assert completed == build_schema(("a", "date"), ("l", {"array": "double"}), ("n", "int"), ("z", "string"))


def test_a_union_keeps_the_first_order_and_matches_by_alias() -> None:
    """The union keeps the first order, with new fields last, and matches fields by alias.

    Fields that only some schemas have are nullable, and nested records are united too.
    """
    left = build_schema(
        {"name": "a", "type": "int", "nullable": False}, ("o", {"fields": [{"name": "x", "type": "int"}]})
    )
    right = build_schema(
        ("n", "string"),
        {"name": "b", "type": "long", "aliases": ["a"], "nullable": False, "default": 5},
        ("o", {"fields": [{"name": "y", "type": "int"}]}),
    )

    united = unite_schemas([left, right])

    assert united.names == ("a", "o", "n")
    assert united.fields[0] == {
        "name": "a",
        "type": "long",
        "nullable": False,
        "default": 5,
        "aliases": ["b"],
    }
    assert [field["name"] for field in united.fields[1]["type"]["fields"]] == ["x", "y"]
    assert united.fields[2]["nullable"] is True
    assert project_record({"b": 7}, united) == {"a": 7, "o": None, "n": None}


def test_a_union_of_nothing_has_no_fields() -> None:
    """A union of no schemas has no fields: a bin always has a source, but its schema may be empty."""
    assert unite_schemas([]) == Schema()
