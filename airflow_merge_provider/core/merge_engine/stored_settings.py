"""The stored settings of a table: which options are fixed after the first write, and which may change.

Source: docs/semantics/merge_engine.md, Fixed options.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airflow_merge_provider.core.errors import Problem
from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig

_ONE_WAY = ("ignore-delete", "ignore-update-before")


def build_fixed_settings(config: MergeEngineConfig) -> dict[str, Any]:
    """Return the settings that the rows of a table depend on, as they are stored in the table's commits."""
    options = config.table_options
    return {
        "merge_engine": config.merge_engine,
        "primary_key": [name.casefold() for name in config.primary_key],
        "rowkind.field": options.row_kind_field,
        "ignore-delete": options.ignore_delete,
        "ignore-update-before": options.ignore_update_before,
        "remove-record-on-delete": options.remove_on_delete,
        "partial-update.remove-record-on-sequence-group": list(options.remove_on_groups),
        "primary-key.nullable": options.nullable_key,
    }


def find_breaks(stored_values: Mapping[str, Any], current_values: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield problems for changed fixed settings; a table without stored settings accepts all of them."""
    for name, value in current_values.items():
        if name not in stored_values or stored_values[name] == value or (name in _ONE_WAY and value):
            continue
        path = name if name in {"merge_engine", "primary_key"} else f"options.{name}"
        message = f"was {stored_values[name]!r} when the target was written, but is now {value!r}"
        yield Problem(
            path,
            "immutable-option",
            message,
            "restore it, or run once with full_refresh=True to fold the source again",
        )
