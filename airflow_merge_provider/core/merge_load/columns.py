"""Check the columns of a load's source against its arguments and its target, and the form of the target."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow_merge_provider.core.errors import DataError, Problem, did_you_mean, suggest_name
from airflow_merge_provider.core.merge_load.load import ROW_ID, LoadConfig, SchemaEvolution
from airflow_merge_provider.core.merge_load.requirements import StagingRequirements
from airflow_merge_provider.core.merge_load.scd2 import HASH_COLUMN, Scd2Config, build_history_shape
from airflow_merge_provider.core.run.columns import describe_text_order
from airflow_merge_provider.core.run.table_log import Fields
from airflow_merge_provider.core.schema.key_types import (
    FILE_METADATA,
    FindExample,
    show_example,
    suggest_cast,
)

# Casts that keep every value of a type; other casts lose information or fail.
_WIDENS = {
    "tinyint": ("smallint", "int", "bigint", "float", "double"),
    "smallint": ("int", "bigint", "float", "double"),
    "int": ("bigint", "double"),
    "float": ("double",),
    "date": ("timestamp", "timestamp_ntz"),
    "void": (),
}
_WHOLE_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
VOID = "void"
# A map, a variant or no type at all, also inside other types; fields of structs may have these names.
_INCOMPARABLE_PATTERN = re.compile(r"(?:^|[:<,])(?:map<|(?:variant|void)(?=[,>]|$))")


def check_named_columns(
    columns: Sequence[str], names: Iterable[str], source_name: str, config: LoadConfig | None = None
) -> None:
    """Raise an error if the source does not have the columns that arguments of a load name.

    :raises DataError: with every column that is missing, and the argument that names it.
    """
    raise_problems(
        [
            Problem(
                config.find_argument(name) if config else name,
                "column",
                f"{source_name} has no column {name!r}",
                suggest_name(name, columns, "columns"),
            )
            for name in names
            if name not in columns
        ]
    )


def check_reserved(columns: Sequence[str], prefix: str, source_name: str) -> None:
    """Raise an error if a column of the source has a name that the load uses itself.

    :raises DataError: with the first such column.
    """
    reserved = [
        column for column in columns if column.startswith(prefix) or column.casefold() == FILE_METADATA
    ]
    if reserved:
        hint = f"rename it: {prefix} and {FILE_METADATA}, where Spark has the file of a row, are reserved"
        raise DataError.from_problems(
            [Problem(reserved[0], "column", f"{source_name} has a reserved column", hint)]
        )


def check_compared_types(
    types: Mapping[str, str], requirements: StagingRequirements, config: LoadConfig, source_name: str
) -> None:
    """Raise an error if a key or a sequence has a type whose values cannot be compared.

    :param types: the types of the source's columns, by their names.
    :raises DataError: with every such column.
    """
    hint = (
        "use another column, or compute one upstream: array_sort(map_entries(...)) of a map, "
        "to_json(...) of a variant"
    )
    compared = dict.fromkeys(
        (*requirements.keys, *requirements.unique, *_list_ordering(requirements, config))
    )
    raise_problems(
        [
            Problem(
                config.find_argument(name),
                "type",
                f"column {name!r} of {source_name} has type {types[name]}, whose values cannot be compared",
                hint,
            )
            for name in compared
            if _INCOMPARABLE_PATTERN.search(types.get(name, ""))
        ]
    )


def list_text_orders(
    types: Mapping[str, str], requirements: StagingRequirements, config: LoadConfig
) -> list[str]:
    """Return a warning for each text column that selects one of several rows."""
    return [
        describe_text_order(config.find_argument(name), name)
        for name in _list_ordering(requirements, config)
        if types.get(name, "").startswith("string")
    ]


def _list_ordering(requirements: StagingRequirements, config: LoadConfig) -> tuple[str, ...]:
    """Return the columns that select one of several rows."""
    sort = (config.sort[0],) if config.sort and requirements.ranked else ()
    return (*requirements.sequence, *sort)


def check_layout(
    source: Mapping[str, str],
    stored: Mapping[str, str] | None,
    added: Sequence[str],
    evolution: SchemaEvolution,
    target: str,
    optional: Sequence[str] = (),
    *,
    keys: Sequence[str] = (),
    find_example: FindExample = lambda _: None,
) -> None:
    """Raise an error if columns of the source do not fit the columns of the target.

    Source: docs/semantics/merge_load.md, Target columns.

    :param source: the types of the source's columns, by their names.
    :param stored: those of the target; None if all rows are written anew.
    :param added: the columns that the load adds to those of the source.
    :param optional: columns that a source may always leave out.
    :param keys: the columns that identify a row of the target.
    :param find_example: returns a value of a column of the source.
    :raises DataError: with every column that does not fit.
    """
    problems = [
        Problem(target, "column", f"the source has a column {name!r}, which the load adds", "rename it")
        for name in sorted(set(source) & set(added))
    ]
    if stored is not None:
        loaded = {name: kind for name, kind in stored.items() if name not in added}
        new = [name for name, kind in source.items() if name not in loaded and kind != VOID]
        problems += _find_type_problems(source, loaded, target, find_example)
        problems += _find_case_problems(new, loaded, target)
        if not evolution.allows_missing:
            problems += list_missing(source, [name for name in loaded if name not in optional], target)
        problems += _find_key_problems([name for name in new if name in keys], target)
        if evolution.new_columns == "error":
            hint = "add the column to the target, or use schema_evolution='add' or 'ignore'"
            problems += [
                Problem(target, "column", f"the target has no column {name!r}", hint) for name in new
            ]
    raise_problems(problems)


def list_missing(source: Iterable[str], target_columns: Sequence[str], target: str) -> list[Problem]:
    """Return a problem for each column of the target that the source no longer has."""
    hint, names = (
        "restore it, or allow NULL in it with schema_evolution=['add', 'allow_missing']",
        set(source),
    )
    return [
        Problem(
            target,
            "column",
            f"the source no longer has column {name!r} of the target",
            "; ".join(filter(None, (did_you_mean(name, names - set(target_columns)), hint))),
        )
        for name in target_columns
        if name not in names
    ]


def raise_problems(problems: Sequence[Problem]) -> None:
    """Raise all problems as one error, if there are any.

    :raises DataError: if there are problems.
    """
    if problems:
        raise DataError.from_problems(problems)


def _find_type_problems(
    source: Mapping[str, str], stored: Mapping[str, str], target: str, find_example: FindExample
) -> list[Problem]:
    return [
        Problem(
            target,
            "type",
            f"column {name!r} has type {kind} in the source and type {stored[name]} in the target"
            f"{show_example(find_example, name)}",
            f"{suggest_cast(name, kind, stored[name])}, or rebuild the target with full_refresh=True",
        )
        for name, kind in source.items()
        if name in stored and not _is_fitting(kind, stored[name])
    ]


def _find_key_problems(missing_keys: Iterable[str], target: str) -> list[Problem]:
    hint = "choose another key, add the column with its values, or rebuild the target with full_refresh=True"
    return [
        Problem(
            target,
            "column",
            f"the target has no column {name!r}, which is part of the key, so that no stored row has a key",
            hint,
        )
        for name in missing_keys
    ]


def _find_case_problems(new: Sequence[str], stored: Iterable[str], target: str) -> list[Problem]:
    lowercase_names = {name.lower(): name for name in stored}
    return [
        Problem(
            target,
            "column",
            f"column {name!r} differs only in case from {lowercase_names[name.lower()]!r} of the target",
            "rename it",
        )
        for name in new
        if name.lower() in lowercase_names
    ]


def _is_fitting(source_type: str, target_type: str) -> bool:
    # Type names leave out the nullability of nested fields, which does not affect values.
    if source_type in {VOID, target_type}:
        return True
    if target_type.startswith("decimal"):
        return _fits_decimal(source_type, target_type)
    return target_type in _WIDENS.get(source_type, ())


def _fits_decimal(source_type: str, target_type: str) -> bool:
    precision, scale = _read_digits(target_type)
    if source_type.startswith("decimal"):
        source_precision, source_scale = _read_digits(source_type)
        return source_scale <= scale and source_precision - source_scale <= precision - scale
    return _WHOLE_DIGITS.get(source_type, precision + 1) <= precision - scale


def _read_digits(decimal: str) -> tuple[int, int]:
    precision, _, scale = decimal.removeprefix("decimal(").rstrip(")").partition(",")
    return int(precision), int(scale or 0)


# The key in the metadata of the hash column that holds the settings of a history.
SHAPE = "merge.load"
# The key in the metadata of a column that holds its type, if that is CHAR or VARCHAR.
_CHAR = "__CHAR_VARCHAR_TYPE_STRING"
_PADDED = re.compile(r"\bchar\(")


def check_target_form(config: LoadConfig, fields: Fields, target: str) -> None:
    """Raise an error if the target was written with other settings, on which its rows depend.

    :param fields: the columns of the target, in Spark's JSON form.
    :raises DataError: with every difference.
    """
    _check_history(config, fields, target)
    _check_padding(fields, target)
    has_tables = any(field["name"] == ROW_ID for field in fields)
    if has_tables != (config.nested == "tables"):
        was, hint = ("tables" if has_tables else "columns"), "or rebuild the target with full_refresh=True"
        message = f"the target was written with nested={was!r}"
        raise DataError.from_problems([Problem(target, "nested", message, f"set nested={was!r}, {hint}")])


def _check_padding(fields: Fields, target: str) -> None:
    """Raise an error if a column of the target changes values that it stores."""
    hint = "replace it by a column of type string"
    types = {field["name"]: (field.get("metadata") or {}).get(_CHAR, "") for field in fields}
    raise_problems(
        [
            Problem(
                target,
                "type",
                f"column {name!r} has type {kind}, which pads its texts with blanks",
                hint,
            )
            for name, kind in types.items()
            if _PADDED.search(kind)
        ]
    )


def read_history_settings(fields: Fields) -> dict[str, Any] | None:
    """Return the settings that a history stores on one of its columns; None for a table without history."""
    metadata = next((field.get("metadata") for field in fields if field["name"] == HASH_COLUMN), None)
    text = (metadata or {}).get(SHAPE)
    return dict(json.loads(text)) if text else None


def _check_history(config: LoadConfig, fields: Fields, target: str) -> None:
    stored_shape = read_history_settings(fields)
    load_shape = build_history_shape(config) if isinstance(config, Scd2Config) else None
    if stored_shape == load_shape:
        return
    hint = "choose another target, or rebuild it with full_refresh=True, which replaces its content"
    if stored_shape is None or load_shape is None:
        is_history, loads_history = ("is", "does not write") if stored_shape else ("is not", "writes")
        message = f"the target {is_history} an SCD2 history, but this load {loads_history} one"
        raise DataError.from_problems([Problem(target, "shape", message, hint)])
    raise DataError.from_problems(
        [
            Problem(
                name,
                "shape",
                f"is {load_shape.get(name)!r}, but the target was written with {stored_shape.get(name)!r}",
                hint,
            )
            for name in sorted({*stored_shape, *load_shape})
            if stored_shape.get(name) != load_shape.get(name)
        ]
    )
