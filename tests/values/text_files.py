"""Values of each type as people write them in CSV, JSON and XML, and texts that no value of a type equals."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any
from xml.sax.saxutils import escape

import pyarrow as pa

from tests.values.catalog import SIMPLE, Kind

_FIRST_PRINTABLE = 0x20
# Texts that are no value of a type, in every format.
_BEYOND: dict[str, tuple[str, ...]] = {
    "boolean": ("1", "yes", "t"),
    "tinyint": ("128", "-129", "1.0", "1e1"),
    "smallint": ("32768", "1.0", "1e1"),
    "int": ("2147483648", "1.0", "1e3", "0x1"),
    "bigint": ("9223372036854775808", "1.0", "1e3"),
    "float": ("1e39", "-1e39", "1e-50", "16777217", "1.5f"),
    "double": ("1e400", "-1e400", "1e-400", "9007199254740993", "123456789012345678901", "1.5d"),
    "decimal_5_2": ("1.239", "0.001", "1234.5", "1e400", "1,5"),
    "decimal_20_0": ("0.5", "100000000000000000000", "1e-1"),
    "decimal_38_0": ("0.5", f"1{'0' * 38}", f"{'9' * 38}.4"),
    "decimal_38_18": (f"0.{'0' * 18}1", f"1{'0' * 20}", f"1.{'0' * 30}1"),
    "date": ("2024-05-01T10:00:00", "2023-02-29", "2024-05", "20240501", "2024-05-01 00:00:00"),
    "timestamp": ("2024-05-01T00:00:00.1234567Z", "2024-05-01T24:00:01Z", "10:00:00", "1714521600",
                  "2024-03-10T02:30:00 America/Los_Angeles", "2024-02-30"),
    "timestamp_ntz": ("2024-05-01T00:00:00.1234567", "2024-05-01T00:00:00Z", "2024-05-01T00:00:00+02:00",
                      "10:00:00"),
    "binary": ("A?",),
}  # fmt: skip
# Texts that a STRING takes as they are, also if they are numbers of JSON.
_ANY = ("1.10", "1e400", "007", f"{'9' * 40}.{'1' * 40}", "2024-05-01T00:00:00.123456789Z")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_SIMPLE = {kind.name: kind for kind in SIMPLE}


def find_leaf(kind: Kind) -> Kind:
    """Return the simple kind that a kind has inside, whose name ends with it."""
    parts = kind.name.split("_")
    names = ("_".join(parts[start:]) for start in range(len(parts)))
    return next(_SIMPLE[name] for name in names if name in _SIMPLE)


def list_texts_beyond(kind: Kind) -> tuple[str, ...]:
    """Return texts that are no value of a kind; if it is nested, one for the kind inside it."""
    leaf = find_leaf(kind)
    texts = _BEYOND.get(leaf.name, _ANY)
    return texts if leaf is kind else texts[:1]


def format_record(
    format_name: str, name: str, kinds: Sequence[Kind], row: Mapping[str, Any], text: str | None = None
) -> str:
    """Return a file of one record, in which ``f`` is its name.

    :param text: replaces each simple value of the kinds.
    """
    if format_name == "csv":
        cells = (_format_cell(row.get(kind.name), text) for kind in kinds)
        return f"{','.join(['f', *(kind.name for kind in kinds)])}\n{','.join([name, *cells])}\n"
    if format_name == "json":
        members = (f'"{kind.name}": {_format_json(row.get(kind.name), kind.arrow, text)}' for kind in kinds)
        return f'{{"f": "{name}", {", ".join(members)}}}\n'
    elements = (_format_xml(kind.name, row.get(kind.name), kind.arrow, text) for kind in kinds)
    return f"<rows><r><f>{name}</f>{''.join(elements)}</r></rows>"


def select_value(format_name: str, value: Any) -> Any:
    """Return a value without what the format cannot hold; None if nothing is left of it."""
    if format_name == "json":
        return value
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        # Keys of maps are the names of elements.
        items = [("k", select_value(format_name, item)) for _, item in value[:1]]
        return [(key, item) for key, item in items if item is not None] or None
    if isinstance(value, list):
        return [
            item for item in (select_value(format_name, one) for one in value) if item is not None
        ] or None
    if isinstance(value, dict):
        members = {name: select_value(format_name, item) for name, item in value.items()}
        return members if any(item is not None for item in members.values()) else None
    if isinstance(value, bytes):
        return value if value.isascii() and b"\0" not in value else None
    return None if isinstance(value, str) and any(_is_lost(format_name, char) for char in value) else value


def is_same(left: Any, right: Any) -> bool:
    """Return whether two values are equal; NaN equals itself."""
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(is_same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(is_same(left[name], right[name]) for name in left)
    return type(left) is type(right) and bool(left == right)


def format_text(value: Any) -> str:
    """Return a simple value as a text."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, bool | float):
        return json.dumps(value)
    if isinstance(value, Decimal):
        return f"{value:f}"
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _format_cell(value: Any, text: str | None) -> str:
    if value is None:
        return ""
    written = format_text(value) if text is None else text
    is_quoted = isinstance(value, str | bytes) or "," in written
    return '"' + written.replace('"', '""') + '"' if is_quoted else written


def _format_json(value: Any, arrow: pa.DataType | None, text: str | None) -> str:
    if value is None or arrow is None:
        return "null"
    if pa.types.is_list(arrow):
        return f"[{', '.join(_format_json(item, arrow.value_type, text) for item in value)}]"
    if pa.types.is_struct(arrow):
        texts = {"v": text}
        members = (
            f'"{one.name}": {_format_json(value[one.name], one.type, texts.get(one.name))}' for one in arrow
        )
        return f"{{{', '.join(members)}}}"
    if pa.types.is_map(arrow):
        entries = (f"{json.dumps(key)}: {_format_json(item, arrow.item_type, text)}" for key, item in value)
        return f"{{{', '.join(entries)}}}"
    if text is not None:
        return text if _NUMBER.fullmatch(text) else json.dumps(text)
    if isinstance(value, bytes):
        return json.dumps(base64.b64encode(value).decode())
    written = format_text(value)
    return written if isinstance(value, bool | int | float | Decimal) else json.dumps(written)


def _format_xml(name: str, value: Any, arrow: pa.DataType | None, text: str | None) -> str:
    if value is None or arrow is None:
        return ""
    if pa.types.is_list(arrow):
        return "".join(_format_xml(name, item, arrow.value_type, text) for item in value)
    if pa.types.is_struct(arrow):
        texts = {"v": text}
        members = (_format_xml(one.name, value[one.name], one.type, texts.get(one.name)) for one in arrow)
        return f"<{name}>{''.join(members)}</{name}>"
    if pa.types.is_map(arrow):
        return (
            f"<{name}>{''.join(_format_xml('k', item, arrow.item_type, text) for _, item in value)}</{name}>"
        )
    written = format_text(value) if text is None else text
    return f"<{name}>{escape(written, {chr(13): '&#13;'})}</{name}>"


def _is_lost(format_name: str, char: str) -> bool:
    if format_name == "csv":
        return char == "\0"
    return (ord(char) < _FIRST_PRINTABLE and char not in "\t\n\r") or char in "\ufffe\uffff"
