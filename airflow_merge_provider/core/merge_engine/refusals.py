"""The errors for invalid records of a batch, and for settings that differ from those of the table.

A text describes what is wrong with a record or with the result of its key; the job adds the keys. Source:
docs/semantics/merge_engine.md, Refused records.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_merge_provider.core.change_plan.shown_rows import mask_text
from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig
from airflow_merge_provider.core.merge_engine.options import FIRST_ROW
from airflow_merge_provider.core.merge_engine.plan import ColumnRule, Plan

ROW_KINDS = ("+I", "+U", "-U", "-D")
NULL_KIND = "the row kind is NULL: it must be +I, +U, -U or -D"
# Followed by the invalid word.
UNKNOWN_KIND = "the row kind must be +I, +U, -U or -D, not "

# The values in the messages of this module, and of the accumulators.
_QUOTED_VALUE = re.compile(
    r"(?<=, not ).+|(?<= is )\S+(?=, out of range)|(?<=cannot retract )\S+ from \S+(?=:)"
)

# Followed by the invalid name.
NOT_CLEARABLE = "clear_column must list only columns that skip NULLs, not "


def null_key(column: str) -> str:
    """Return the message for a record with a null in its key."""
    return f"NULL in column {column!r} of primary_key: fill it upstream, or set primary-key.nullable"


def null_value(column: str) -> str:
    """Return the message for a null in a column that does not allow nulls."""
    return f"NULL in column {column!r}, which is NOT NULL: fill it upstream, or drop the constraint"


def without_policy(plan: Plan) -> str:
    """Return the message for a retract if no option defines its effect on a row."""
    if plan.engine == FIRST_ROW:
        return "first-row does not support -U and -D: set ignore-delete = true to drop them"
    return (
        "partial-update does not support -U and -D by default: set ignore-delete = true to drop them, "
        "partial-update.remove-record-on-delete = true to remove the row on -D, or "
        "fields.<column>.sequence-group to protect columns"
    )


def cannot_retract(rule: ColumnRule) -> str:
    """Return the message for a retract of a function that does not support retracts."""
    return (
        f"{rule.function} of column {rule.name!r} does not support retractions (-U, -D): "
        f"set fields.{rule.name}.ignore-retract = true to leave the column unchanged"
    )


def broken_bitmap(rule: ColumnRule) -> str:
    """Return the message for bytes that are not a valid bitmap."""
    return f"column {rule.name!r} contains bytes that are not a valid {rule.function} bitmap"


def null_sequence(column: str) -> str:
    """Return the message for a record with a null sequence field, if ``fail_on`` rejects it."""
    return f"NULL in column {column!r} of sequence.field, rejected by fail_on null-sequence"


def describe_tie(columns: Sequence[str]) -> str:
    """Return the message for records that only their arrival orders, if ``fail_on`` rejects them."""
    return f"records with the same {', '.join(columns)} (sequence.field), rejected by fail_on tie"


LONE_UPDATE = "-U without a record that follows it, rejected by fail_on lone-update"
ORPHAN_RETRACT = "-U or -D for a key that has no row, rejected by fail_on orphan-retract"


def mask_values(text: str) -> str:
    """Return the message of a record as it may be shown: executors, which write it, do not know that."""
    return _QUOTED_VALUE.sub(lambda value: mask_text(value[0]), text)


def build_error(record_problems: Sequence[tuple[str, int, str]]) -> DataError:
    """Build the error of a batch; each problem is its text, the number of its keys, and one of the keys."""
    problems = [
        Problem(
            "", "record", mask_values(text), f"key {key}" + (f", and {keys - 1} more" if keys > 1 else "")
        )
        for text, keys, key in record_problems
    ]
    return DataError.from_problems(problems)


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
