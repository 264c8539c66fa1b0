"""Translation of NiFi's property names and expressions, so that a pasted MergeRecord becomes arguments.

Sizes, periods and numbers are texts such as ``1.5 MB`` or ``30 secs``.

Source: docs/semantics/merge_record.md, Properties.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
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
_SNAKE_CASE_NAMES = ("fragment_index_policy", "schema_merge")


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
    return value.strip().lower() if argument in _SNAKE_CASE_NAMES else value


UNLIMITED = "unlimited"
_INT_MAX = 2**31 - 1
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?B)", re.IGNORECASE | re.ASCII)
_POWERS = {"B": 0, "KB": 1, "MB": 2, "GB": 3, "TB": 4}
_PERIOD = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]+)", re.IGNORECASE | re.ASCII)
_NANOS_PER_MICRO = 1000
_NANOS_PER_SECOND = 10**9
# The nanoseconds of each unit, and all of its spellings.
_UNITS = {
    spelling: nanos
    for nanos, spellings in (
        (1, "ns nano nanos nanosecond nanoseconds"),
        (1_000_000, "ms milli millis millisecond milliseconds"),
        (_NANOS_PER_SECOND, "s sec secs second seconds"),
        (60 * _NANOS_PER_SECOND, "m min mins minute minutes"),
        (3600 * _NANOS_PER_SECOND, "h hr hrs hour hours"),
        (86_400 * _NANOS_PER_SECOND, "d day days"),
        (604_800 * _NANOS_PER_SECOND, "w wk wks week weeks"),
    )
    for spelling in spellings.split()
}


@dataclass(frozen=True, slots=True)
class Period:
    """A time period and its original text, which reasons repeat."""

    nanoseconds: int
    text: str

    def is_exceeded_by(self, microseconds: int) -> bool:
        """Return whether a number of microseconds is longer than the period; an equal one is not."""
        return microseconds * _NANOS_PER_MICRO > self.nanoseconds

    @property
    def microseconds(self) -> int:
        """The period in whole microseconds, rounded up."""
        return -(-self.nanoseconds // _NANOS_PER_MICRO)


def data_size(value: Any) -> int:
    """Parse a data size in bytes; 1 KB is 1024 bytes, and a text must have a unit.

    >>> data_size("0.1 KB"), data_size(2048)
    (102, 2048)

    :raises ValueError: when it is none.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if not match:
        raise ValueError("must be a size with a unit, such as '128 MB' (B, KB, MB, GB, TB)")
    number, unit = match.groups()
    return int(Decimal(number) * 1024 ** _POWERS[unit.upper()])


def parse_period(value: Any) -> Period:
    """Parse a time period.

    >>> parse_period("1.5 hours").nanoseconds // 10**9
    5400

    :raises ValueError: when it is none.
    """
    if isinstance(value, Period):
        return value
    value = period_text(value)
    match = _PERIOD.fullmatch(value.strip()) if isinstance(value, str) else None
    nanos = _UNITS.get(match[2].lower()) if match else None
    if match is None or nanos is None:
        raise ValueError("must be a period with a unit of time, such as '30 secs' or '1.5 hours'")
    return Period(int(Decimal(match[1]) * nanos), value.strip())


def period_text(value: Any) -> Any:
    """Convert a ``timedelta`` to an equivalent text; return other values unchanged.

    >>> period_text(timedelta(minutes=1.5))
    '90 secs'
    """
    if not isinstance(value, timedelta):
        return value
    seconds = Decimal(value // timedelta(microseconds=1)) / 1_000_000
    return f"{seconds.normalize():f} secs"


def positive_integer(value: Any) -> int:
    """Parse a 32-bit integer of at least 1.

    :raises ValueError: when it is none.
    """
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d+", value, re.ASCII):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _INT_MAX:
        raise ValueError(f"must be an integer from 1 to {_INT_MAX}")
    return value


def parse_limit(value: Any) -> int | None:
    """Parse a positive integer, or ``unlimited``, which means no limit.

    :raises ValueError: when it is neither.
    """
    if value is None or (isinstance(value, str) and value.strip().lower() == UNLIMITED):
        return None
    try:
        return positive_integer(value)
    except ValueError as error:
        raise ValueError(f"{error}, or '{UNLIMITED}'") from None
