"""The equality and union of schemas, and the fields of an output.

A schema is a list of fields ``{"name", "type", "nullable", "default", "aliases"}``. A type is a word
(``int``, ``decimal(10,2)``), ``{"fields": […]}`` for a record, ``{"array": type}``, ``{"map": type}``, or a
list of types for a choice. The type ``void`` is that of values of which a file has none: its field has only
NULLs, or its lists are empty. Source: docs/semantics/merge_record.md, Schema identity; Schema union.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from airflow_merge_provider.core.merge_record.stored import Stored

Field = Mapping[str, Any]
Type = Any

# Types that Avro does not distinguish: the derived schema text has one word for them.
_AVRO_TYPES = {"byte": "int", "short": "int", "char": "string", "bigint": "string"}
_NUMBER_NAMES = ("int", "long", "float", "double")
_TEXT_NAMES = ("string", "char", "uuid", "bigint")
_DECIMAL_WITH_BLANKS = re.compile(r"decimal\((\d+),\s*(\d+)\)")
_FIELDLESS = ("json", "json-array")
# The types that files of a format cannot hold.
_UNWRITABLE = {
    "csv": ("record", "array", "map", "bytes", "variant"),
    "avro": ("map with keys that are not text", "variant"),
    "xml": ("map with keys that are not text", "variant", "bytes"),
    "orc": ("variant",),
}
# The names that files of a format can have for a field.
NAME_PATTERNS = {"avro": "^[A-Za-z_][A-Za-z0-9_]*$", "xml": r"^[A-Za-z_][\w.-]*$"}
_DIGITS_OF_TYPES = {"int": 10, "long": 19}
_DECIMAL_MAX_DIGITS = 38
VOID = "void"
# An object without members is one of a record with any fields.
NO_MEMBERS: Type = {"map": VOID}
# A time that is stored in nanoseconds becomes one in microseconds.
_NANOS = "_nanos"


@dataclass(frozen=True, slots=True)
class Schema(Stored):
    """The fields of a FlowFile's records, and the schema text that they come from, if there is one."""

    optional: ClassVar[tuple[str, ...]] = ("text",)
    fields: tuple[Field, ...] = ()
    text: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fields, in order."""
        return tuple(str(field["name"]) for field in self.fields)

    def build_key(self, identity: str = "canonical") -> str:
        """Return a key that is equal for equal schemas: of the fields, or of the text for identity ``text``.

        Two schemas with identity ``canonical`` are compared by their fields.
        """
        if identity == "text" and self.text is not None:
            return f"text:{_hash_text(self.text)}"
        return _hash_text(json.dumps(normalize_type({"fields": self.fields}), sort_keys=True))


def normalize_type(kind: Type) -> Type:
    """Return a canonical form of a type: equal types have equal forms.

    >>> normalize_type("short"), normalize_type({"fields": [{"name": "x", "type": "byte"}]})
    ('int', {'fields': [{'name': 'x', 'type': 'int', 'nullable': True}]})
    """
    if isinstance(kind, str):
        word = kind.replace(" ", "").lower()
        return _AVRO_TYPES.get(word, word)
    if isinstance(kind, Mapping) and "fields" in kind:
        return {"fields": [_canonical_field(field) for field in kind["fields"]]}
    if isinstance(kind, Mapping):
        return {name: normalize_type(inner) for name, inner in kind.items()}
    if isinstance(kind, Sequence):
        return [normalize_type(inner) for inner in kind]
    return kind


def unite_schemas(schemas: Iterable[Schema]) -> Schema:
    """Return the schema that can hold the records of all schemas: the first one's fields, then new ones.

    A field that only some schemas have becomes nullable, numbers are widened, and incompatible types become a
    choice.
    """
    merged: Schema | None = None
    for schema in schemas:
        merged = schema if merged is None else Schema(tuple(_union_fields(merged.fields, schema.fields)))
    return merged or Schema()


def complete_schema(schema: Schema, other_schemas: Iterable[Schema]) -> Schema:
    """Return a schema with the types of other schemas for the values of which its file has none."""
    united_types = {field["name"]: field["type"] for field in unite_schemas([schema, *other_schemas]).fields}
    fields = (
        {**field, "type": united_types[field["name"]]} if VOID in _list_words(field["type"]) else field
        for field in schema.fields
    )
    return replace(schema, fields=tuple(fields))


def find_unwritable_field(schema: Schema, format_name: str) -> str | None:
    """Return why files of a format cannot hold records of a schema, with the field; or None."""
    if not schema.fields and format_name not in _FIELDLESS:
        return "there are no fields, which only JSON formats support (set a schema of the reader or writer)"
    for field in schema.fields:
        name = _find_wrong_name(field, NAME_PATTERNS.get(format_name, ""))
        if name is not None:
            return (
                f"field {name!r}: {format_name} files cannot have a field with this name "
                "(rename it, in a schema of the writer with its old name as an alias)"
            )
        kinds = _list_words(normalize_type(field["type"]))
        if wrong := next((word for word in _UNWRITABLE.get(format_name, ()) if word in kinds), None):
            return (
                f"field {field['name']!r}: {format_name} files cannot hold values of type {wrong} "
                "(set a schema of the writer, in which the field is a STRING, or another format)"
            )
    return None


def _find_wrong_name(field: Field, pattern: str) -> str | None:
    """Return the name of a field, or of one in its type, that does not match a pattern; or None."""
    if not re.search(pattern, str(field["name"])):
        return str(field["name"])
    kinds = [field["type"]]
    while kinds:
        kind = kinds.pop()
        if not isinstance(kind, Mapping):
            continue
        if "fields" not in kind:
            kinds += kind.values()
            continue
        names = (_find_wrong_name(one, pattern) for one in kind["fields"])
        wrong = next((name for name in names if name is not None), None)
        if wrong is not None:
            return wrong
    return None


def build_text_keys(kind: Type) -> Type:
    """Return a type with text as the keys of its maps, as JSON has them.

    >>> build_text_keys({"array": {"map": "long", "keys": "int"}})
    {'array': {'map': 'long'}}
    """
    if not isinstance(kind, Mapping):
        return kind
    if "fields" in kind:
        fields = kind["fields"]
        return {"fields": [{**field, "type": build_text_keys(field["type"])} for field in fields]}
    return {name: build_text_keys(inner) for name, inner in kind.items() if name != "keys"}


def replace_void(schema: Schema, word: str) -> Schema:
    """Return a schema with another type for the values of which its file has none."""
    return replace(schema, fields=tuple(_replace_void({"fields": schema.fields}, word)["fields"]))


def _replace_void(kind: Type, word: str) -> Type:
    """Return a type in which another one replaces ``void``.

    >>> _replace_void({"array": "void"}, "string")
    {'array': 'string'}
    """
    if not isinstance(kind, Mapping):
        return word if kind == VOID else kind
    if "fields" in kind:
        return {"fields": [{**field, "type": _replace_void(field["type"], word)} for field in kind["fields"]]}
    return {name: _replace_void(inner, word) for name, inner in kind.items()}


def is_choice(kind: Type) -> bool:
    """Return whether values of this type may be of several types."""
    return isinstance(kind, Sequence) and not isinstance(kind, str)


def _list_words(kind: Type) -> set[str]:
    """Return the words for a normalized type and the types in it; a choice is written as a string."""
    if isinstance(kind, str):
        return {kind}
    if not isinstance(kind, Mapping):
        return {"string"}
    if "fields" in kind:
        return {"record"}.union(*(_list_words(field["type"]) for field in kind["fields"]))
    keys = {"map with keys that are not text"} if "keys" in kind else set[str]()
    return {"map" if "map" in kind or "values" in kind else "array"} | keys.union(
        *(_list_words(inner) for name, inner in kind.items() if name != "keys")
    )


def _canonical_field(field: Field) -> Field:
    written = {
        "name": field["name"],
        "type": normalize_type(field["type"]),
        "nullable": field.get("nullable", True),
        "default": field.get("default"),
        "aliases": sorted(field.get("aliases") or ()),
    }
    return {name: value for name, value in written.items() if value is not None and value != []}


def _union_fields(left: Sequence[Field], right: Sequence[Field]) -> list[Field]:
    remaining_fields = list(right)
    fields: list[Field] = []
    for field in left:
        partner = next(
            (candidate for candidate in remaining_fields if _list_names(field) & _list_names(candidate)), None
        )
        if partner is None:
            fields.append({**field, "nullable": True})
            continue
        remaining_fields.remove(partner)
        fields.append(_union_field(field, partner))
    return fields + [{**field, "nullable": True} for field in remaining_fields]


def _union_field(left: Field, right: Field) -> Field:
    default = left.get("default") if left.get("default") is not None else right.get("default")
    aliases = sorted((_list_names(left) | _list_names(right)) - {left["name"]})
    return {
        "name": left["name"],
        "type": _union_type(left["type"], right["type"]),
        "nullable": left.get("nullable", True) or right.get("nullable", True),
        **({} if default is None else {"default": default}),
        **({"aliases": aliases} if aliases else {}),
    }


def _list_names(field: Field) -> set[str]:
    return {field["name"], *(field.get("aliases") or ())}


def _union_type(left: Type, right: Type) -> Type:
    left_form, right_form = normalize_type(left), normalize_type(right)
    if right_form in (left_form, VOID) or _is_record_without_members(right_form, left_form):
        return left
    if left_form == VOID or _is_record_without_members(left_form, right_form):
        return right
    if isinstance(left_form, Mapping) and isinstance(right_form, Mapping):
        if "fields" in left_form and "fields" in right_form:
            return {"fields": _union_fields(left["fields"], right["fields"])}
        if left_form.keys() == right_form.keys():
            return {name: _union_type(left[name], right[name]) for name in left}
    if (
        isinstance(left_form, str)
        and isinstance(right_form, str)
        and (wider := _find_wider_type(left_form, right_form))
    ):
        return wider
    return _unite_types(left, right)


def _is_record_without_members(kind: Type, other: Type) -> bool:
    return kind == NO_MEMBERS and isinstance(other, Mapping) and "fields" in other


def _unite_types(left: Type, right: Type) -> Type:
    """Combine two types into a choice that contains each type once."""
    members: list[Type] = []
    for kind in (*(left if is_choice(left) else [left]), *(right if is_choice(right) else [right])):
        if normalize_type(kind) not in map(normalize_type, members):
            members.append(kind)
    return members


def _find_wider_type(left: str, right: str) -> str | None:
    """Return the type that can hold the values of both, or None."""
    if left in _NUMBER_NAMES and right in _NUMBER_NAMES:
        return max(left, right, key=_NUMBER_NAMES.index)
    if left in _TEXT_NAMES and right in _TEXT_NAMES:
        return "string"
    if left.removesuffix(_NANOS) == right.removesuffix(_NANOS):
        return left.removesuffix(_NANOS)
    sizes = [_decimal_size(word) for word in (left, right)]
    if None in sizes:
        floats = {left, right} & {"float", "double"}
        return "double" if floats and any("decimal" in word for word in (left, right)) else None
    # The maximum of the digits before and after the decimal point: every value of both types fits.
    integer_digits = max(size[0] for size in sizes if size)
    scale = max(size[1] for size in sizes if size)
    return f"decimal({min(integer_digits + scale, _DECIMAL_MAX_DIGITS)},{scale})"


def _decimal_size(word: str) -> tuple[int, int] | None:
    """Return the digits before and after the decimal point."""
    if word in _DIGITS_OF_TYPES:
        return _DIGITS_OF_TYPES[word], 0
    match = _DECIMAL_WITH_BLANKS.fullmatch(word)
    return (int(match[1]) - int(match[2]), int(match[2])) if match else None


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
