"""Check that a target was written in the form that a load writes: as a history or not, with lists or not."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_load.columns import raise_problems
from airflow_merge_provider.core.merge_load.load import ROW_ID, LoadConfig
from airflow_merge_provider.core.merge_load.scd2 import HASH_COLUMN, Scd2Config, build_history_shape

# The key in the metadata of the hash column that holds the settings of a history.
SHAPE = "merge.load"
# The key in the metadata of a column that holds its type, if that is CHAR or VARCHAR.
_CHAR = "__CHAR_VARCHAR_TYPE_STRING"
_PADDED = re.compile(r"\bchar\(")


def check_target_form(config: LoadConfig, fields: Sequence[Mapping[str, Any]], target: str) -> None:
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


def _check_padding(fields: Sequence[Mapping[str, Any]], target: str) -> None:
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


def read_history_settings(fields: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the settings that a history stores on one of its columns; None for a table without history."""
    metadata = next((field.get("metadata") for field in fields if field["name"] == HASH_COLUMN), None)
    text = (metadata or {}).get(SHAPE)
    return dict(json.loads(text)) if text else None


def _check_history(config: LoadConfig, fields: Sequence[Mapping[str, Any]], target: str) -> None:
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
