"""The schema of a join's tables, also from a CDAP pipeline: ordered fields, types with one spelling each.

Types are written as in CDAP: ``long`` and ``bytes`` where Spark has bigint and binary; both spellings are
accepted. Source: docs/semantics/joiner.md, Types.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_merge_provider.core.run.table_log import Fields
from airflow_merge_provider.core.schema.key_types import PART_COUNTS, show_identifier, split_type

_TYPE_ALIASES = {
    "bigint": "long",
    "binary": "bytes",
    "bool": "boolean",
    "dec": "decimal",
    "integer": "int",
    "numeric": "decimal",
    "real": "float",
    "smallint": "short",
    "timestamp_ltz": "timestamp",
    "tinyint": "byte",
}
_ATOMS = frozenset({
    "boolean", "byte", "bytes", "date", "decimal", "double", "float", "int", "long", "short", "string",
    "timestamp", "timestamp_ntz", "variant",
})  # fmt: skip
# Spark's metadata of a column with the type that was declared, such as char(5), in place of string.
_SIZED_TYPE = "__CHAR_VARCHAR_TYPE_STRING"
_SCHEMA_FORM = "must be a list of [name, type, nullable] or an object of name: type"
_FIELD_PARTS_MIN, _FIELD_PARTS_MAX = 2, 3


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a table: its name, its type, and whether it is nullable."""

    name: str
    type: str
    nullable: bool = True
    # The type of a CHAR or VARCHAR column, which is a string for everything but keys.
    sized_type: str | None = field(default=None, repr=False)

    @property
    def key_type(self) -> str:
        """The type by which values of the field are compared as a key."""
        return self.sized_type or self.type

    def as_list(self) -> list[Any]:
        """Return the field as schemas show it: name, type, nullable."""
        return [self.name, self.type, self.nullable]


Schema = tuple[Field, ...]
Schemas = Mapping[str, Schema]


def parse_fields(written: Any) -> Schema:
    """Parse a schema as users write it.

    Either ``{"id": "int", "name": "string?"}`` or ``[["id", "int", False], …]``. In a mapping, a trailing
    ``?`` makes the field nullable; in a list, a missing third part does.

    >>> parse_fields({"id": "bigint", "name": "string?"})[0]
    Field(name='id', type='long', nullable=False)

    :raises ValueError: when it is something else, or has a type that does not exist.
    """
    if isinstance(written, Mapping):
        pairs = [(name, str(kind)) for name, kind in written.items()]
        return tuple(_parse_field(name, kind.removesuffix("?"), kind.endswith("?")) for name, kind in pairs)
    if isinstance(written, str) or not isinstance(written, Sequence):
        raise ValueError(_SCHEMA_FORM)  # noqa: TRY004 - pydantic reads it
    return tuple(_from_entry(entry) for entry in written)


def parse_table_fields(fields: Fields) -> Schema:
    """Return the columns of a table, given in Spark's JSON form, as a schema.

    >>> parse_table_fields([{"name": "id", "type": "integer", "nullable": False}])
    (Field(name='id', type='int', nullable=False),)
    """
    return tuple(
        Field(
            column["name"],
            format_json_type(column["type"]),
            column.get("nullable", True),
            (column.get("metadata") or {}).get(_SIZED_TYPE),
        )
        for column in fields
    )


def format_json_type(kind: Any) -> str:
    """Return the canonical spelling of a type in Spark's JSON form."""
    if not isinstance(kind, Mapping):
        return normalize_type(str(kind))
    if kind["type"] == "array":
        return f"array<{format_json_type(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{format_json_type(kind['keyType'])},{format_json_type(kind['valueType'])}>"
    if kind["type"] != "struct":
        return normalize_type(str(kind["type"]))
    parts = (
        f"{show_identifier(field['name'])}:{format_json_type(field['type'])}" for field in kind["fields"]
    )
    return f"struct<{','.join(parts)}>"


def normalize_type(written: str) -> str:
    """Return the canonical spelling of a type; a text that is not a type is returned unchanged.

    >>> normalize_type("STRUCT<a: BIGINT, `b c`: decimal(5, 2)>")
    'struct<a:long,`b c`:decimal(5,2)>'

    :raises ValueError: when brackets or names are missing.
    """
    kind, inner = split_type(written)
    if kind == "struct":
        return format_struct(inner)
    if kind in PART_COUNTS:
        return f"{kind}<{','.join(normalize_type(part_type) for _, part_type in inner)}>"
    name, bracket, size = kind.partition("(")
    name = _TYPE_ALIASES.get(name, name)
    return f"{name}(10,0)" if kind == "decimal" else f"{name}{bracket}{size}"


def format_struct(inner: Iterable[tuple[str, str]]) -> str:
    """Format the type of a struct of (name, type) pairs; a name that is not a word is put in backticks."""
    return f"struct<{','.join(f'{show_identifier(name)}:{normalize_type(kind)}' for name, kind in inner)}>"


