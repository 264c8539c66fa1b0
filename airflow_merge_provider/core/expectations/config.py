"""The argument ``expect``: named conditions on rows, and the checks that they suit sources and columns.

Source: docs/expectations.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.errors import ConfigError, DataError, Problem, format_count, suggest_name

EXPECT = "expect"
# The table of the rows that runs leave out, beside the target.
REJECTED, REJECTED_SUFFIX = "rejected", "__rejected"
# The owner of the table of rejected rows, as its property names it.
REJECTED_OWNER = "rejected_rows"
Action = Literal["warn", "quarantine", "fail"]
Scope = Literal["source", "changes"]
Kind = Literal["condition", "not_null", "unique", "accepted_values", "foreign_key", "freshness"]

ACTIONS: tuple[Action, ...] = ("warn", "quarantine", "fail")
SCOPES: tuple[Scope, ...] = ("source", "changes")
EXPECTATION_KINDS: tuple[Kind, ...] = (
    "condition",
    "not_null",
    "unique",
    "accepted_values",
    "foreign_key",
    "freshness",
)
_EXPECTATION_FIELDS = ("action", "on", "source")
# Values of the same argument of joins, which are not expectations on rows.
CARDINALITIES = ("one_to_one", "one_to_many", "many_to_one")
# Kinds that compare a row with other rows, which a set of changes does not contain.
_SOURCE_KINDS = ("unique", "freshness")
_ROW_EXPECTATIONS = frozenset({"condition", "not_null", "accepted_values"})
_EXPECTATION_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")
_NAME_HINT = "use letters, digits and underscores, starting with a letter"
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*(second|minute|hour|day|week)s?\Z")
_SPAN_HINT = "use seconds, minutes, hours, days or weeks, such as '36 hours'"
_EXPECTATIONS_MAX = 200


@dataclass(frozen=True, slots=True)
class Expectation:
    """One expectation: ``kind`` says which of the fields below ``sources`` it uses.

    ``sources`` are the datasets or inputs that it applies to; empty if there is only one.
    """

    name: str
    kind: Kind
    action: Action = "fail"
    scope: Scope = "source"
    sources: tuple[str, ...] = ()
    condition: str = ""
    columns: tuple[str, ...] = ()
    values: tuple[Any, ...] = ()
    dataset: Any = None
    references: tuple[str, ...] = ()
    max_age: timedelta = timedelta()

    @property
    def path(self) -> str:
        """The path that errors name."""
        return f"{EXPECT}.{self.name}"

    @property
    def is_row_condition(self) -> bool:
        """Whether a row alone determines whether it meets the expectation."""
        return self.kind in _ROW_EXPECTATIONS

    def applies_to(self, source: str) -> bool:
        """Return whether the rows of a source have to meet the expectation."""
        return self.scope == "source" and (not self.sources or source in self.sources)

    def describe_condition(self) -> str:
        """Return the condition as users read it in messages and reports."""
        columns = ", ".join(self.columns)
        if self.kind == "condition":
            return self.condition
        if self.kind == "accepted_values":
            return f"{columns} in {', '.join(map(repr, self.values))}"
        if self.kind == "foreign_key":
            dataset = self.dataset["dataset"] if isinstance(self.dataset, Mapping) else self.dataset
            return f"{columns} in {dataset} ({', '.join(self.references)})"
        if self.kind == "freshness":
            return f"{columns} not older than {_format_duration(self.max_age)}"
        return f"{columns} {self.kind.replace('_', ' ')}"


def parse_expectations(raw: Any) -> tuple[Expectation, ...]:
    """Return the expectations of a valid value of ``expect``.

    >>> parse_expectations({"paid": "amount > 0", "id": {"not_null": "id", "action": "warn"}})[1].columns
    ('id',)
    """
    return tuple(
        _parse_expectation(name, value) for name, value in (raw or {}).items() if not is_cardinality(value)
    )


def is_cardinality(value: Any) -> bool:
    """Return whether a value is the cardinality of the keys of a join's input."""
    return isinstance(value, str) and value in CARDINALITIES


def find_problems(
    raw: Any,
    sources: Sequence[str] = (),
    *,
    no_quarantine: str | None = None,
    reads_changes: bool = False,
) -> Iterator[Problem]:
    """Yield the problems of a value of ``expect``.

    :param sources: the names of the sources, if there are several: each expectation must name those that it
        applies to.
    :param no_quarantine: why rows cannot be left out of the run; None if they can.
    :param reads_changes: whether runs read only the changed rows, so that a row alone must determine whether
        it is left out.
    """
    if raw is None:
        return
    if not isinstance(raw, Mapping):
        hint = 'write {"name": "SQL condition"}'
        yield Problem(EXPECT, "value", "must be an object of named expectations", hint)
        return
    if len(raw) > _EXPECTATIONS_MAX:
        yield Problem(EXPECT, "value", f"must not have more than {_EXPECTATIONS_MAX} expectations")
    for name, value in raw.items():
        yield from _find_problems(str(name), value, sources, no_quarantine, reads_changes=reads_changes)


