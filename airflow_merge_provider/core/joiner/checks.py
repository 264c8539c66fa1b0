"""Checks of a join across properties: inputs, conditions, required inputs, output schema, added columns.

Source: docs/semantics/joiner.md, Properties; Input names; Output schema; Problems.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.errors import ConfigError, Problem
from airflow_merge_provider.core.expectations.config import CARDINALITIES, find_problems, is_cardinality
from airflow_merge_provider.core.joiner.columns import Columns, list_unused_renames, select_columns
from airflow_merge_provider.core.joiner.keys import Keys, read_keys
from airflow_merge_provider.core.joiner.parsed_options import (
    IN_MEMORY,
    ParsedOptions,
    hint_problems,
    hint_warnings,
)
from airflow_merge_provider.core.joiner.schema import Field, Schema

TYPE, EXPRESSION, INPUT_ALIASES = "condition_type", "condition_expression", "input_aliases"
_INVALID_CONDITION = "invalid_condition"
_EXPRESSION_INPUTS = 2


def find_aliases(options: ParsedOptions) -> dict[str, str]:
    """Return the alias of every input in the expression."""
    aliases = dict(options[INPUT_ALIASES] or ())
    return {stage: aliases.get(stage, stage) for stage in options.stages}


def condition_problems(options: ParsedOptions) -> Iterator[Problem]:
    """Yield the problems of an expression that can be detected without Spark."""
    yield from _alias_problems(options)
    if not options.advanced:
        return
    if options.cross:
        message = f"advanced is not supported with {options.spelling('join_type')} crossjoin"
        yield options.build_problem(TYPE, "config", message, "use an inner join with the expression")
    if options.stages and len(options.stages) != _EXPRESSION_INPUTS:
        message = f"{options.spelling(TYPE)} advanced requires two inputs, found {len(options.stages)}"
        yield options.build_problem(
            TYPE, _INVALID_CONDITION, message, "join two inputs first, then the others"
        )
    if EXPRESSION in options.values and not (options[EXPRESSION] or "").strip():
        message = f"{options.spelling(EXPRESSION)} is required with {options.spelling(TYPE)} advanced"
        yield options.build_problem(
            EXPRESSION, _INVALID_CONDITION, message, "write a boolean SQL expression over <input>.<field>"
        )
    is_outer = len(options.required & set(options.stages)) < len(options.stages)
    if is_outer and not options[IN_MEMORY]:
        message = (
            f"an outer join by an expression requires one of its inputs in {options.spelling(IN_MEMORY)}"
        )
        yield options.build_problem(IN_MEMORY, "broadcast", message, "set the smaller input")


def condition_warnings(options: ParsedOptions) -> Iterator[str]:
    """Yield warnings about properties that have no effect with an expression, or only with one."""
    if options.advanced:
        ineffective_options = [name for name in ("join_keys", "num_partitions") if options[name]]
        ineffective_options += ["join_null_keys"] if options["join_null_keys"] is False else []
        yield from (
            f"{options.spelling(name)}: has no effect with {options.spelling(TYPE)} advanced"
            for name in ineffective_options
        )
        return
    ineffective_options = [name for name in (EXPRESSION, INPUT_ALIASES) if options[name]]
    yield from (
        f"{options.spelling(name)}: has an effect only with {options.spelling(TYPE)} advanced"
        for name in ineffective_options
    )


def _alias_problems(options: ParsedOptions) -> Iterator[Problem]:
    pairs = options[INPUT_ALIASES] or ()
    for stage in dict.fromkeys(stage for stage, _ in pairs):
        if options.stages and stage not in options.stages:
            yield options.unknown_stage(INPUT_ALIASES, "config", stage)
        aliases = [alias for alias_stage, alias in pairs if alias_stage == stage]
        if len(aliases) > 1:
            message = f"{stage!r} has several aliases: {', '.join(aliases)}"
            yield options.build_problem(INPUT_ALIASES, "config", message, "set one alias")
    names = list(find_aliases(options).values())
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            message = f"{name!r} refers to more than one input"
            yield options.build_problem(INPUT_ALIASES, "config", message, "set a unique alias for each input")


_RESERVED_CHARACTERS = re.compile(r"[.,:=&`]| as ")
_JOINED_INPUTS_MIN = 2
_SIDED = ("leftouterjoin", "rightouterjoin", "fullouterjoin")


def list_problems(options: ParsedOptions) -> list[Problem]:
    """Return all problems that can be detected, in the order in which the properties are read."""
    problems = [*_input_problems(options), *_required_problems(options)]
    key_fields, key_problems = read_keys(options)
    columns, selection_problems = select_columns(options)
    problems += [*key_problems, *selection_problems, *hint_problems(options), *condition_problems(options)]
    problems += _addition_problems(options, columns, key_fields)
    # As in CDAP, a declared schema is only compared with a valid output.
    return problems or list(_output_problems(options, columns))


def list_warnings(options: ParsedOptions) -> list[str]:
    """Return warnings about settings that are valid but probably not intended."""
    spelling, join_type = options.spelling, options["join_type"]
    warnings = []
    if join_type is None and options["required_inputs"] is None:
        warnings.append(
            f"neither {spelling('join_type')} nor {spelling('required_inputs')} is set:"
            " the join is a full outer join"
        )
    if join_type in {"innerjoin", "crossjoin"} and options["required_inputs"]:
        warnings.append(
            f"{spelling('required_inputs')}: has no effect with {spelling('join_type')} {join_type}"
        )
    warnings += [
        f"{spelling('fields_to_rename')}: {source} is not selected, so its new name has no effect"
        for source in list_unused_renames(options)
    ]
    return [*warnings, *condition_warnings(options), *hint_warnings(options)]


def build_output_schema(options: ParsedOptions) -> Schema | None:
    """Return the output fields; None if columns or schemas are unknown.

    A field is nullable if its input is optional, or if it is nullable in the input. Source:
    docs/semantics/joiner.md, Nullability.
    """
    columns, _ = select_columns(options)
    if columns is None or any(options.find_schema(stage) is None for stage in options.stages):
        return None
    if any(column.stage not in options.stages for column in columns):
        # The inputs themselves are wrong, which another check reports.
        return None
    inputs = {
        (stage, field.name): field for stage in options.stages for field in options.find_schema(stage) or ()
    }
    output_fields = []
    for column in columns:
        field = inputs[column.stage, column.field]
        output_fields.append(
            Field(column.name, field.type, field.nullable or column.stage not in options.required)
        )
    return tuple(output_fields)


def _input_problems(options: ParsedOptions) -> Iterator[Problem]:
    if "inputs" not in options.values:
        return
    if len(options.stages) < _JOINED_INPUTS_MIN:
        message = f"a join requires at least two inputs, found {len(options.stages)}"
        yield options.build_problem("inputs", "input", message, "add another dataset")
    for stage in options.stages:
        if not stage or stage != stage.strip() or _RESERVED_CHARACTERS.search(stage):
            hint = "remove blanks around the name, and each of . , : = & ` and ' as ' in it"
            yield options.build_problem("inputs", "input", f"{stage!r} is not a valid input name", hint)
    for stage, ref in options["inputs"].items():
        yield from _reference_problems(ref, f"{options.spelling('inputs')}.{stage}")
    count = options["num_of_inputs"]
    if count is not None and count != len(options.stages):
        message = f"is {count}, but there are {len(options.stages)} inputs"
        yield options.build_problem("num_of_inputs", "input", message, f"inputs: {', '.join(options.stages)}")
    target = options["target"]
    if target is not None:
        yield from _reference_problems(target, options.spelling("target"))
        if target in options["inputs"].values():
            yield options.build_problem(
                "target", "config", f"{target!r} is one of the inputs", "choose another dataset"
            )


def _reference_problems(ref: object, path: str) -> Iterator[Problem]:
    try:
        resolve_dataset(ref, "/", at=path)  # type: ignore[arg-type]  # resolve_dataset refuses what is no reference
    except ConfigError as error:
        yield from error.problems


def _required_problems(options: ParsedOptions) -> Iterator[Problem]:
    required_inputs = options["required_inputs"]
    for stage in dict.fromkeys(required_inputs or ()):
        if options.stages and stage not in options.stages:
            yield options.unknown_stage("required_inputs", "required_input", stage)
    if (
        options["join_type"] in _SIDED
        and required_inputs is not None
        and set(required_inputs) != options.required
    ):
        required_names = ", ".join(sorted(options.required)) or "no input"
        message = (
            f"does not match {options.spelling('join_type')} {options['join_type']},"
            f" which requires {required_names}"
        )
        hint = f"remove {options.spelling('required_inputs')}, or set outerjoin"
        yield options.build_problem("required_inputs", "config", message, hint)


def _addition_problems(
    options: ParsedOptions, columns: Columns | None, key_fields: Keys | None
) -> Iterator[Problem]:
    yield from _name_problems(options, columns)
    yield from _key_column_problems(options, key_fields)
    yield from _expect_problems(options)
    unmatched = options["unmatched"]
    if unmatched is None:
        return
    yield from _reference_problems(unmatched, options.spelling("unmatched"))
    if unmatched == options["target"] or unmatched in (options["inputs"] or {}).values():
        yield options.build_problem(
            "unmatched", "config", f"{unmatched!r} is also an input or the target", "choose another dataset"
        )
    if options.cross or (options.stages and not options.required):
        yield options.build_problem(
            "unmatched",
            "config",
            "is not supported with cross joins and full outer joins, which return all rows",
            "remove it",
        )


def _name_problems(options: ParsedOptions, columns: Columns | None) -> Iterator[Problem]:
    """Yield problems for added columns whose names are already taken."""
    used_names = {column.name.lower() for column in columns or ()}
    added = [("key_columns", name) for name in options["key_columns"] or ()]
    added += [("indicator", options["indicator"])] if options["indicator"] else []
    for field, name in added:
        if name.lower() in used_names:
            yield options.build_problem(
                field, "config", f"{name!r} is already the name of an output column", "choose another name"
            )
        used_names.add(name.lower())


def _key_column_problems(options: ParsedOptions, key_fields: Keys | None) -> Iterator[Problem]:
    """Yield problems for key column names that do not match the clauses, and for keys of different types.

    Decimals of different sizes count as different types here.
    """
    names = options["key_columns"]
    if names is None or key_fields is None:
        return
    clauses = list(zip(*key_fields.values(), strict=True))
    if len(names) != len(clauses):
        message = f"has {len(names)} names, but the number of key clauses is {len(clauses)}"
        yield options.build_problem("key_columns", "config", message, "set one name per key clause")
    for clause in clauses:
        types = {
            field.type
            for stage, name in zip(key_fields, clause, strict=True)
            for field in options.find_schema(stage) or ()
            if field.name == name
        }
        if len(types) > 1:
            message = f"the fields of the key have different types: {' and '.join(sorted(types))}"
            yield options.build_problem(
                "key_columns", "config", message, "a column has one type: cast the fields upstream"
            )


def _expect_problems(options: ParsedOptions) -> Iterator[Problem]:
    expected = list_cardinalities(options)
    yield from _condition_problems(options)
    if expected and (options.cross or options.advanced):
        yield options.build_problem("expect", "config", "is supported only for joins by keys", "remove it")
    for stage in expected:
        if options.stages and stage not in options.stages:
            yield options.unknown_stage("expect", "config", stage)
        elif stage == find_driving_input(options):
            message = f"{stage!r} is the input that the other inputs are compared with"
            yield options.build_problem(
                "expect", "config", message, "set the cardinality of the other inputs"
            )


def _condition_problems(options: ParsedOptions) -> Iterator[Problem]:
    """Yield the problems of expectations on rows; each names the inputs that it applies to."""
    conditions = {
        name: value for name, value in (options["expect"] or {}).items() if not is_cardinality(value)
    }
    for name in [name for name, value in conditions.items() if isinstance(value, str)]:
        message = (
            f"must be {' or '.join(map(repr, CARDINALITIES))}, or an object, not {conditions.pop(name)!r}"
        )
        hint = 'write a condition as {"condition": "amount > 0", "source": "orders"}'
        yield options.build_problem(f"expect.{name}", "config", message, hint)
    yield from find_problems(conditions, options.stages)


def list_cardinalities(options: ParsedOptions) -> dict[str, str]:
    """Return the expected cardinality of the keys of inputs, by the names of the inputs."""
    return {stage: value for stage, value in (options["expect"] or {}).items() if is_cardinality(value)}


def find_driving_input(options: ParsedOptions) -> str | None:
    """Return the input that ``expect`` compares with: the first required input, else the first input."""
    required = [stage for stage in options.stages if stage in options.required]
    return next(iter([*required, *options.stages]), None)


def _output_problems(options: ParsedOptions, columns: Columns | None) -> Iterator[Problem]:
    """Compare the declared schema with the output. Source: docs/semantics/joiner.md, Output schema."""
    if options["output_schema"] is None:
        return
    declared_fields: dict[str, Field] = {}
    for field in options["output_schema"]:
        if field.name in declared_fields:
            yield _output_problem(options, f"{field.name!r} is declared more than once")
        declared_fields[field.name] = field
    if columns is None:
        return
    names = [column.name for column in columns]
    if missing := [name for name in names if name not in declared_fields]:
        yield _output_problem(options, f"does not declare the output columns {', '.join(missing)}")
    for name in declared_fields:
        if name not in names:
            yield _output_problem(
                options, f"{name!r} is not an output column", f"output columns: {', '.join(names)}"
            )
    for field in build_output_schema(options) or ():
        declared_field = declared_fields.get(field.name)
        if declared_field is not None:
            yield from _field_problems(options, field, declared_field)


def _field_problems(options: ParsedOptions, field: Field, declared_field: Field) -> Iterator[Problem]:
    if declared_field.type != field.type:
        yield _output_problem(
            options, f"{field.name!r} has type {field.type}, but is declared as {declared_field.type}"
        )
    if field.nullable and not declared_field.nullable:
        yield _output_problem(
            options, f"{field.name!r} must be nullable", "its input may contain NULL or have no matching row"
        )


def _output_problem(
    options: ParsedOptions, message: str, hint: str = "declare the output columns, each once"
) -> Problem:
    return options.build_problem("output_schema", "output_schema", message, hint)
