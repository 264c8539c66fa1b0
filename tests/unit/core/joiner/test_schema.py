"""Tests of the notations of types, and of which types can be compared."""

from __future__ import annotations

import pytest

from airflow_merge_provider.core.joiner.schema import (
    Field,
    normalize_type,
    parse_fields,
)
from airflow_merge_provider.core.schema.key_types import is_comparable


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("BigInt", "long"),
        ("binary", "bytes"),
        ("decimal", "decimal(10,0)"),
        ("Decimal( 12 , 4 )", "decimal(12,4)"),
        ("array< map<string, bigint> >", "array<map<string,long>>"),
        ("struct<A:int,`b,c`:array<struct<d:binary>>>", "struct<A:int,`b,c`:array<struct<d:bytes>>>"),
        ("struct<>", "struct<>"),
        ("interval day to second", "interval day to second"),
    ],
)
def test_a_type_has_one_spelling(written: str, canonical: str) -> None:
    """Type names of Spark and of the documentation are normalised to one.

    Names inside a struct do not change.
    """
    assert normalize_type(written) == canonical
    assert normalize_type(canonical) == canonical


@pytest.mark.parametrize("written", ["map<int>", "struct<int>", "array<int,int>"])
def test_a_type_without_its_parts_is_refused(written: str) -> None:
    """A type without its parameters is rejected, and the error quotes the text."""
    with pytest.raises(ValueError, match="unknown type"):
        normalize_type(written)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"a": "int", "b": "string?"}, (Field("a", "int", False), Field("b", "string", True))),
        ([["a", "int", False], ["b", "string"]], (Field("a", "int", False), Field("b", "string", True))),
        ([{"name": "a", "type": "int", "nullable": False}], (Field("a", "int", False),)),
    ],
)
def test_a_schema_has_several_forms(written: object, expected: object) -> None:
    """All notations of a schema give the same fields."""
    assert parse_fields(written) == expected


@pytest.mark.parametrize(
    "written", ["a int", 5, [["a"]], [["", "int"]], [["a", "int", "no"]], {"a": "number"}]
)
def test_what_is_no_schema_is_refused(written: object) -> None:
    """An invalid schema is rejected, as a whole or by field."""
    with pytest.raises(ValueError, match=r"."):
        parse_fields(written)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("struct<a:int,b:array<string>>", True),
        ("struct<a:int,b:array<map<string,int>>>", False),
        ("variant", False),
        ("interval", False),
        ("interval day to second", True),
    ],
)
def test_nothing_that_holds_a_map_can_be_compared(kind: str, expected: bool) -> None:
    """A type that contains a map at any depth cannot be compared."""
    assert is_comparable(kind) is expected