def _find_problems(
    name: str, value: Any, sources: Sequence[str], no_quarantine: str | None, *, reads_changes: bool
) -> Iterator[Problem]:
    path = f"{EXPECT}.{name}"
    if not _EXPECTATION_NAME.fullmatch(name):
        yield Problem(EXPECT, "value", f"{name!r} is not a valid name of an expectation", _NAME_HINT)
    if isinstance(value, str):
        value = {"condition": value}
    if not isinstance(value, Mapping):
        hint = f"valid kinds: {', '.join(EXPECTATION_KINDS)}"
        yield Problem(path, "value", "must be a SQL condition, or an object with one kind", hint)
        return
    for key in value:
        if key not in (*EXPECTATION_KINDS, *_EXPECTATION_FIELDS):
            hint = suggest_name(str(key), (*EXPECTATION_KINDS, *_EXPECTATION_FIELDS), "names")
            yield Problem(f"{path}.{key}", "unknown", f"unknown argument {str(key)!r}", hint)
    kinds = [kind for kind in EXPECTATION_KINDS if kind in value]
    if len(kinds) != 1:
        message = f"has {len(kinds)} kinds, but needs exactly one" if kinds else "has no kind"
        yield Problem(path, "value", message, f"valid kinds: {', '.join(EXPECTATION_KINDS)}")
    for kind in kinds:
        yield from _find_kind_problems(f"{path}.{kind}", kind, value[kind])
    if no_quarantine is None and reads_changes and not set(kinds) <= _ROW_EXPECTATIONS:
        no_quarantine = "runs read only changed rows, and the expectation compares rows with other rows"
    yield from _find_setting_problems(path, value, kinds, no_quarantine)
    if value.get("on", "source") == "source":
        yield from _find_source_problems(f"{path}.source", value.get("source"), sources)


def _find_setting_problems(
    path: str, value: Mapping[str, Any], kinds: Sequence[Kind], no_quarantine: str | None
) -> Iterator[Problem]:
    action, scope = value.get("action", "fail"), value.get("on", "source")
    for name, word, valid in (("action", action, ACTIONS), ("on", scope, SCOPES)):
        if word not in valid:
            message = f"must be {' or '.join(map(repr, valid))}, not {word!r}"
            yield Problem(f"{path}.{name}", "value", message)
    hint = "set action to 'warn' or 'fail'"
    if action == "quarantine" and scope == "changes":
        message = "'quarantine' is not supported on changes, which follow from all rows of the source"
        yield Problem(f"{path}.action", "unsupported", message, f"{hint}, or set on to 'source'")
    elif action == "quarantine" and "freshness" in kinds:
        yield Problem(f"{path}.action", "unsupported", "'quarantine' is not supported with freshness", hint)
    elif action == "quarantine" and no_quarantine is not None:
        yield Problem(
            f"{path}.action", "unsupported", f"'quarantine' is not supported: {no_quarantine}", hint
        )
    for kind in kinds:
        if scope == "changes" and kind in _SOURCE_KINDS:
            message = f"{kind} is not supported on changes, which are only a part of the rows"
            yield Problem(f"{path}.on", "unsupported", message, "set on to 'source'")
    if scope == "changes" and value.get("source") is not None:
        yield Problem(f"{path}.source", "contradiction", "has no effect on changes", "remove it")


def _find_source_problems(path: str, value: Any, sources: Sequence[str]) -> Iterator[Problem]:
    names = _to_names(value)
    valid = f"valid sources: {', '.join(sources)}"
    if value is not None and names is None:
        yield Problem(path, "value", "must be the name of a source, or a list of names", valid)
    elif value is None and len(sources) > 1:
        yield Problem(path, "missing", "is required, because the run reads several sources", valid)
    elif sources:
        for name in names or ():
            if name not in sources:
                yield Problem(
                    path, "unknown", f"unknown source {name!r}", suggest_name(name, sources, "sources")
                )


def _find_kind_problems(path: str, kind: Kind, value: Any) -> Iterator[Problem]:
    """Yield the problems of the value of a kind."""
    if kind == "condition":
        if not isinstance(value, str) or not value.strip():
            yield Problem(
                path, "value", "must be a SQL condition", "write it as in WHERE, such as 'amount > 0'"
            )
    elif kind in ("not_null", "unique"):
        if _to_names(value) is None:
            yield Problem(path, "value", "must be a column name, or a list of column names")
    elif kind == "accepted_values":
        is_valid = isinstance(value, Mapping) and len(value) == 1 and all(map(_is_value_list, value.values()))
        if not is_valid:
            hint = 'write {"status": ["active", "closed"]}'
            yield Problem(path, "value", "must name one column and a list of its values", hint)
    elif kind == "foreign_key":
        yield from _find_reference_problems(path, value)
    else:
        yield from _find_freshness_problems(path, value)


