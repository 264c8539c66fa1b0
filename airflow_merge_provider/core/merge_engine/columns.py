"""The columns of a table: name, type in Spark's JSON form, and nullability."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from airflow_merge_provider.core.run.table_log import Fields

INTEGERS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_DECIMAL_TYPE = re.compile(r"decimal\((\d+),(-?\d+)\)\Z")
_TEXT_TYPE = re.compile(r"(string( collate \w+)?|varchar\(\d+\)|char\(\d+\))\Z")
_NOT_ORDERED = ("array", "map", "struct", "variant", "geometry", "geography", "void")
_SQL = {"byte": "TINYINT", "short": "SMALLINT", "integer": "INT", "long": "BIGINT"}
_TRUE_TYPE = "__CHAR_VARCHAR_TYPE_STRING"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; ``kind`` is a text such as ``integer``, or the object of a nested type."""

    name: str
    kind: Any
    not_null: bool = False

    @property
    def family(self) -> str:
        """The type without its arguments: ``decimal``, ``array``, ``integer``."""
        return find_type_family(self.kind)


def parse_columns(fields: Fields) -> tuple[Column, ...]:
    """Parse the fields of a schema in Spark's JSON; CHAR and VARCHAR are in the metadata of a field.

    Inside lists and structs they are like STRING: the metadata has the whole type as SQL there.

    >>> parse_columns([{"name": "k", "type": "integer", "nullable": False}])
    (Column(name='k', kind='integer', not_null=True),)
    """
    return tuple(
        Column(
            field["name"],
            field["type"] if isinstance(field["type"], Mapping) else _read_true_type(field),
            not field.get("nullable", True),
        )
        for field in fields
    )


def _read_true_type(field: Mapping[str, Any]) -> Any:
    return (field.get("metadata") or {}).get(_TRUE_TYPE, field["type"])


def find_type_family(kind: Any) -> str:
    """Return the type without its arguments.

    >>> find_type_family("decimal(10,2)"), find_type_family({"type": "array", "elementType": "integer"})
    ('decimal', 'array')
    """
    if isinstance(kind, Mapping):
        return str(kind["type"])
    return str(re.split(r"[ (]", kind, maxsplit=1)[0])


def type_text(kind: Any) -> str:
    """Format a type as SQL.

    >>> type_text(
    ...     {"type": "array", "elementType": {"type": "struct", "fields": [{"name": "a", "type": "integer"}]}}
    ... )
    'ARRAY<STRUCT<a: INT>>'
    """
    if not isinstance(kind, Mapping):
        return _SQL.get(kind, str(kind).upper())
    type_arguments = {
        "array": lambda: type_text(kind["elementType"]),
        "map": lambda: f"{type_text(kind['keyType'])}, {type_text(kind['valueType'])}",
        "struct": lambda: ", ".join(
            f"{field['name']}: {type_text(field['type'])}" for field in kind["fields"]
        ),
    }
    return (
        f"{find_type_family(kind).upper()}<{type_arguments[find_type_family(kind)]()}>"
        if find_type_family(kind) in type_arguments
        else str(kind)
    )


def is_ordered(kind: Any) -> bool:
    """Return whether values of a type have an order."""
    return find_type_family(kind) not in _NOT_ORDERED


def is_text(kind: Any) -> bool:
    """Return whether a type is a text type, whatever its length."""
    return isinstance(kind, str) and bool(_TEXT_TYPE.match(kind))


def is_number(kind: Any) -> bool:
    """Return whether a type is numeric."""
    return find_type_family(kind) in {*INTEGERS, "float", "double", "decimal"}


def find_precision(kind: Any) -> tuple[int, int] | None:
    """Return precision and scale of a decimal type, None for any other.

    >>> find_precision("decimal(10,2)")
    (10, 2)
    """
    match = _DECIMAL_TYPE.match(kind) if isinstance(kind, str) else None
    return (int(match[1]), int(match[2])) if match else None


def find_bounds(kind: Any) -> tuple[Decimal, Decimal] | None:
    """Return the least and the greatest number of an exact numeric type, None for any other.

    >>> find_bounds("byte"), find_bounds("decimal(4,2)")
    ((Decimal('-128'), Decimal('127')), (Decimal('-99.99'), Decimal('99.99')))
    """
    if find_type_family(kind) in INTEGERS:
        half = 2 ** (INTEGERS[find_type_family(kind)] - 1)
        return Decimal(-half), Decimal(half - 1)
    digits = find_precision(kind)
    if digits is None:
        return None
    greatest = Decimal(f"{10 ** digits[0] - 1}E-{digits[1]}")
    return greatest.copy_negate(), greatest


def row_fields(kind: Any) -> tuple[str, ...]:
    """Return the names of the fields of a STRUCT."""
    return tuple(field["name"] for field in kind["fields"])


def get_element_type(kind: Any) -> Any:
    """Return the type of the elements of an ARRAY, or of the values of a MAP; None for any other type."""
    return kind.get("elementType", kind.get("valueType")) if isinstance(kind, Mapping) else None
