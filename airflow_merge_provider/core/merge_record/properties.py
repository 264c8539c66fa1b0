"""Translation of NiFi's property names and expressions, so that a pasted MergeRecord becomes arguments.

Source: docs/semantics/merge_record.md, Properties.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from airflow_merge_provider.core.errors import ConfigError, Problem, suggest_name

_EXPRESSION = re.compile(r"\$\{([^{}]+)\}")
# The property name since NiFi 2.7, the older name, and our argument.
_PROPERTIES = (
    ("Merge Strategy", "merge-strategy", "merge_strategy"),
    ("Correlation Attribute Name", "correlation-attribute-name", "correlation_attribute_name"),
    ("Attribute Strategy", "attribute-strategy", "attribute_strategy"),
    ("Minimum Number of Records", "min-records", "min_records"),
    ("Maximum Number of Records", "max-records", "max_records"),
    ("Minimum Bin Size", "min-bin-size", "min_bin_size"),
    ("Maximum Bin Size", "max-bin-size", "max_bin_size"),
    ("Max Bin Age", "max-bin-age", "max_bin_age"),
    ("Maximum Number of Bins", "max.bin.count", "max_bins"),
    ("Record Reader", "record-reader", "reader"),
    ("Record Writer", "record-writer", "writer"),
    ("Fragment Index Policy", "fragment-index-policy", "fragment_index_policy"),
    ("Schema Merge", "schema-merge", "schema_merge"),
)
_ARGUMENTS = {name: argument for new, old, argument in _PROPERTIES for name in (new, old)}
# The only properties whose expressions NiFi evaluates, using the environment of the processor.
_WITH_EXPRESSIONS = ("min_records", "max_records")
_WORDS = ("fragment_index_policy", "schema_merge")


def from_properties(
    properties: Mapping[str, Any], environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the arguments of a MergeRecord's properties, by their names since 2.7 or before.

    ``environment`` holds the values of ``${name}``. Unset properties (None) are left out.

    :raises ConfigError: with every unknown property and every unknown name in an expression.
    """
    arguments: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, value in properties.items():
        argument = _ARGUMENTS.get(name)
        if argument is None:
            hint = suggest_name(name, _ARGUMENTS, "properties")
            problems.append(Problem(name, "unknown", f"unknown property {name!r}", hint))
        elif value is not None:
            try:
                arguments[argument] = _read_value(argument, value, environment or {})
            except KeyError as error:
                hint = "add its value to environment"
                problems.append(
                    Problem(name, "expression", f"unknown name {error.args[0]!r} in {value!r}", hint)
                )
    if problems:
        raise ConfigError.from_problems(problems)
    return arguments


def _read_value(argument: str, value: Any, environment: Mapping[str, str]) -> Any:
    if not isinstance(value, str):
        return value
    if argument in _WITH_EXPRESSIONS:
        return _EXPRESSION.sub(lambda match: environment[match[1].strip()], value)
    return value.strip().lower() if argument in _WORDS else value
