"""SQL conditions of the user: columns, and placeholders for the target and the staging table."""

from __future__ import annotations

from string import Formatter
from typing import Any

PLACEHOLDERS = ("table", "staging_table")


def check_condition(value: Any) -> str:
    """Check the braces of a condition. Source: docs/semantics/merge_load.md, Conditions.

    :raises ValueError: when it is empty, its braces do not pair, or a placeholder is unknown.
    """
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be a SQL condition")
    try:
        placeholders = [name for _, name, _, _ in Formatter().parse(value) if name is not None]
    except ValueError as error:
        raise ValueError(f"has unbalanced braces ({error}); write {{{{ and }}}} for literal braces") from None
    unknown = [name for name in placeholders if name not in PLACEHOLDERS]
    if unknown:
        valid_names = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
        raise ValueError(f"has an unknown placeholder {{{unknown[0]}}} (valid placeholders: {valid_names})")
    return value


def fill_tables(text: str, *, table: str, staging_table: str) -> str:
    """Replace the placeholders of a checked condition with the names of the two tables.

    >>> fill_tables("{table}.day IN (SELECT day FROM {staging_table})", table="t", staging_table="s")
    't.day IN (SELECT day FROM s)'
    """
    return text.format(table=table, staging_table=staging_table)
