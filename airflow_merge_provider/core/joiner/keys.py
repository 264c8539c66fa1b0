"""The join keys: both grammars of joinKeys, and the problems of keys.

Source: docs/semantics/joiner.md, Join keys; Types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_merge_provider.core.errors import Problem
from airflow_merge_provider.core.joiner.parsed_options import ParsedOptions
from airflow_merge_provider.core.schema.key_types import (
    is_comparable,
    read_key_type,
    show_identifier,
    suggest_casts,
)

JOIN_KEYS = "join_keys"
_JOIN_KEY = "join_key"
_GRAMMARS = (("&", "="), (":", ","))
_EXAMPLE = "write customers.id = purchases.cust_id & customers.day = purchases.day"

Part = tuple[str, str]
Clause = tuple[Part, ...]
Keys = dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _KeyProblem:
    message: str
    hint: str = _EXAMPLE


def read_keys(options: ParsedOptions) -> tuple[Keys | None, list[Problem]]:
    """Return the key fields of every input, compared by position; None if they are wrong."""
    if options.cross or options.advanced:
        return {}, _refuse_needless_keys(options)
    if options[JOIN_KEYS] is None:
        is_reported = JOIN_KEYS not in options.values
        missing = options.build_problem(JOIN_KEYS, _JOIN_KEY, "is required", _EXAMPLE)
        return None, [] if is_reported else [missing]
    problems = []
    clauses: dict[Clause, None] = {}
    for parsed_clause in _parse_clauses(options[JOIN_KEYS]):
        if isinstance(parsed_clause, _KeyProblem):
            problems.append(
                options.build_problem(JOIN_KEYS, _JOIN_KEY, parsed_clause.message, parsed_clause.hint)
            )
        else:
            clauses[parsed_clause] = None
    if not clauses and not problems:
        message = "contains no fields"
        problems.append(options.build_problem(JOIN_KEYS, _JOIN_KEY, message, _EXAMPLE))
    problems += _clause_problems(options, list(clauses))
    # The types of a clause can be checked even if another clause lacks an input.
    fields_by_stage = [_by_stage(clause, options) for clause in clauses]
    problems += [problem for clause in fields_by_stage for problem in _type_problems(options, clause)]
    if problems or not options.stages:
        return None, problems
    return {stage: tuple(clause[stage] for clause in fields_by_stage) for stage in options.stages}, []


def _refuse_needless_keys(options: ParsedOptions) -> list[Problem]:
    """Return problems for keys where nothing is compared; an expression only ignores them."""
    if not options.cross or not options[JOIN_KEYS]:
        return []
    message = f"is not supported with {options.spelling('join_type')} crossjoin"
    return [options.build_problem(JOIN_KEYS, "config", message, "remove one of the two")]


def _parse_clauses(written: Any) -> Iterator[Clause | _KeyProblem]:
    if isinstance(written, str):
        yield from _from_text(written)
        return
    for clause in (written,) if isinstance(written, Mapping) else written:
        if isinstance(clause, Mapping) and clause:
            yield tuple((str(stage), str(field)) for stage, field in clause.items())
        elif isinstance(clause, str):
            yield from _from_text(clause)


def _from_text(text: str) -> Iterator[Clause | _KeyProblem]:
    """Parse the text in the grammar of its separators: ``=`` and ``&``, or ``,`` and ``:``."""
    grammars = [grammar for grammar in _GRAMMARS if any(separator in text for separator in grammar)]
    if len(grammars) > 1:
        yield _KeyProblem(f"{text!r} mixes two notations of keys: = and & with , and :")
        return
    clause_separator, part_separator = grammars[0] if grammars else _GRAMMARS[0]
    for clause in text.split(clause_separator):
        parts = [part.strip() for part in clause.split(part_separator)]
        if part_separator == ",":
            parts = [part for part in parts if part]
        if any(parts):
            yield from _parse_clause(parts)


def _parse_clause(parts: Iterable[str]) -> Iterator[Clause | _KeyProblem]:
    fields = []
    for part in parts:
        stage, _, field = (word.strip() for word in part.partition("."))
        if not stage or not field or "." in field:
            yield _KeyProblem(f"{part!r} is not of the form <input>.<field>", "write exactly one dot")
        else:
            fields.append((stage, field))
    if fields:
        yield tuple(fields)


def _clause_problems(options: ParsedOptions, clauses: list[Clause]) -> Iterator[Problem]:
    """Yield the problems of the clauses: every clause must have every input exactly once."""
    if len({len(clause) for clause in clauses}) > 1:
        sizes = ", ".join(f"{len(clause)} in {_format_clause(clause)}" for clause in clauses)
        yield options.build_problem(
            JOIN_KEYS, _JOIN_KEY, f"every clause must have the same number of fields: {sizes}"
        )
    for clause in clauses:
        clause_stages = [stage for stage, _ in clause]
        for stage, field in dict.fromkeys(clause):
            if options.stages and stage not in options.stages:
                yield options.unknown_stage(JOIN_KEYS, _JOIN_KEY, stage, f"{stage}.{field}")
            elif missing := options.unknown_field(JOIN_KEYS, _JOIN_KEY, stage, field):
                yield missing
        for stage in options.stages:
            if stage not in clause_stages:
                hint = (
                    "name every input in every clause; to join only some inputs by other keys, use two joins"
                )
                yield options.build_problem(
                    JOIN_KEYS, _JOIN_KEY, f"{_format_clause(clause)} has no field of {stage!r}", hint
                )
            elif clause_stages.count(stage) > 1:
                message = f"{_format_clause(clause)} names {stage!r} {clause_stages.count(stage)} times"
                yield options.build_problem(
                    JOIN_KEYS, _JOIN_KEY, message, "name each input once in every clause"
                )


def _by_stage(clause: Clause, options: ParsedOptions) -> dict[str, str]:
    """Return the fields of a clause in the declared order of their inputs."""
    fields = dict(reversed(clause))
    return {stage: fields[stage] for stage in options.stages if stage in fields}


def _type_problems(options: ParsedOptions, clause: Mapping[str, str]) -> Iterator[Problem]:
    """Compare the type of the first input's field with the type of each other field."""
    typed_fields = []
    for stage, field in clause.items():
        kinds = [
            schema_field.key_type
            for schema_field in options.find_schema(stage) or ()
            if schema_field.name == field
        ]
        name = f"{show_identifier(stage)}.{show_identifier(field)}"
        typed_fields += [(f"{stage}.{field}", kind, name) for kind in kinds]
    if not typed_fields:
        return
    (first_field, first_type, first_name), *other_fields = typed_fields
    for other_field, kind, other_name in other_fields:
        if not is_same_key_type(first_type, kind):
            message = (
                f"{first_field} is {first_type} and {other_field} is {kind}:"
                " the fields of a key must have the same type"
            )
            hint = suggest_casts((first_name, other_name), (first_type, kind))
            yield options.build_problem(JOIN_KEYS, "join_key_field", message, hint)
        elif not is_comparable(first_type):
            message = (
                f"{first_field} is {first_type} and {other_field} is {kind}:"
                " values of this type cannot be compared"
            )
            hint = (
                "join on another field, or on one that is computed upstream: "
                "array_sort(map_entries(...)) of a map, to_json(...) of a variant"
            )
            yield options.build_problem(JOIN_KEYS, "join_key_field", message, hint)


def is_same_key_type(left: str, right: str) -> bool:
    """Return whether a join compares two types: equal ones, decimals of any size, and texts of any length.

    >>> is_same_key_type("decimal(10,2)", "decimal(12,4)"), is_same_key_type("int", "long")
    (True, False)
    """
    left_kind, right_kind = read_key_type(left), read_key_type(right)
    is_family = left_kind.family == right_kind.family and left_kind.family in {"decimal", "text"}
    return left_kind == right_kind or is_family


def _format_clause(clause: Clause) -> str:
    return "'" + " = ".join(f"{stage}.{field}" for stage, field in clause) + "'"