def _from_entry(entry: Any) -> Field:
    if isinstance(entry, Mapping):
        entry = [entry.get("name"), entry.get("type"), entry.get("nullable", True)]
    if (
        isinstance(entry, str)
        or not isinstance(entry, Sequence)
        or len(entry) not in {_FIELD_PARTS_MIN, _FIELD_PARTS_MAX}
    ):
        raise ValueError(f"{entry!r} is not a valid field: write [name, type, nullable]")
    name, kind, nullable = (*entry, True)[:_FIELD_PARTS_MAX]
    return _parse_field(name, kind, nullable)


def _parse_field(name: Any, kind: Any, nullable: Any) -> Field:
    if not isinstance(name, str) or not name or not isinstance(kind, str) or not isinstance(nullable, bool):
        raise ValueError(f"{[name, kind, nullable]!r} is not a valid field: write [name, type, nullable]")
    canonical = normalize_type(kind)
    if not _is_known_type(canonical):
        raise ValueError(
            f"unknown type {kind.strip()!r} of {name!r}: use one of"
            f" {', '.join(sorted({*_ATOMS, *PART_COUNTS, 'struct'}))}"
        )
    return Field(name, canonical, nullable)


def _is_known_type(kind: str) -> bool:
    name, inner = split_type(kind)
    is_known = name in PART_COUNTS or name == "struct" or name.partition("(")[0] in _ATOMS
    return is_known and all(_is_known_type(part_type) for _, part_type in inner)


_PLAIN_NAMES = frozenset({"boolean", "int", "long", "float", "double", "string", "bytes"})
_LOGICAL_TYPES = {
    "date": "date",
    "datetime": "timestamp_ntz",
    "timestamp-micros": "timestamp",
    "timestamp-millis": "timestamp",
}


def is_record(written: Any) -> bool:
    """Return whether a schema is written as an Avro record, either as a text or as an object."""
    if isinstance(written, str):
        return written.lstrip().startswith("{")
    return isinstance(written, Mapping) and written.get("type") == "record" and "fields" in written


def from_record(written: str | Mapping[str, Any]) -> Schema:
    """Parse the fields of an Avro record.

    >>> from_record('{"type": "record", "name": "r", "fields": [{"name": "id", "type": ["int", "null"]}]}')
    (Field(name='id', type='int', nullable=True),)

    :raises ValueError: when it is no JSON, no record, or holds a type that no table has.
    """
    record = _parse_json(written) if isinstance(written, str) else written
    if not is_record(record):
        raise ValueError('is not a valid Avro record (write {"type": "record", "fields": […]})')
    return parse_fields([[name, *_read_type(kind)] for name, kind in _list_fields(record)])


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"is not valid JSON ({error})") from None


def _list_fields(record: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    listed = record["fields"]
    if not isinstance(listed, list) or not all(isinstance(field, Mapping) for field in listed):
        raise ValueError("the fields of a record must be a list of objects with name and type")
    return [(field.get("name"), field.get("type")) for field in listed]


def _read_type(avro_type: Any) -> tuple[str, bool]:
    """Return a type and whether it is nullable."""
    if isinstance(avro_type, list):
        non_null_types = [member for member in avro_type if member != "null"]
        if len(non_null_types) != 1:
            raise ValueError(
                f'unknown type {json.dumps(avro_type)}: a union must have exactly one type and "null"'
            )
        return _read_type(non_null_types[0])[0], len(non_null_types) < len(avro_type)
    if isinstance(avro_type, Mapping):
        return _read_nested_type(avro_type), False
    if avro_type not in _PLAIN_NAMES:
        raise ValueError(
            f"unknown type {json.dumps(avro_type)} (valid types: {', '.join(sorted(_PLAIN_NAMES))})"
        )
    return str(avro_type), False


def _read_nested_type(avro_type: Mapping[str, Any]) -> str:
    kind, logical = avro_type.get("type"), avro_type.get("logicalType")
    if logical == "decimal":
        return f"decimal({avro_type.get('precision', 10)},{avro_type.get('scale', 0)})"
    if logical is not None:
        if logical not in _LOGICAL_TYPES:
            raise ValueError(
                f"unknown logical type {json.dumps(logical)} "
                f"(valid types: decimal, {', '.join(_LOGICAL_TYPES)})"
            )
        return _LOGICAL_TYPES[logical]
    if kind == "enum":
        return "string"
    if kind == "array":
        return f"array<{_read_type(avro_type.get('items'))[0]}>"
    if kind == "map":
        return (
            f"map<{_read_type(avro_type.get('keys', 'string'))[0]},{_read_type(avro_type.get('values'))[0]}>"
        )
    if is_record(avro_type):
        return format_struct(
            (str(name), _read_type(field_type)[0]) for name, field_type in _list_fields(avro_type)
        )
    return _read_type(kind)[0]
