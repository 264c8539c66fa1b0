"""Types as text, such as ``struct<id:bigint,tags:array<string>>``, and their parts."""

from __future__ import annotations

import re
from collections.abc import Iterator

# How many types each kind of container is made of.
PART_COUNTS = {"array": 1, "map": 2}
# Spark has the file of each row in a column of this name, and Delta cannot change rows that have their own.
FILE_METADATA = "_metadata"
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_NESTED_TYPE = re.compile(r"(array|map|struct)\s*<(.*)>\Z", re.IGNORECASE | re.DOTALL)
_INCOMPARABLE_TYPES = frozenset({"map", "variant", "interval", "geometry", "geography"})


def show_identifier(name: str) -> str:
    """Return a name as SQL that users are shown has it: in backticks if it is not a plain word.

    >>> show_identifier("id"), show_identifier("a.b`c")
    ('id', '`a.b``c`')
    """
    return name if _PLAIN_NAME.match(name) else f"`{name.replace('`', '``')}`"


def split_type(written: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the outermost kind of a type, and the names and types of its parts."""
    nested = _NESTED_TYPE.match(written.strip())
    if nested is None:
        type_text = " ".join(written.lower().split())
        return re.sub(r" ?([(),]) ?", r"\1", type_text), []
    kind, text = nested[1].lower(), nested[2]
    if kind == "struct":
        return kind, [_split_field(part) for part in _split_list(text) if part.strip()]
    inner = list(_split_list(text))
    if len(inner) != PART_COUNTS[kind]:
        raise ValueError(f"unknown type {written.strip()!r}: write array<type> or map<type,type>")
    return kind, [("", part) for part in inner]


def _split_field(text: str) -> tuple[str, str]:
    """Split a struct field ``name:type``, where the name may be in backticks."""
    quoted = re.match(r"\s*`((?:[^`]|``)+)`\s*:?(.*)\Z", text, re.DOTALL)
    if quoted:
        return quoted[1].replace("``", "`"), quoted[2]
    name, colon, kind = text.partition(":")
    if not colon:
        raise ValueError(f"unknown type {text.strip()!r} in a struct: write struct<name:type>")
    return name.strip(), kind


def _split_list(text: str) -> Iterator[str]:
    """Split at the commas that are outside brackets and backticks."""
    depth, start, quoted = 0, 0, False
    for position, char in enumerate(text):
        quoted ^= char == "`"
        if quoted:
            continue
        depth += (char in "<(") - (char in ">)")
        if char == "," and not depth:
            yield text[start:position]
            start = position + 1
    yield text[start:]


def is_comparable(kind: str) -> bool:
    """Return whether values of a type can be compared: types that contain a map or a variant cannot.

    >>> is_comparable("array<map<string,int>>"), is_comparable("struct<map:int>")
    (False, True)
    """
    name, inner = split_type(kind)
    return name.partition("(")[0] not in _INCOMPARABLE_TYPES and all(
        is_comparable(part_type) for _, part_type in inner
    )
