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
_CATEGORY = "selected_field"
_LISTS = (SELECT, DROP, RENAME)
_FORMS = {
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


def select_columns(asked: ParsedOptions) -> tuple[Columns | None, list[Problem]]:
    """Return the output columns; None if they are wrong or depend on unknown schemas."""
    lists = [field for field in _LISTS if asked[field]]
    if asked[SELECTED] and lists:
        return None, [_refuse_both_lists(asked, lists)]
    if asked[SELECTED] is not None and not lists:
        return _read_selected(asked)
    if asked[SELECT] and asked[DROP]:
        names = f"{asked.spelling(SELECT)} and {asked.spelling(DROP)}"
        message = f"{names} cannot be combined"
        return None, [asked.build_problem(DROP, "config", message, "keep one of the lists")]
    return _by_lists(asked)


def list_unused_renames(asked: ParsedOptions) -> list[str]:
    """Return the renamed fields that are not selected: renaming them has no effect."""
    chosen = {(pick.stage, pick.field) for pick in _read_elements(asked, SELECT) if isinstance(pick, Column)}
    renamed = [pick for pick in _read_elements(asked, RENAME) if isinstance(pick, Column)]
    return [pick.source for pick in renamed if chosen and (pick.stage, pick.field) not in chosen]


def find_repeated_names(found: Sequence[Column], *, any_case: bool = False) -> dict[str, list[str]]:
    """Return every output name that occurs more than once, with all the fields that have it.

    ``any_case`` returns the names that differ only in case instead.
    """
    by_name: dict[str, list[Column]] = {}
    for column in found:
        by_name.setdefault(column.name.lower() if any_case else column.name, []).append(column)
    groups = [group for group in by_name.values() if len(group) > 1]
    if any_case:
        groups = [group for group in groups if len({column.name for column in group}) == len(group)]
    return {group[-1].name: [column.source for column in group] for group in groups}


def _refuse_both_lists(asked: ParsedOptions, lists: Sequence[str]) -> Problem:
    names = " and ".join(asked.spelling(field) for field in lists)
    message = f"{asked.spelling(SELECTED)} cannot be combined with {names}"
    hint = f"remove {names}: {asked.spelling(SELECTED)} lists all output columns with their names"
    return asked.build_problem(SELECTED, "config", message, hint)


def _read_selected(asked: ParsedOptions) -> tuple[Columns | None, list[Problem]]:
    found, problems = _check_elements(asked, SELECTED)
    if not found and not problems:
        message = f"{asked.spelling(SELECTED)} selects no fields"
        problems = [asked.build_problem(SELECTED, _CATEGORY, message, _FORMS[SELECTED])]
    problems += _check_duplicates(asked, found, SELECTED)
    return (None if problems else tuple(found)), problems


def _by_lists(asked: ParsedOptions) -> tuple[Columns | None, list[Problem]]:
    """Apply drop or select first and rename last, all at once; without any list select every field.

    Source: docs/semantics/joiner.md, Output columns.
    """
    chosen, problems = _check_elements(asked, SELECT)
    dropped, drop_problems = _check_elements(asked, DROP)
    renames, rename_problems = _check_elements(asked, RENAME)
    problems += [
        *drop_problems, *rename_problems, *_check_repeated_sources(asked, chosen),
        *_check_renamed_twice(asked, renames),
        *_check_dropped_and_renamed(asked, dropped, renames),
    ]  # fmt: skip
    if not asked[SELECT]:
        kept = _all_fields(asked)
        if kept is None:
            return None, problems
        gone = {(column.stage, column.field) for column in dropped}
        chosen = [column for column in kept if (column.stage, column.field) not in gone]
        if not any(asked[field] for field in _LISTS):
            everything = tuple(replace(column, name=column.source) for column in chosen)
            return everything, _check_duplicates(asked, everything, SELECTED)
    if not chosen and not problems:
        message = f"{asked.spelling(DROP)} drops all fields"
        problems.append(asked.build_problem(DROP, _CATEGORY, message, "keep at least one field"))
    names = {(column.stage, column.field): column.name for column in renames}
    chosen = [replace(column, name=names.get((column.stage, column.field), column.name)) for column in chosen]
    problems += _check_duplicates(asked, chosen, next(field for field in _LISTS if asked[field]))
    return (None if problems else tuple(chosen)), problems


def _all_fields(asked: ParsedOptions) -> list[Column] | None:
    """Return every field of every input in declared order; None if a schema is missing."""
    found = []
    for stage in asked.stages:
        schema = asked.find_schema(stage)
        if schema is None:
            return None
        found += [Column(stage, field.name, field.name) for field in schema]
    return found


def _check_elements(asked: ParsedOptions, field: str) -> tuple[list[Column], list[Problem]]:
    """Return the elements of a list that name a field, and the problems of the other elements."""
    found, problems = [], []
    for pick in _read_elements(asked, field):
        if isinstance(pick, str):
            message = f"{pick!r} is not a valid field reference"
            problems.append(asked.build_problem(field, _CATEGORY, message, _FORMS[field]))
        elif asked.stages and pick.stage not in asked.stages:
            problems.append(asked.unknown_stage(field, _CATEGORY, pick.stage, pick.source))
        elif missing := asked.unknown_field(field, _CATEGORY, pick.stage, pick.field):
            problems.append(missing)
        else:
            found.append(pick)
    return found, problems


def _read_elements(asked: ParsedOptions, field: str) -> Iterator[Column | str]:
    """Yield the parsed elements of a list; yield an element that cannot be parsed as it is written."""
    for element in asked[field] or ():
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
    named = field in {RENAME, SELECTED}
    known = {"input", "field", "as"} if named else {"input", "field"}
    words = [element.get("input"), element.get("field"), element.get("as", element.get("field"))]
    complete = all(isinstance(word, str) and word for word in words)
    if not complete or set(element) - known or (field == RENAME and "as" not in element):
        return None
    stage, name, new = map(str, words)
    return Column(stage, name, new)


def _check_duplicates(asked: ParsedOptions, found: Sequence[Column], field: str) -> list[Problem]:
    """Return problems for names that occur twice, and for names that a target cannot distinguish.

    Source: docs/semantics/joiner.md, Duplicate names.
    """
    advice = "rename all but one" if field == SELECTED else "drop or rename all but one"
    problems = [
        asked.build_problem(
            field, _CATEGORY, f"several output columns have the name {name!r}: {', '.join(behind)}", advice
        )
        for name, behind in find_repeated_names(found).items()
    ]
    if asked["target"] and not problems:
        problems = [
            asked.build_problem(
                field, _CATEGORY,
                f"{name!r} differs from another output column only in case, which targets do not support:"
                f" {', '.join(behind)}", advice,
            )
            for name, behind in find_repeated_names(found, any_case=True).items()
        ]  # fmt: skip
    return problems


def _check_repeated_sources(asked: ParsedOptions, chosen: Iterable[Column]) -> list[Problem]:
    sources = [column.source for column in chosen]
    return [
        asked.build_problem(
            SELECT, _CATEGORY, f"{source} is listed {sources.count(source)} times", "list it once"
        )
        for source in dict.fromkeys(sources)
        if sources.count(source) > 1
    ]


def _check_renamed_twice(asked: ParsedOptions, renames: Iterable[Column]) -> list[Problem]:
    names: dict[str, list[str]] = {}
    for column in renames:
        names.setdefault(column.source, []).append(column.name)
    return [
        asked.build_problem(
            RENAME, _CATEGORY, f"{source} has several new names: {', '.join(new)}", "keep one of them"
        )
        for source, new in names.items()
        if len(new) > 1
    ]


def _check_dropped_and_renamed(
    asked: ParsedOptions, dropped: Iterable[Column], renames: Iterable[Column]
) -> list[Problem]:
    gone = {column.source for column in dropped}
    drop = asked.spelling(DROP)
    return [
        asked.build_problem(
            RENAME, _CATEGORY, f"{column.source} is also in {drop}", "remove it from one of the lists"
        )
        for column in renames
        if column.source in gone
    ]
