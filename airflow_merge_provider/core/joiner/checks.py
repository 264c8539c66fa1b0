"""Checks of a join across properties: inputs, required inputs, output schema, added columns.

Source: docs/semantics/joiner.md, Properties; Input names; Output schema; Problems.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.errors import ConfigError, Problem
from airflow_merge_provider.core.joiner.columns import Columns, list_unused_renames, select_columns
from airflow_merge_provider.core.joiner.conditions import condition_problems, condition_warnings
from airflow_merge_provider.core.joiner.hints import hint_problems, hint_warnings
from airflow_merge_provider.core.joiner.keys import Keys, read_keys
from airflow_merge_provider.core.joiner.parsed_options import ParsedOptions
from airflow_merge_provider.core.joiner.schema import Field, Schema
from airflow_merge_provider.core.joiner.sinks import column_problems, place_problems

_RESERVED = re.compile(r"[.,:=&`]| as ")
_LEAST = 2
_SIDED = ("leftouterjoin", "rightouterjoin", "fullouterjoin")


def list_problems(asked: ParsedOptions) -> list[Problem]:
    """Return all problems that can be detected, in the order in which the properties are read."""
    found = [*_input_problems(asked), *_required_problems(asked)]
    key_fields, key_problems = read_keys(asked)
    chosen, chosen_problems = select_columns(asked)
    found += [*key_problems, *chosen_problems, *hint_problems(asked), *condition_problems(asked)]
    found += [*_addition_problems(asked, chosen, key_fields), *place_problems(asked)]
    if found:
        return found
    # As in CDAP, a declared schema is only compared with a valid output.
    return [*_output_problems(asked, chosen), *column_problems(asked, build_output_schema(asked) or ())]


def list_warnings(asked: ParsedOptions) -> list[str]:
    """Return warnings about settings that are valid but probably not intended."""
    say, kind = asked.spelling, asked["join_type"]
    found = []
    if kind is None and asked["required_inputs"] is None:
        found.append(
            f"neither {say('join_type')} nor {say('required_inputs')} is set: the join is a full outer join"
        )
    if kind in {"innerjoin", "crossjoin"} and asked["required_inputs"]:
        found.append(f"{say('required_inputs')}: has no effect with {say('join_type')} {kind}")
    found += [
        f"{say('fields_to_rename')}: {source} is not selected, so its new name has no effect"
        for source in list_unused_renames(asked)
    ]
    return [*found, *condition_warnings(asked), *hint_warnings(asked)]


def build_output_schema(asked: ParsedOptions) -> Schema | None:
    """Return the output fields; None if columns or schemas are unknown.

    A field is nullable if its input is optional, or if it is nullable in the input. Source:
    docs/semantics/joiner.md, Nullability.
    """
    chosen, _ = select_columns(asked)
    if chosen is None or any(asked.find_schema(stage) is None for stage in asked.stages):
        return None
    if any(column.stage not in asked.stages for column in chosen):
        # The inputs themselves are wrong, which another check reports.
        return None
    inputs = {
        (stage, field.name): field for stage in asked.stages for field in asked.find_schema(stage) or ()
    }
    found = []
    for column in chosen:
        field = inputs[column.stage, column.field]
        found.append(Field(column.name, field.type, field.nullable or column.stage not in asked.required))
    return tuple(found)


def _input_problems(asked: ParsedOptions) -> Iterator[Problem]:
    if "inputs" not in asked.values:
        return
    if len(asked.stages) < _LEAST:
        message = f"a join requires at least two inputs, found {len(asked.stages)}"
        yield asked.build_problem("inputs", "input", message, "add another dataset")
    for stage in asked.stages:
        if not stage or stage != stage.strip() or _RESERVED.search(stage):
            hint = "remove blanks around the name, and each of . , : = & ` and ' as ' in it"
            yield asked.build_problem("inputs", "input", f"{stage!r} is not a valid input name", hint)
    for stage, ref in asked["inputs"].items():
        yield from _reference_problems(ref, f"{asked.spelling('inputs')}.{stage}")
    count = asked["num_of_inputs"]
    if count is not None and count != len(asked.stages):
        message = f"is {count}, but there are {len(asked.stages)} inputs"
        yield asked.build_problem("num_of_inputs", "input", message, f"inputs: {', '.join(asked.stages)}")
    target = asked["target"]
    if target is not None:
        yield from _reference_problems(target, asked.spelling("target"))
        if target in asked["inputs"].values():
            yield asked.build_problem(
                "target", "config", f"{target!r} is one of the inputs", "choose another dataset"
            )


def _reference_problems(ref: object, path: str) -> Iterator[Problem]:
    try:
        resolve_dataset(ref, "/", at=path)  # type: ignore[arg-type]  # resolve_dataset refuses what is no reference
    except ConfigError as error:
        yield from error.problems


def _required_problems(asked: ParsedOptions) -> Iterator[Problem]:
    given = asked["required_inputs"]
    for stage in dict.fromkeys(given or ()):
        if asked.stages and stage not in asked.stages:
            yield asked.unknown_stage("required_inputs", "required_input", stage)
    if asked["join_type"] in _SIDED and given is not None and set(given) != asked.required:
        what = ", ".join(sorted(asked.required)) or "no input"
        message = f"does not match {asked.spelling('join_type')} {asked['join_type']}, which requires {what}"
        hint = f"remove {asked.spelling('required_inputs')}, or set outerjoin"
        yield asked.build_problem("required_inputs", "config", message, hint)


def _addition_problems(
    asked: ParsedOptions, chosen: Columns | None, fields: Keys | None
) -> Iterator[Problem]:
    yield from _name_problems(asked, chosen)
    yield from _key_column_problems(asked, fields)
    yield from _expect_problems(asked)
    beside = asked["unmatched"]
    if beside is None:
        return
    yield from _reference_problems(beside, asked.spelling("unmatched"))
    if beside == asked["target"] or beside in (asked["inputs"] or {}).values():
        yield asked.build_problem(
            "unmatched", "config", f"{beside!r} is also an input or the target", "choose another dataset"
        )
    if asked.cross or (asked.stages and not asked.required):
        yield asked.build_problem(
            "unmatched",
            "config",
            "is not supported with cross joins and full outer joins, which return all rows",
            "remove it",
        )


def _name_problems(asked: ParsedOptions, chosen: Columns | None) -> Iterator[Problem]:
    """Yield problems for added columns whose names are already taken."""
    taken = {column.name.lower() for column in chosen or ()}
    added = [("key_columns", name) for name in asked["key_columns"] or ()]
    added += [("indicator", asked["indicator"])] if asked["indicator"] else []
    for field, name in added:
        if name.lower() in taken:
            yield asked.build_problem(
                field, "config", f"{name!r} is already the name of an output column", "choose another name"
            )
        taken.add(name.lower())


def _key_column_problems(asked: ParsedOptions, fields: Keys | None) -> Iterator[Problem]:
    """Yield problems for key column names that do not match the clauses, and for keys of different types.

    Decimals of different sizes count as different types here.
    """
    names = asked["key_columns"]
    if names is None or fields is None:
        return
    clauses = list(zip(*fields.values(), strict=True))
    if len(names) != len(clauses):
        message = f"has {len(names)} names, but the number of key clauses is {len(clauses)}"
        yield asked.build_problem("key_columns", "config", message, "set one name per key clause")
    for clause in clauses:
        kinds = {
            field.type
            for stage, name in zip(fields, clause, strict=True)
            for field in asked.find_schema(stage) or ()
            if field.name == name
        }
        if len(kinds) > 1:
            message = f"the fields of the key have different types: {' and '.join(sorted(kinds))}"
            yield asked.build_problem(
                "key_columns", "config", message, "a column has one type: cast the fields upstream"
            )


def _expect_problems(asked: ParsedOptions) -> Iterator[Problem]:
    expected = asked["expect"] or {}
    if expected and (asked.cross or asked.advanced):
        yield asked.build_problem("expect", "config", "is supported only for joins by keys", "remove it")
    for stage in expected:
        if asked.stages and stage not in asked.stages:
            yield asked.unknown_stage("expect", "config", stage)
        elif stage == find_driving_input(asked):
            message = f"{stage!r} is the input that the other inputs are compared with"
            yield asked.build_problem("expect", "config", message, "set the cardinality of the other inputs")


def find_driving_input(asked: ParsedOptions) -> str | None:
    """Return the input that ``expect`` compares with: the first required input, else the first input."""
    required = [stage for stage in asked.stages if stage in asked.required]
    return next(iter([*required, *asked.stages]), None)


def _output_problems(asked: ParsedOptions, chosen: Columns | None) -> Iterator[Problem]:
    """Compare the declared schema with the output. Source: docs/semantics/joiner.md, Output schema."""
    if asked["output_schema"] is None:
        return
    wanted: dict[str, Field] = {}
    for field in asked["output_schema"]:
        if field.name in wanted:
            yield _output_problem(asked, f"{field.name!r} is declared more than once")
        wanted[field.name] = field
    if chosen is None:
        return
    names = [column.name for column in chosen]
    if missing := [name for name in names if name not in wanted]:
        yield _output_problem(asked, f"does not declare the output columns {', '.join(missing)}")
    for name in wanted:
        if name not in names:
            yield _output_problem(
                asked, f"{name!r} is not an output column", f"output columns: {', '.join(names)}"
            )
    for field in build_output_schema(asked) or ():
        given = wanted.get(field.name)
        if given is not None:
            yield from _field_problems(asked, field, given)


def _field_problems(asked: ParsedOptions, field: Field, given: Field) -> Iterator[Problem]:
    if given.type != field.type:
        yield _output_problem(asked, f"{field.name!r} has type {field.type}, but is declared as {given.type}")
    if field.nullable and not given.nullable:
        yield _output_problem(
            asked, f"{field.name!r} must be nullable", "its input may contain NULL or have no matching row"
        )


def _output_problem(
    asked: ParsedOptions, message: str, hint: str = "declare the output columns, each once"
) -> Problem:
    return asked.build_problem("output_schema", "output_schema", message, hint)
