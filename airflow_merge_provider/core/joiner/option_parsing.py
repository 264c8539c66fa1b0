"""Parsing of property values: texts as in pipeline files, or lists, objects and numbers.

Source: docs/semantics/joiner.md, Properties.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from airflow_merge_provider.core.dataset import is_location, split_alias

_JOIN_TYPES = ("innerjoin", "outerjoin", "leftouterjoin", "rightouterjoin", "fullouterjoin", "crossjoin")
_ALIASES_FORM = "must be a string 'input=alias;other=alias' or an object of input: alias"
_EXPORT = 'write files from the table, see the page "Export a table", docs/guides/export_table.md'
_INPUTS_FORM = "must be an object of name: dataset, or a list of '<dataset> <name>'"


def parse_inputs(value: Any) -> dict[str, Any]:
    """Parse ``{"customers": dataset, …}``, or a list of ``"<dataset>"`` and ``"<dataset> <name>"``."""
    if isinstance(value, Mapping):
        return {str(stage): ref for stage, ref in value.items()}
    if not isinstance(value, list | tuple):
        raise ValueError(_INPUTS_FORM)  # noqa: TRY004 - pydantic reads it
    inputs: dict[str, Any] = {}
    for entry in value:
        dataset, name = split_alias(entry) if isinstance(entry, str) else ("", "")
        if not dataset:
            raise ValueError(f"{entry!r} is not of the form '<dataset> <name>'")
        if is_location(dataset) and "/" in name:
            raise ValueError(f"{entry!r} has a blank in its location (use an object of name: dataset)")
        if (name or dataset) in inputs:
            raise ValueError(f"{name or dataset!r} is the name of more than one input (choose unique names)")
        inputs[name or dataset] = dataset
    return inputs


def parse_names(value: Any) -> tuple[str, ...] | None:
    """Parse ``"a, b"`` or a list; empty entries are skipped."""
    if value is None:
        return None
    entries = value.split(",") if isinstance(value, str) else value
    if not isinstance(entries, list | tuple) or not all(isinstance(entry, str) for entry in entries):
        raise ValueError("must be a string 'a,b' or a list of strings")
    return tuple(entry.strip() for entry in entries if entry.strip())


def parse_elements(value: Any) -> tuple[Any, ...] | None:
    """Parse a list of fields: a text with commas, texts, or objects with input, field and as."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        parts = {source: str(source).partition(".") for source in value}
        return tuple(
            {"input": parts[source][0], "field": parts[source][2], "as": new} for source, new in value.items()
        )
    entries = value.split(",") if isinstance(value, str) else value
    if not isinstance(entries, list | tuple) or not all(
        isinstance(entry, str | Mapping) for entry in entries
    ):
        raise ValueError("must be a string 'a.x,b.y' or a list of strings or objects")
    trimmed = [entry.strip() if isinstance(entry, str) else dict(entry) for entry in entries]
    return tuple(entry for entry in trimmed if entry)


def parse_clauses(value: Any) -> Any:
    """Parse the keys: a text, an object of input: field, or a list of either."""
    if value is None or isinstance(value, str | Mapping):
        return value
    if not isinstance(value, list | tuple) or not all(isinstance(clause, str | Mapping) for clause in value):
        raise ValueError("must be a string, an object of input: field, or a list of these")
    return tuple(value)


def join_type(value: Any) -> str | None:
    """Parse a join type in any case, with or without ``_``."""
    if value is None or value == "":
        return None
    word = re.sub(r"[\s_-]", "", str(value)).lower()
    if word not in _JOIN_TYPES:
        raise ValueError(f"{value!r} is not a valid join type (valid types: {', '.join(_JOIN_TYPES)})")
    return word


def condition_type(value: Any) -> str:
    """Parse ``basic`` or ``advanced`` in any case; an empty text means basic."""
    word = str(value).strip().lower() if value else "basic"
    if word not in {"basic", "advanced"}:
        raise ValueError(f"{value!r} is not a valid condition type (valid types: basic, advanced)")
    return word


def target_format(value: Any) -> str:
    """Parse the only format of a target, in any case."""
    word = str(value).strip().lower()
    if word != "delta":
        raise ValueError(f"must be 'delta', not {value!r} ({_EXPORT})")
    return word


def parse_boolean(value: Any) -> bool:
    """Parse a boolean or its text."""
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else ""
    if word not in {"true", "false"}:
        raise ValueError(f"must be a boolean, not {value!r}")
    return word == "true"


def parse_integer(value: Any) -> int | None:
    """Parse an integer or its text; an empty text means None."""
    if value is None or value == "":
        return None
    text = str(value).strip()
    if isinstance(value, bool) or not re.fullmatch(r"[+-]?\d+", text):
        raise ValueError(f"must be an integer, not {value!r}")
    return int(text)


def parse_positive(value: Any) -> int | None:
    """Parse an integer of at least 1, or its text."""
    number = parse_integer(value)
    if number is not None and number < 1:
        raise ValueError(f"must be a positive integer, not {value!r}")
    return number


def parse_aliases(value: Any) -> tuple[tuple[str, str], ...] | None:
    """Parse ``"input=alias; input2=alias2"``, an object of input: alias, or a list of pairs."""
    if value is None:
        return None
    pairs: Any = list(value.items()) if isinstance(value, Mapping) else value
    if isinstance(value, str):
        pairs = [entry.split("=") for entry in value.split(";") if entry.strip()]
    if not isinstance(pairs, list | tuple):
        raise ValueError(_ALIASES_FORM)  # noqa: TRY004 - pydantic reads it
    return tuple(_parse_alias(pair) for pair in pairs)


def _parse_alias(pair: Any) -> tuple[str, str]:
    names = [str(word).strip() for word in pair] if isinstance(pair, list | tuple) else []
    if len(names) != 2 or not all(names):  # noqa: PLR2004 - an input and its alias
        raise ValueError(f"{'='.join(names) or pair!r} is not of the form <input>=<alias>")
    return names[0], names[1]
