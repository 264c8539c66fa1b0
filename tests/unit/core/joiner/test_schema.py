"""How types are written, and which of them can be compared."""

from __future__ import annotations

import pytest

from airflow_merge_provider.core.joiner.schema import Field, is_comparable, parse_fields, same_key, type_of


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
    """Spark's names and the documents' are one; names inside a struct stay as they are."""
    assert type_of(written) == canonical
    assert type_of(canonical) == canonical


@pytest.mark.parametrize("written", ["map<int>", "struct<int>", "array<int,int>"])
def test_a_type_without_its_parts_is_refused(written: str) -> None:
    """With its text."""
    with pytest.raises(ValueError, match="unknown type"):
        type_of(written)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"a": "int", "b": "string?"}, (Field("a", "int", False), Field("b", "string", True))),
        ([["a", "int", False], ["b", "string"]], (Field("a", "int", False), Field("b", "string", True))),
        ([{"name": "a", "type": "int", "nullable": False}], (Field("a", "int", False),)),
    ],
)
def test_a_schema_has_several_forms(written: object, expected: object) -> None:
    """They give the same fields."""
    assert parse_fields(written) == expected


@pytest.mark.parametrize(
    "written", ["a int", 5, [["a"]], [["", "int"]], [["a", "int", "no"]], {"a": "number"}]
)
def test_what_is_no_schema_is_refused(written: object) -> None:
    """As a whole or in a field."""
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
    """However deep it stands."""
    assert is_comparable(kind) is expected


def test_decimals_of_any_size_are_one_key() -> None:
    """They compare by value; nothing else is widened."""
    assert same_key("decimal(10,2)", "decimal(12,4)")
    assert not same_key("int", "long")
    assert not same_key("decimal(10,0)", "int")
