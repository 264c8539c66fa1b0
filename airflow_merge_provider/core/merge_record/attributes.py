"""The attributes of a FlowFile, and the attributes that a merged FlowFile inherits.

Source: docs/semantics/merge_record.md, Attributes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

COMMON = "Keep Only Common Attributes"
ALL_UNIQUE = "Keep All Unique Attributes"
_PLACE = re.compile(r"\$\{([^{}]+)\}")

Attributes = Mapping[str, str]


def inherit_attributes(sources: Iterable[Attributes], strategy: str) -> dict[str, str]:
    """Return the attributes that a merged FlowFile inherits from the sources of a bin; ``uuid`` never.

    Keep Only Common keeps the attributes that every source has with the same value. Keep All Unique keeps the
    attributes that no two sources have with different values.
    """
    first_values: dict[str, str] = {}
    in_conflict: set[str] = {"uuid"}
    common: set[str] | None = None
    for attributes in sources:
        common = set(attributes) if common is None else common & attributes.keys()
        for name, value in attributes.items():
            if first_values.setdefault(name, value) != value:
                in_conflict.add(name)
    names = set(first_values) if strategy == ALL_UNIQUE else common or set()
    return {name: value for name, value in first_values.items() if name in names - in_conflict}


def of_path(relative: str) -> dict[str, str]:
    """Parse the ``name=value`` folders of a path.

    >>> of_path("store=Main%20St/2026/day=1/a.json")
    {'store': 'Main St', 'day': '1'}
    """
    folders = [folder.partition("=") for folder in relative.split("/")[:-1]]
    return {unquote(name): unquote(value) for name, sign, value in folders if name and sign}


def list_placeholders(template: str) -> list[str]:
    """Return the names of the attributes that a template has."""
    return [match[1].strip() for match in _PLACE.finditer(template)]


def compute_attributes(templates: Mapping[str, str], attributes: Attributes) -> dict[str, str]:
    """Evaluate templates such as ``abc=${abc},xyz=${xyz}`` over attributes; a missing one is empty.

    >>> compute_attributes({"both": "${a}-${b}"}, {"a": "1"})
    {'both': '1-'}
    """
    return {
        name: _PLACE.sub(lambda match: attributes.get(match[1].strip(), ""), template)
        for name, template in templates.items()
    }
