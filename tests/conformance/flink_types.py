"""Conversion of a vector's type texts: ``ARRAY<ROW<a INT>>`` becomes the JSON of a Spark type."""

from __future__ import annotations

import re
from typing import Any

_PLAIN = {
    "TINYINT": "byte",
    "SMALLINT": "short",
    "INT": "integer",
    "INTEGER": "integer",
    "BIGINT": "long",
    "FLOAT": "float",
    "DOUBLE": "double",
    "BOOLEAN": "boolean",
    "STRING": "string",
    "BYTES": "binary",
    "BINARY": "binary",
    "VARBINARY": "binary",
    "DATE": "date",
    "TIMESTAMP": "timestamp_ntz",
    "TIMESTAMP_LTZ": "timestamp",
    "VARIANT": "variant",
}
_ROW_FIELD = re.compile(r"`?(\w+)`?\s+(.+)", re.DOTALL)


def parse_column(name: str, text: str) -> dict[str, Any]:
    """Return a field of a schema as Spark writes it in JSON."""
    kind, nullable = text.strip(), True
    if kind.upper().endswith("NOT NULL"):
        kind, nullable = kind[: -len("NOT NULL")].strip(), False
    # Spark has no binary type of fixed length: use the metadata that marks texts of fixed length.
    sized = re.match(r"((VAR)?CHAR|BINARY)\(", kind)
    metadata = {"__CHAR_VARCHAR_TYPE_STRING": kind.lower()} if sized else {}
    return {"name": name, "type": spark_type(kind), "nullable": nullable, "metadata": metadata}


def spark_type(text: str) -> Any:
    """Return the JSON of the Spark type for a type text."""
    word, _, inside = text.strip().partition("<")
    word, inside = word.strip().upper(), inside.rstrip()[:-1]
    if word == "ARRAY":
        return {"type": "array", "elementType": spark_type(inside), "containsNull": True}
    if word in {"MAP", "MULTISET"}:
        key, value = split_types(inside) if word == "MAP" else (inside, "INT")
        kinds = {"keyType": spark_type(key), "valueType": spark_type(value)}
        return {"type": "map", **kinds, "valueContainsNull": True}
    if word in {"ROW", "STRUCT"}:
        fields = [_ROW_FIELD.match(part.strip()) for part in split_types(inside)]
        return {"type": "struct", "fields": [parse_column(field[1], field[2]) for field in fields if field]}
    if word.startswith(("VARCHAR", "CHAR")):
        return "string"
    if word.startswith("DECIMAL"):
        return word.lower().replace(" ", "")
    return _PLAIN[re.sub(r"\(.*\)", "", word)]


def split_types(inside: str) -> list[str]:
    """Split a text at the commas outside brackets."""
    types, depth = [""], 0
    for char in inside:
        depth += (char in "<(") - (char in ">)")
        if char == "," and not depth:
            types.append("")
        else:
            types[-1] += char
    return types
