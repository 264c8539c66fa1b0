"""Checks of the target: names and types that its format does not support, found before rows are read.

Source: docs/semantics/joiner.md, Duplicate names; Targets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.errors import ConfigError, Problem
from airflow_merge_provider.core.joiner.parsed_options import ParsedOptions
from airflow_merge_provider.core.joiner.schema import Field, Schema, split_type

FORMAT = "target_format"
_AVRO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_REFUSED = {
    "csv": {"array", "map", "struct", "variant"},
    "avro": {"variant"},
    "orc": {"variant"},
}


def place_problems(options: ParsedOptions) -> Iterator[Problem]:
    """Yield the problems of a file target that its name and its format show."""
    kind, target = options[FORMAT], options["target"]
    if options["target_options"] and kind == "delta":
        message = f"is supported only for files, but {options.spelling(FORMAT)} is delta"
        yield options.build_problem("target_options", "config", message, "remove it")
    if kind in {None, "delta"} or not isinstance(target, str):
        return
    try:
        dataset = resolve_dataset(target, "/")
    except ConfigError:
        return
    if dataset.table is not None:
        message = f"{target!r} is a catalog table, but {kind} files require a location"
        yield options.build_problem(
            "target", "config", message, "set a bare ID or a location, or the format delta"
        )


def column_problems(options: ParsedOptions, fields: Schema) -> Iterator[Problem]:
    """Yield the columns that the target's format does not support; ``fields`` are those of the inputs."""
    kind = options[FORMAT]
    if not options["target"] or kind in {None, "delta"}:
        return
    for field in fields:
        if reason := _refuse_field(kind, field):
            yield options.build_problem(
                _find_column_property(options), "selected_field", reason, "choose another format"
            )
    names = [("key_columns", name) for name in options["key_columns"] or ()]
    names += [("indicator", options["indicator"])] if options["indicator"] else []
    for argument, name in names:
        added = Field(name, "array<string>" if argument == "indicator" else "string")
        if reason := _refuse_field(kind, added):
            yield options.build_problem(argument, "config", reason, "choose another format")


def _refuse_field(kind: str, field: Field) -> str | None:
    if kind == "avro" and not _AVRO_NAME.match(field.name):
        return (
            f"avro files do not support the column name {field.name!r}:"
            " use only letters, digits and _, and no digit first"
        )
    if any(type_name in _REFUSED.get(kind, ()) for type_name in _list_types(field.type)):
        return f"{kind} files do not support column {field.name!r} of type {field.type}"
    if kind == "avro" and any(
        type_name == "map" and key != "string" for type_name, key in _list_types_with_keys(field.type)
    ):
        return (
            f"avro files do not support column {field.name!r} of type {field.type}: map keys must be strings"
        )
    return None


def _list_types(written: str) -> Iterator[str]:
    return (kind for kind, _ in _list_types_with_keys(written))


def _list_types_with_keys(written: str) -> Iterator[tuple[str, str]]:
    """Yield every type inside a type, and for a map the type of its keys."""
    kind, inner = split_type(written)
    yield kind.partition("(")[0], inner[0][1].strip() if kind == "map" else ""
    for _, part_type in inner:
        yield from _list_types_with_keys(part_type)


def _find_column_property(options: ParsedOptions) -> str:
    """Return the property that selects the columns."""
    lists = ("fields_to_select", "fields_to_drop", "fields_to_rename")
    return next((name for name in lists if options[name]), "selected_fields")
