"""Parsing of the table options: Paimon's names and texts become values, and all problems are reported.

Source: docs/semantics/merge_engine.md, Table options.
Values may be texts, as in Paimon, or native booleans, numbers and lists.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_merge_provider.core.errors import Problem, did_you_mean, suggest_name
from airflow_merge_provider.core.merge_engine.functions import FUNCTIONS, function_named, unknown_function

DEDUPLICATE, PARTIAL, AGGREGATION, FIRST_ROW = ENGINES = (
    "deduplicate",
    "partial-update",
    "aggregation",
    "first-row",
)
NO_LIMIT = 2**31 - 1
_NOT_FIRST_ROW = (DEDUPLICATE, PARTIAL, AGGREGATION)
_WITH_FUNCTIONS = (PARTIAL, AGGREGATION)
_DEFAULT_FUNCTION = "fields.default-aggregate-function"
_FIELD = re.compile(r"fields\.(?P<name>.+)\.(?P<suffix>[^.]+)\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SequenceGroup:
    """A sequence group: its ordering fields, the columns that they protect, and the option that defines it.

    ``descending`` means that the smallest tuple is the newest; ``function`` applies to those columns of the
    group that have no function of their own.
    """

    order: tuple[str, ...]
    protected: tuple[str, ...]
    option: str
    descending: bool = False
    function: str | None = None


@dataclass(frozen=True, slots=True)
class ColumnOptions:
    """The options of one column."""

    function: str | None = None
    ignore_retract: bool = False
    distinct: bool = False
    delimiter: str = ","
    nested_key: tuple[str, ...] = ()
    null_strategy: str = "merge"
    nested_sequence: tuple[str, ...] = ()
    count_limit: int = NO_LIMIT
    ts_field: str | None = None
    set_options: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Options:
    """All parsed options of a table; names of columns are still as the user wrote them."""

    sequence: tuple[str, ...] = ()
    descending: bool = False
    row_kind_field: str | None = None
    ignore_delete: bool = False
    ignore_update_before: bool = False
    nullable_key: bool = False
    remove_on_delete: bool = False
    remove_on_groups: tuple[str, ...] = ()
    default_function: str | None = None
    groups: tuple[SequenceGroup, ...] = ()
    columns: Mapping[str, ColumnOptions] = field(default_factory=dict)
    producer: str = "none"
    set_options: frozenset[str] = frozenset()

    def for_column(self, column: str) -> ColumnOptions:
        """Return the options of a column, the defaults if none are set."""
        return self.columns.get(column, ColumnOptions())

    def get_function(self, column: str) -> str | None:
        """Return the function of a column, else that of its group, else the default of the table."""
        named = column.casefold()
        groups = (group for group in self.groups if named in map(str.casefold, group.protected))
        group = next(groups, None)
        return (
            self.for_column(column).function or (group.function if group else None) or self.default_function
        )


Reader = Callable[[Any], Any]


def _parse_boolean(value: Any) -> bool:
    word = str(value).strip().lower()
    if word not in {"true", "false"}:
        raise ValueError(f"must be true or false, not {value!r}")
    return word == "true"


def _parse_names(value: Any) -> tuple[str, ...]:
    raw_names = value if isinstance(value, list | tuple) else str(value).split(",")
    names = tuple(str(word).strip() for word in raw_names)
    if not all(names):
        raise ValueError(
            f"must be a list of column names, or a string with commas between them, not {value!r}"
        )
    return names


def _parse_name(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"must be the name of a column or function, not {value!r}")
    return value.strip()


def _parse_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be a string, not {value!r}")  # noqa: TRY004 - what every reader raises
    return value


def _parse_count(value: Any) -> int:
    word = str(value).strip()
    if isinstance(value, bool) or not word.isdecimal():
        raise ValueError(f"must be an integer >= 0, not {value!r}")
    return int(word)


def _build_choice_reader(*valid_values: str) -> Reader:
    def read(value: Any) -> str:
        word = str(value).strip().lower()
        if word not in valid_values:
            raise ValueError(f"must be one of {', '.join(valid_values)}, not {value!r}")
        return word

    return read


def _accept_value(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class _TableOption:
    """An option of the whole table: the field it sets, its parser, and the engines that support it."""

    sets: str | None
    read: Reader
    engines: tuple[str, ...] = ENGINES


_TABLE_OPTIONS: Mapping[str, _TableOption] = {
    "merge-engine": _TableOption(None, _build_choice_reader(*ENGINES)),
    "sequence.field": _TableOption("sequence", _parse_names, _NOT_FIRST_ROW),
    "sequence.field.sort-order": _TableOption(
        "descending", _build_choice_reader("ascending", "descending"), _NOT_FIRST_ROW
    ),
    "rowkind.field": _TableOption("row_kind_field", _parse_name),
    "ignore-delete": _TableOption("ignore_delete", _parse_boolean),
    "first-row.ignore-delete": _TableOption("ignore_delete", _parse_boolean),
    "deduplicate.ignore-delete": _TableOption("ignore_delete", _parse_boolean),
    "partial-update.ignore-delete": _TableOption("ignore_delete", _parse_boolean),
    "ignore-update-before": _TableOption("ignore_update_before", _parse_boolean),
    "partial-update.remove-record-on-delete": _TableOption("remove_on_delete", _parse_boolean, (PARTIAL,)),
    "partial-update.remove-record-on-sequence-group": _TableOption(
        "remove_on_groups", _parse_names, (PARTIAL,)
    ),
    "aggregation.remove-record-on-delete": _TableOption("remove_on_delete", _parse_boolean, (AGGREGATION,)),
    _DEFAULT_FUNCTION: _TableOption("default_function", _parse_name, _WITH_FUNCTIONS),
    "primary-key.nullable": _TableOption("nullable_key", _parse_boolean),
    "changelog-producer": _TableOption(
        "producer", _build_choice_reader("none", "input", "lookup", "full-compaction")
    ),
    "changelog-producer.row-deduplicate": _TableOption(None, _parse_boolean),
    "changelog-producer.row-deduplicate-ignore-fields": _TableOption(None, _parse_names),
    "full-compaction.delta-commits": _TableOption(None, _parse_count),
    "sequence.snapshot-ordering": _TableOption(None, _parse_boolean),
    "deletion-vectors.enabled": _TableOption(None, _parse_boolean),
    "write-only": _TableOption(None, _parse_boolean),
    "bucket": _TableOption(None, _accept_value),
    "bucket-key": _TableOption(None, _accept_value),
}
_FIELD_OPTIONS: Mapping[str, tuple[str, Reader]] = {
    "aggregate-function": ("function", _parse_name),
    "ignore-retract": ("ignore_retract", _parse_boolean),
    "distinct": ("distinct", _parse_boolean),
    "list-agg-delimiter": ("delimiter", _parse_text),
    "nested-key": ("nested_key", _parse_names),
    "nested-key-null-strategy": ("null_strategy", _build_choice_reader("merge", "ignore", "error")),
    "nested-sequence-field": ("nested_sequence", _parse_names),
    "count-limit": ("count_limit", _parse_count),
    "ts-field": ("ts_field", _parse_name),
}
_SEQUENCE_GROUP = "sequence-group"
_GROUP_WORDS = ("columns", "descending", "function")

OPTIONS = tuple(_TABLE_OPTIONS)

# Options of Paimon that describe its files, or a way to pass on changes that a batch job does not have.
WITHOUT_EFFECT = (
    "bucket",
    "bucket-key",
    "write-only",
    "deletion-vectors.enabled",
    "full-compaction.delta-commits",
    "changelog-producer.row-deduplicate",
    "changelog-producer.row-deduplicate-ignore-fields",
)


class _OptionReader:
    """The parser of options, which converts texts to values and collects the problems."""

    def __init__(self, engine: str | None) -> None:
        self.engine = engine
        self.problems: list[Problem] = []
        self.settings: dict[str, Any] = {}
        self.columns: dict[str, dict[str, Any]] = {}
        self.groups: list[SequenceGroup] = []

    def take_option(self, key: str, value: Any) -> None:
        if key in _TABLE_OPTIONS:
            self._take_setting(key, value)
        elif match := _FIELD.match(key):
            self._take_field(key, match["name"], match["suffix"], value)
        else:
            hint = (
                did_you_mean(key, _TABLE_OPTIONS)
                or f"valid options: {', '.join(_TABLE_OPTIONS)}, fields.<column>.…"
            )
            self._add_problem(key, "unknown", f"unknown option {key!r}", hint)

    def build_options(self, raw_options: Mapping[str, Any]) -> Options:
        columns = {
            name: ColumnOptions(**values, set_options=frozenset(list_set_options(raw_options, name)))
            for name, values in self.columns.items()
        }
        return Options(
            **self.settings,
            columns=columns,
            groups=tuple(self.groups),
            set_options=frozenset(map(str, raw_options)),
        )

    def _take_setting(self, key: str, value: Any) -> None:
        setting = _TABLE_OPTIONS[key]
        self._for_engine(key, setting.engines)
        parsed_value = self._parse_value(key, setting.read, value)
        if parsed_value is None:
            return
        if key == "sequence.field.sort-order":
            parsed_value = parsed_value == "descending"
        if key == _DEFAULT_FUNCTION:
            parsed_value = self._find_function(key, parsed_value)
        if key == "merge-engine" and parsed_value != self.engine:
            self._add_problem(
                key,
                "contradiction",
                f"{key} is {parsed_value!r}, but merge_engine is {self.engine!r} (remove this option)",
            )
        if setting.sets == "ignore_delete":
            parsed_value = parsed_value or self.settings.get("ignore_delete", False)
        if setting.sets is not None and parsed_value is not None:
            self.settings[setting.sets] = parsed_value

    def _take_field(self, key: str, name: str, suffix: str, value: Any) -> None:
        if suffix == _SEQUENCE_GROUP:
            self._for_engine(key, (PARTIAL,))
            self._take_group(key, name, value)
            return
        if suffix not in _FIELD_OPTIONS:
            suggestion = did_you_mean(suffix, [*_FIELD_OPTIONS, _SEQUENCE_GROUP])
            hint = (
                suggestion.replace("'", f"'fields.{name}.", 1)
                or f"valid suffixes: {', '.join([*_FIELD_OPTIONS, _SEQUENCE_GROUP])}"
            )
            self._add_problem(key, "unknown", f"unknown option {key!r}", hint)
            return
        self._for_engine(key, _WITH_FUNCTIONS)
        part, read = _FIELD_OPTIONS[suffix]
        parsed_value = self._parse_value(key, read, value)
        if part == "function" and parsed_value is not None:
            parsed_value = self._find_function(key, parsed_value)
        if parsed_value is not None:
            self.columns.setdefault(name.strip(), {})[part] = parsed_value

    def _take_group(self, key: str, name: str, value: Any) -> None:
        """Parse a group: the names of its columns, or an object with further settings."""
        settings = value if isinstance(value, Mapping) else {"columns": value}
        for word in settings:
            if word not in _GROUP_WORDS:
                hint = suggest_name(str(word), _GROUP_WORDS, "keys")
                self._add_problem(key, "unknown", f"unknown key {word!r} of a sequence-group", hint)
        order, protected = (
            self._parse_value(key, _parse_names, name),
            self._parse_value(key, _parse_names, settings.get("columns", "")),
        )
        descending = self._parse_value(key, _parse_boolean, settings.get("descending", False))
        function = None
        if (
            "function" in settings
            and (word := self._parse_value(key, _parse_name, settings["function"])) is not None
        ):
            function = self._find_function(key, word)
        if order and protected:
            self.groups.append(SequenceGroup(order, protected, key, bool(descending), function))

    def _find_function(self, key: str, word: str) -> str | None:
        function = function_named(word)
        if function is None:
            self.problems.append(unknown_function(f"options.{key}", word))
        return function

    def _parse_value(self, key: str, read: Reader, value: Any) -> Any:
        try:
            return read(value)
        except ValueError as error:
            self._add_problem(key, "value", str(error))
            return None

    def _for_engine(self, key: str, engines: tuple[str, ...]) -> None:
        if self.engine in ENGINES and self.engine not in engines:
            message = f"{key} is not supported with merge_engine {self.engine!r}"
            self._add_problem(
                key, "engine", message, f"remove it, or set merge_engine to {' or '.join(engines)}"
            )

    def _add_problem(self, key: str, code: str, message: str, hint: str = "") -> None:
        self.problems.append(Problem(f"options.{key}", code, message, hint))


def read_options(raw: Mapping[str, Any], engine: str | None) -> tuple[Options, list[Problem]]:
    """Parse options for an engine; ``engine`` is None if it is unknown.

    >>> options, problems = read_options({"sequence.field": "ts", "ignore-delete": "TRUE"}, "deduplicate")
    >>> options.sequence, options.ignore_delete, problems
    (('ts',), True, [])
    """
    reading = _OptionReader(engine)
    for key, value in raw.items():
        reading.take_option(str(key), value)
    return reading.build_options(raw), reading.problems


def list_set_options(raw: Mapping[str, Any], column: str) -> Iterator[str]:
    """Yield the last parts of the options that are set for a column."""
    for suffix in _FIELD_OPTIONS:
        if f"fields.{column}.{suffix}" in raw:
            yield suffix


def options_of_functions() -> set[str]:
    """Return the last parts of the options that only some functions support."""
    return {option for function in FUNCTIONS.values() for option in function.options}
