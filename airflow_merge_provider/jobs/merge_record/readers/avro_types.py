"""The fields of Avro files.

Source: docs/semantics/merge_record.md, Types of files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_merge_provider.core.merge_record.schema import Field, Schema, Type
from airflow_merge_provider.jobs.spark.files.container_files import AVRO_UNREADABLE
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
# Unions of these types that Spark reads as the last one.
_WIDENED = (("int", "long"), ("float", "double"))
_DECIMAL_MAX_DIGITS = 38
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
    return Schema(tuple(_AvroTypes().convert_record(schema, "")), text)


class _AvroTypes:
    """Converts types; a named type is defined once and then used by its name."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._open: set[str] = set()

    def convert_record(self, record: Mapping[str, Any], path: str) -> list[Field]:
        """Return the fields of a record.

        :raises UnreadableError: if the record contains itself.
        """
        name = record["name"]
        if name in self._open:
            raise UnreadableError(
                f"field {path!r}: the record {name} contains itself, which Spark cannot read "
                "(write records that do not contain themselves)"
            )
        self._named[name] = record
        self._open.add(name)
        fields = [self._convert_field(field, path) for field in record["fields"]]
        self._open.discard(name)
        return fields

    def _convert_field(self, field: Mapping[str, Any], path: str) -> Field:
        kind, is_nullable = self._convert_type(field["type"], f"{path}.{field['name']}".removeprefix("."))
        written = {"name": field["name"], "type": kind, "nullable": is_nullable}
        return written | {name: field[name] for name in ("default", "aliases") if field.get(name)}

    def _convert_type(self, kind: Any, path: str) -> tuple[Type, bool]:
        """Return the schema type of an Avro type, and whether it is nullable."""
        if isinstance(kind, Sequence) and not isinstance(kind, str):
            return self._convert_union(kind, path), "null" in kind
        if kind == "null":
            raise UnreadableError(
                f"field {path!r} has the type null, which Spark cannot read (write it as another type)"
            )
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

    def _convert_union(self, members: Sequence[Any], path: str) -> Type:
        values = [member for member in members if member != "null"] or members
        kinds = [self._convert_type(member, path)[0] for member in values]
        if len(kinds) == 1:
            return kinds[0]
        names = [kind if isinstance(kind, str) else next(iter(kind)) for kind in kinds]
        if widened := next((wide for wide in _WIDENED if set(names) == set(wide)), None):
            return widened[-1]
        names = ["record" if name == "fields" else name for name in names]
        raise UnreadableError(
            f"field {path!r} is a union of {' and '.join(names)}, which Spark cannot read as "
            "one column (write one type, or a record)"
        )

    def _convert_logical(self, kind: Mapping[str, Any], logical: str, path: str) -> Type:
        if logical == "decimal":
            if kind["precision"] <= _DECIMAL_MAX_DIGITS:
                return f"decimal({kind['precision']},{kind.get('scale', 0)})"
            raise UnreadableError(
                f"field {path!r} is a decimal of {kind['precision']} digits, and Spark has up to "
                f"{_DECIMAL_MAX_DIGITS} (write it as text)"
            )
        if logical in AVRO_UNREADABLE:
            raise UnreadableError(
                f"field {path!r} has the type {logical}, which Spark cannot read ({AVRO_UNREADABLE[logical]})"
            )
        if kind["type"] == "fixed":
            return "bytes"
        return _LOGICAL[logical] if logical in _LOGICAL else self._convert_type(kind["type"], path)[0]