def _find_reference_problems(path: str, value: Any) -> Iterator[Problem]:
    hint = 'write {"columns": "customer_id", "dataset": "customers", "references": "id"}'
    names = ("columns", "dataset", "references")
    if not isinstance(value, Mapping) or not {"columns", "dataset"} <= value.keys() <= set(names):
        yield Problem(path, "value", "must have columns, a dataset, and the columns that it references", hint)
        return
    columns, references = _to_names(value["columns"]), _to_names(value.get("references", value["columns"]))
    if columns is None or references is None:
        yield Problem(path, "value", "must name columns", hint)
    elif len(columns) != len(references):
        message = f"has {len(columns)} columns, but references {len(references)}"
        yield Problem(f"{path}.references", "value", message, "name one referenced column for each column")
    try:
        resolve_dataset(value["dataset"], "/", at=f"{path}.dataset")
    except ConfigError as error:
        yield from error.problems


def _find_freshness_problems(path: str, value: Any) -> Iterator[Problem]:
    hint = 'write {"column": "updated_at", "max_age": "1 day"}'
    if not isinstance(value, Mapping) or value.keys() != {"column", "max_age"}:
        yield Problem(path, "value", "must have a column and a max_age", hint)
        return
    if not isinstance(value["column"], str) or not value["column"].strip():
        yield Problem(f"{path}.column", "value", "must be a column name", hint)
    if _to_duration(value["max_age"]) is None:
        message = f"{value['max_age']!r} is not a valid duration"
        yield Problem(f"{path}.max_age", "value", message, _SPAN_HINT)


def _parse_expectation(name: str, value: Any) -> Expectation:
    settings: Mapping[str, Any] = {"condition": value} if isinstance(value, str) else value
    (kind,) = (kind for kind in EXPECTATION_KINDS if kind in settings)
    content: Any = settings[kind]
    fields: dict[str, Any] = {}
    if kind == "condition":
        fields["condition"] = content
    elif kind in ("not_null", "unique"):
        fields["columns"] = _to_names(content)
    elif kind == "accepted_values":
        ((column, values),) = content.items()
        fields |= {"columns": (column,), "values": tuple(values)}
    elif kind == "foreign_key":
        references = _to_names(content.get("references", content["columns"]))
        fields |= {"columns": _to_names(content["columns"]), "references": references}
        fields["dataset"] = content["dataset"]
    else:
        fields |= {"columns": (content["column"],), "max_age": _to_duration(content["max_age"])}
    return Expectation(
        name,
        kind,
        action=settings.get("action", "fail"),
        scope=settings.get("on", "source"),
        sources=_to_names(settings.get("source")) or (),
        **fields,
    )


def _format_duration(duration: timedelta) -> str:
    """Return a duration in its largest whole unit.

    >>> _format_duration(timedelta(hours=36))
    '36 hours'
    """
    for unit in ("weeks", "days", "hours", "minutes"):
        number, remainder = divmod(duration, timedelta(**{unit: 1}))
        if number and not remainder:
            return format_count(number, unit.removesuffix("s"))
    return f"{duration.total_seconds():g} seconds"


def _to_names(value: Any) -> tuple[str, ...] | None:
    """Return one or several names; None if they are not valid."""
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names:
        return None
    return tuple(names) if all(isinstance(name, str) and name.strip() for name in names) else None


def _is_value_list(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(isinstance(item, str | int | float | bool) for item in value)
    )


def _to_duration(value: Any) -> timedelta | None:
    """Return a duration; None if it is not valid."""
    if isinstance(value, timedelta):
        return value if value > timedelta() else None
    match = _AGE.match(value.strip().lower()) if isinstance(value, str) else None
    return timedelta(**{f"{match[2]}s": float(match[1])}) if match and float(match[1]) > 0 else None


def require_columns(columns: Sequence[str], expectations: Iterable[Expectation], where: str) -> None:
    """Check the columns that expectations name; only Spark can check those of SQL conditions.

    :param columns: the columns of the rows that the expectations are checked on.
    :param where: what the rows belong to, for messages.
    :raises DataError: with every column that the rows do not have.
    """
    problems = [
        problem
        for item in expectations
        for problem in find_unknown_columns(item.columns, columns, f"{item.path}.{item.kind}", where)
    ]
    if problems:
        raise DataError.from_problems(problems)


def require_sources(names: Sequence[str], expectations: Iterable[Expectation]) -> None:
    """Check that the run has the sources that expectations name; otherwise they would apply to nothing.

    :param names: the names of the sources of the run.
    :raises DataError: with every other name.
    """
    problems = [
        Problem(
            f"{item.path}.source", "unknown", f"unknown source {name!r}", suggest_name(name, names, "sources")
        )
        for item in expectations
        for name in item.sources
        if name not in names
    ]
    if problems:
        raise DataError.from_problems(problems)


def find_unknown_columns(
    names: Iterable[str], columns: Sequence[str], path: str, where: str
) -> list[Problem]:
    """Return a problem for each name that is not a column; case is ignored, as in Spark."""
    folded_names = {column.casefold() for column in columns}
    return [
        Problem(
            path, "unknown-column", f"{where} has no column {name!r}", suggest_name(name, columns, "columns")
        )
        for name in names
        if name.casefold() not in folded_names
    ]
