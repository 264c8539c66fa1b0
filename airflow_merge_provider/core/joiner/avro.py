"""Parsing of the schemas of CDAP pipelines: Avro records as JSON, where a union with null is nullable.

Source: docs/semantics/joiner.md, Types.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_merge_provider.core.joiner.schema import Schema, format_struct, parse_fields

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
