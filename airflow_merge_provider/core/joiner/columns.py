"""The output columns, their order and their names, from selectedFields or from the three lists.

Source: docs/semantics/joiner.md, Output columns; Duplicate names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_merge_provider.core.errors import Problem
from airflow_merge_provider.core.joiner.parsed_options import ParsedOptions

SELECTED, SELECT, DROP, RENAME = "selected_fields", "fields_to_select", "fields_to_drop", "fields_to_rename"
_SELECTED_FIELD = "selected_field"
_LIST_OPTIONS = (SELECT, DROP, RENAME)
_LIST_FORMS = {
    SELECTED: "write <input>.<field> or <input>.<field> as <name>",
    SELECT: "write <input>.<field>",
    DROP: "write <input>.<field>",
    RENAME: "write <input>.<field>:<new name>",
}


@dataclass(frozen=True, slots=True)
class Column:
    """A field of an input and its name in the output."""

    stage: str
    field: str
    name: str

    @property
    def source(self) -> str:
        """The field as users write it."""
        return f"{self.stage}.{self.field}"


Columns = tuple[Column, ...]


def select_columns(options: ParsedOptions) -> tuple[Columns | None, list[Problem]]:
    """Return the output columns; None if they are wrong or depend on unknown schemas."""
    lists = [field for field in _LIST_OPTIONS if options[field]]
    if options[SELECTED] and lists:
        return None, [_refuse_both_lists(options, lists)]
    if options[SELECTED] is not None and not lists:
        return _read_selected(options)
    if options[SELECT] and options[DROP]:
        names = f"{options.spelling(SELECT)} and {options.spelling(DROP)}"
        message = f"{names} cannot be combined"
        return None, [options.build_problem(DROP, "config", message, "keep one of the lists")]
    return _by_lists(options)


def list_unused_renames(options: ParsedOptions) -> list[str]:
    """Return the renamed fields that are not selected: renaming them has no effect."""
    selected_fields = {
        (pick.stage, pick.field) for pick in _read_elements(options, SELECT) if isinstance(pick, Column)
    }
    renames = [pick for pick in _read_elements(options, RENAME) if isinstance(pick, Column)]
    return [
        pick.source for pick in renames if selected_fields and (pick.stage, pick.field) not in selected_fields
    ]


def find_repeated_names(columns: Sequence[Column], *, any_case: bool = False) -> dict[str, list[str]]:
    """Return every output name that occurs more than once, with all the fields that have it.

    ``any_case`` returns the names that differ only in case instead.
    """
    by_name: dict[str, list[Column]] = {}
    for column in columns:
        by_name.setdefault(column.name.lower() if any_case else column.name, []).append(column)
    groups = [group for group in by_name.values() if len(group) > 1]
    if any_case:
        groups = [group for group in groups if len({column.name for column in group}) == len(group)]
    return {group[-1].name: [column.source for column in group] for group in groups}


def _refuse_both_lists(options: ParsedOptions, lists: Sequence[str]) -> Problem:
    names = " and ".join(options.spelling(field) for field in lists)
    message = f"{options.spelling(SELECTED)} cannot be combined with {names}"
    hint = f"remove {names}: {options.spelling(SELECTED)} lists all output columns with their names"
    return options.build_problem(SELECTED, "config", message, hint)


def _read_selected(options: ParsedOptions) -> tuple[Columns | None, list[Problem]]:
    columns, problems = _check_elements(options, SELECTED)
    if not columns and not problems:
        message = f"{options.spelling(SELECTED)} selects no fields"
        problems = [options.build_problem(SELECTED, _SELECTED_FIELD, message, _LIST_FORMS[SELECTED])]
    problems += _check_duplicates(options, columns, SELECTED)
    return (None if problems else tuple(columns)), problems


def _by_lists(options: ParsedOptions) -> tuple[Columns | None, list[Problem]]:
    """Apply drop or select first and rename last, all at once; without any list select every field.

    Source: docs/semantics/joiner.md, Output columns.
    """
    columns, problems = _check_elements(options, SELECT)
    dropped, drop_problems = _check_elements(options, DROP)
    renames, rename_problems = _check_elements(options, RENAME)
    problems += [
        *drop_problems, *rename_problems, *_check_repeated_sources(options, columns),
        *_check_renamed_twice(options, renames),
        *_check_dropped_and_renamed(options, dropped, renames),
    ]  # fmt: skip
    if not options[SELECT]:
        all_fields = _all_fields(options)
        if all_fields is None:
            return None, problems
        dropped_fields = {(column.stage, column.field) for column in dropped}
        columns = [column for column in all_fields if (column.stage, column.field) not in dropped_fields]
        if not any(options[field] for field in _LIST_OPTIONS):
            all_columns = tuple(replace(column, name=column.source) for column in columns)
            return all_columns, _check_duplicates(options, all_columns, SELECTED)
    if not columns and not problems:
        message = f"{options.spelling(DROP)} drops all fields"
        problems.append(options.build_problem(DROP, _SELECTED_FIELD, message, "keep at least one field"))
    names = {(column.stage, column.field): column.name for column in renames}
    columns = [
        replace(column, name=names.get((column.stage, column.field), column.name)) for column in columns
    ]
    problems += _check_duplicates(options, columns, next(field for field in _LIST_OPTIONS if options[field]))
    return (None if problems else tuple(columns)), problems


def _all_fields(options: ParsedOptions) -> list[Column] | None:
    """Return every field of every input in declared order; None if a schema is missing."""
    columns = []
    for stage in options.stages:
        schema = options.find_schema(stage)
        if schema is None:
            return None
        columns += [Column(stage, field.name, field.name) for field in schema]
    return columns


def _check_elements(options: ParsedOptions, field: str) -> tuple[list[Column], list[Problem]]:
    """Return the elements of a list that name a field, and the problems of the other elements."""
    columns, problems = [], []
    for pick in _read_elements(options, field):
        if isinstance(pick, str):
            message = f"{pick!r} is not a valid field reference"
            problems.append(options.build_problem(field, _SELECTED_FIELD, message, _LIST_FORMS[field]))
        elif options.stages and pick.stage not in options.stages:
            problems.append(options.unknown_stage(field, _SELECTED_FIELD, pick.stage, pick.source))
        elif missing := options.unknown_field(field, _SELECTED_FIELD, pick.stage, pick.field):
            problems.append(missing)
        else:
            columns.append(pick)
    return columns, problems


def _read_elements(options: ParsedOptions, field: str) -> Iterator[Column | str]:
    """Yield the parsed elements of a list; yield an element that cannot be parsed as it is written."""
    for element in options[field] or ():
        yield _read_element(field, element) or str(element)


def _read_element(field: str, element: Any) -> Column | None:
    if isinstance(element, Mapping):
        return _read_object(field, element)
    # As in CDAP, text after a second " as " is ignored.
    source, *names = element.split(":" if field == RENAME else " as ")
    stage, _, name = (word.strip() for word in source.partition("."))
    new = [word.strip() for word in names]
    fits = field == SELECTED or len(new) == (field == RENAME)
    readable = stage and name and "." not in name and fits and all(new)
    return Column(stage, name, new[0] if new else name) if readable else None


def _read_object(field: str, element: Mapping[str, Any]) -> Column | None:
    """Parse ``{"input": …, "field": …, "as": …}``, the form for names that contain a separator."""
    has_name = field in {RENAME, SELECTED}
    valid_keys = {"input", "field", "as"} if has_name else {"input", "field"}
    values = [element.get("input"), element.get("field"), element.get("as", element.get("field"))]
    is_complete = all(isinstance(word, str) and word for word in values)
    if not is_complete or set(element) - valid_keys or (field == RENAME and "as" not in element):
        return None
    stage, name, new = map(str, values)
    return Column(stage, name, new)


def _check_duplicates(options: ParsedOptions, columns: Sequence[Column], field: str) -> list[Problem]:
    """Return problems for names that occur twice, and for names that a target cannot distinguish.

    Source: docs/semantics/joiner.md, Duplicate names.
    """
    advice = "rename all but one" if field == SELECTED else "drop or rename all but one"
    problems = [
        options.build_problem(
            field,
            _SELECTED_FIELD,
            f"several output columns have the name {name!r}: {', '.join(sources)}",
            advice,
        )
        for name, sources in find_repeated_names(columns).items()
    ]
    if options["target"] and not problems:
        problems = [
            options.build_problem(
                field, _SELECTED_FIELD,
                f"{name!r} differs from another output column only in case, which targets do not support:"
                f" {', '.join(sources)}", advice,
            )
            for name, sources in find_repeated_names(columns, any_case=True).items()
        ]  # fmt: skip
    return problems


def _check_repeated_sources(options: ParsedOptions, columns: Iterable[Column]) -> list[Problem]:
    sources = [column.source for column in columns]
    return [
        options.build_problem(
            SELECT, _SELECTED_FIELD, f"{source} is listed {sources.count(source)} times", "list it once"
        )
        for source in dict.fromkeys(sources)
        if sources.count(source) > 1
    ]


def _check_renamed_twice(options: ParsedOptions, renames: Iterable[Column]) -> list[Problem]:
    names: dict[str, list[str]] = {}
    for column in renames:
        names.setdefault(column.source, []).append(column.name)
    return [
        options.build_problem(
            RENAME,
            _SELECTED_FIELD,
            f"{source} has several new names: {', '.join(new_names)}",
            "keep one of them",
        )
        for source, new_names in names.items()
        if len(new_names) > 1
    ]


def _check_dropped_and_renamed(
    options: ParsedOptions, dropped: Iterable[Column], renames: Iterable[Column]
) -> list[Problem]:
    dropped_sources = {column.source for column in dropped}
    drop = options.spelling(DROP)
    return [
        options.build_problem(
            RENAME, _SELECTED_FIELD, f"{column.source} is also in {drop}", "remove it from one of the lists"
        )
        for column in renames
        if column.source in dropped_sources
    ]
