"""Parsing of property values: texts as in pipeline files, or lists, objects and numbers.

Source: docs/semantics/joiner.md, Properties.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_JOIN_TYPES = ("innerjoin", "outerjoin", "leftouterjoin", "rightouterjoin", "fullouterjoin", "crossjoin")
_ALIASES = "must be a string 'input=alias;other=alias' or an object of input: alias"
_INPUTS = "must be an object of name: dataset, or a list of '<dataset> <name>'"


def parse_inputs(value: Any) -> dict[str, Any]:
    """Parse ``{"customers": dataset, …}``, or a list of ``"<dataset>"`` and ``"<dataset> <name>"``."""
    if isinstance(value, Mapping):
        return {str(stage): ref for stage, ref in value.items()}
    if not isinstance(value, list | tuple):
        raise ValueError(_INPUTS)  # noqa: TRY004 - pydantic reads it
    named: dict[str, Any] = {}
    for entry in value:
        words = entry.split(maxsplit=1) if isinstance(entry, str) else []
        if not words:
            raise ValueError(f"{entry!r} is not of the form '<dataset> <name>'")
        if words[-1] in named:
            raise ValueError(f"{words[-1]!r} is the name of more than one input (choose unique names)")
        named[words[-1]] = words[0]
    return named


def parse_names(value: Any) -> tuple[str, ...] | None:
    """Parse ``"a, b"`` or a list; empty entries are skipped."""
    if value is None:
        return None
    entries = value.split(",") if isinstance(value, str) else value
    if not isinstance(entries, list | tuple) or not all(isinstance(each, str) for each in entries):
        raise ValueError("must be a string 'a,b' or a list of strings")
    return tuple(each.strip() for each in entries if each.strip())


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
    if not isinstance(entries, list | tuple) or not all(isinstance(each, str | Mapping) for each in entries):
        raise ValueError("must be a string 'a.x,b.y' or a list of strings or objects")
    trimmed = [each.strip() if isinstance(each, str) else dict(each) for each in entries]
    return tuple(each for each in trimmed if each)


def parse_clauses(value: Any) -> Any:
    """Parse the keys: a text, an object of input: field, or a list of either."""
    if value is None or isinstance(value, str | Mapping):
        return value
    if not isinstance(value, list | tuple) or not all(isinstance(each, str | Mapping) for each in value):
        raise ValueError("must be a string, an object of input: field, or a list of these")
    return tuple(value)


def join_type(value: Any) -> str | None:
    """Parse a join type in any case, with or without ``_``."""
    if value is None or value == "":
        return None
    word = re.sub(r"[\s_-]", "", str(value)).lower()
    if word not in _JOIN_TYPES:
        raise ValueError(f"{value!r} is not a valid join type (known: {', '.join(_JOIN_TYPES)})")
    return word


def condition_type(value: Any) -> str:
    """Parse ``basic`` or ``advanced`` in any case; an empty text means basic."""
    word = str(value).strip().lower() if value else "basic"
    if word not in {"basic", "advanced"}:
        raise ValueError(f"{value!r} is not a valid condition type (known: basic, advanced)")
    return word


def parse_word(value: Any) -> Any:
    """Parse a word in any case."""
    return value.strip().lower() if isinstance(value, str) else value


def parse_options(value: Any) -> Any:
    """Convert the values of an object (texts, numbers, booleans) to texts."""
    if not isinstance(value, Mapping):
        return value
    said = {str(key): str(each) for key, each in value.items()}
    return {key: text.lower() if text in {"True", "False"} else text for key, text in said.items()}


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
        pairs = [each.split("=") for each in value.split(";") if each.strip()]
    if not isinstance(pairs, list | tuple):
        raise ValueError(_ALIASES)  # noqa: TRY004 - pydantic reads it
    return tuple(_parse_alias(pair) for pair in pairs)


def _parse_alias(pair: Any) -> tuple[str, str]:
    words = [str(word).strip() for word in pair] if isinstance(pair, list | tuple) else []
    if len(words) != 2 or not all(words):  # noqa: PLR2004 - an input and its alias
        raise ValueError(f"{'='.join(words) or pair!r} is not of the form <input>=<alias>")
    return words[0], words[1]
