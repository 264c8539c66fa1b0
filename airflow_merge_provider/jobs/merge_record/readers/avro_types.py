"""The fields of Avro files.

Source: docs/semantics/merge_record.md, Types of files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_merge_provider.core.merge_record.schema import Field, Schema, Type
from airflow_merge_provider.jobs.spark.files.container_files import find_avro_problem
from airflow_merge_provider.jobs.spark.files.file_problem import UnreadableError

_PLAIN = {"enum": "string", "fixed": "bytes"}
_LOGICAL = {
    "date": "date",
    "uuid": "uuid",
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
    "local-timestamp-millis": "timestamp_ntz",
    "local-timestamp-micros": "timestamp_ntz",
}
# The types of unions with these types, of which Spark reads only those with the wider one.
_WIDENED = {"int": "long", "float": "double"}
# Spark's own name of a type that it writes as a number.
_CATALYST = "spark.sql.catalyst.type"


def convert_avro_schema(schema: Any, text: str) -> Schema:
    """Return the fields of an Avro file.

    :param schema: the parsed schema of its records.
    :param text: the schema as it is in the file.
    :raises UnreadableError: if Spark cannot read a type, with the name of the field.
    """
    if not isinstance(schema, Mapping) or schema.get("type") != "record":
        raise UnreadableError("its Avro schema is not a record (write records)")
    if not schema["fields"]:
        raise UnreadableError("its Avro record has no fields (write a field)")
    if problem := find_avro_problem(schema):
        raise UnreadableError(problem)
    return Schema(tuple(_AvroTypes().convert_record(schema, "")), text)


class _AvroTypes:
    """Converts types that Spark reads; a named type is defined once and then used by its name."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}

    def convert_record(self, record: Mapping[str, Any], path: str) -> list[Field]:
        """Return the fields of a record."""
        self._named[record["name"]] = record
        return [self._convert_field(field, path) for field in record["fields"]]

    def _convert_field(self, field: Mapping[str, Any], path: str) -> Field:
        kind, is_nullable = self._convert_type(field["type"], f"{path}.{field['name']}".removeprefix("."))
        written = {"name": field["name"], "type": kind, "nullable": is_nullable}
        return written | {name: field[name] for name in ("default", "aliases") if field.get(name)}

    def _convert_type(self, kind: Any, path: str) -> tuple[Type, bool]:
        """Return the schema type of an Avro type, and whether it is nullable."""
        if isinstance(kind, Sequence) and not isinstance(kind, str):
            kinds = [self._convert_type(member, path)[0] for member in kind if member != "null"]
            return _WIDENED.get(kinds[0], kinds[0]) if len(kinds) > 1 else kinds[0], "null" in kind
        if isinstance(kind, str):
            return (
                self._convert_type(self._named[kind], path)
                if kind in self._named
                else (_PLAIN.get(kind, kind), False)
            )
        if str(kind.get(_CATALYST, "")).startswith("interval"):
            raise UnreadableError(
                f"field {path!r} has the type {kind[_CATALYST]} of Spark (write it as text, "
                "or as a number with its unit in the name)"
            )
        if "name" in kind:
            self._named[kind["name"]] = kind
        if logical := kind.get("logicalType"):
            return self._convert_logical(kind, logical, path), False
        if kind["type"] == "record":
            return {"fields": self.convert_record(kind, path)}, False
        if kind["type"] == "array":
            return {"array": self._convert_type(kind["items"], f"{path}.element")[0]}, False
        if kind["type"] == "map":
            return {"map": self._convert_type(kind["values"], f"{path}.value")[0]}, False
        return self._convert_type(kind["type"], path)

    def _convert_logical(self, kind: Mapping[str, Any], logical: str, path: str) -> Type:
        if logical == "decimal":
            return f"decimal({kind['precision']},{kind.get('scale', 0)})"
        if kind["type"] == "fixed":
            return "bytes"
        return _LOGICAL[logical] if logical in _LOGICAL else self._convert_type(kind["type"], path)[0]
