"""The join keys: both grammars of joinKeys, and the problems of keys.

Source: docs/semantics/joiner.md, Join keys; Types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_merge_provider.core.errors import Problem
from airflow_merge_provider.core.joiner.parsed_options import ParsedOptions
from airflow_merge_provider.core.joiner.schema import is_comparable, same_key

PROPERTY = "join_keys"
_CATEGORY = "join_key"
_GRAMMARS = (("&", "="), (":", ","))
_EXAMPLE = "write customers.id = purchases.cust_id & customers.day = purchases.day"

Part = tuple[str, str]
Clause = tuple[Part, ...]
Keys = dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _KeyProblem:
    message: str
    hint: str = _EXAMPLE


def read_keys(asked: ParsedOptions) -> tuple[Keys | None, list[Problem]]:
    """Return the key fields of every input, compared by position; None if they are wrong."""
    if asked.cross or asked.advanced:
        return {}, _refuse_needless_keys(asked)
    if asked[PROPERTY] is None:
        wrong_already = PROPERTY not in asked.values
        missing = asked.build_problem(PROPERTY, _CATEGORY, "is required", _EXAMPLE)
        return None, [] if wrong_already else [missing]
    problems = []
    clauses: dict[Clause, None] = {}
    for found in _parse_clauses(asked[PROPERTY]):
        if isinstance(found, _KeyProblem):
            problems.append(asked.build_problem(PROPERTY, _CATEGORY, found.message, found.hint))
        else:
            clauses[found] = None
    if not clauses and not problems:
        message = "contains no fields"
        problems.append(asked.build_problem(PROPERTY, _CATEGORY, message, _EXAMPLE))
    problems += _clause_problems(asked, list(clauses))
    # The types of a clause can be checked even if another clause lacks an input.
    known = [_by_stage(clause, asked) for clause in clauses]
    problems += [problem for clause in known for problem in _type_problems(asked, clause)]
    if problems or not asked.stages:
        return None, problems
    return {stage: tuple(clause[stage] for clause in known) for stage in asked.stages}, []


def _refuse_needless_keys(asked: ParsedOptions) -> list[Problem]:
    """Return problems for keys where nothing is compared; an expression only ignores them."""
    if not asked.cross or not asked[PROPERTY]:
        return []
    message = f"is not supported with {asked.spelling('join_type')} crossjoin"
    return [asked.build_problem(PROPERTY, "config", message, "remove one of the two")]


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
    used = [grammar for grammar in _GRAMMARS if any(mark in text for mark in grammar)]
    if len(used) > 1:
        yield _KeyProblem(f"{text!r} mixes two notations of keys: = and & with , and :")
        return
    between, within = used[0] if used else _GRAMMARS[0]
    for clause in text.split(between):
        parts = [part.strip() for part in clause.split(within)]
        if within == ",":
            parts = [part for part in parts if part]
        if any(parts):
            yield from _parse_clause(parts)


def _parse_clause(parts: Iterable[str]) -> Iterator[Clause | _KeyProblem]:
    found = []
    for part in parts:
        stage, _, field = (word.strip() for word in part.partition("."))
        if not stage or not field or "." in field:
            yield _KeyProblem(f"{part!r} is not of the form <input>.<field>", "write exactly one dot")
        else:
            found.append((stage, field))
    if found:
        yield tuple(found)


def _clause_problems(asked: ParsedOptions, clauses: list[Clause]) -> Iterator[Problem]:
    """Yield the problems of the clauses: every clause must have every input exactly once."""
    if len({len(clause) for clause in clauses}) > 1:
        sizes = ", ".join(f"{len(clause)} in {_format_clause(clause)}" for clause in clauses)
        yield asked.build_problem(
            PROPERTY, _CATEGORY, f"every clause must have the same number of fields: {sizes}"
        )
    for clause in clauses:
        named = [stage for stage, _ in clause]
        for stage, field in dict.fromkeys(clause):
            if asked.stages and stage not in asked.stages:
                yield asked.unknown_stage(PROPERTY, _CATEGORY, stage, f"{stage}.{field}")
            elif missing := asked.unknown_field(PROPERTY, _CATEGORY, stage, field):
                yield missing
        for stage in asked.stages:
            if stage not in named:
                hint = (
                    "name every input in every clause; to join only some inputs by other keys, use two joins"
                )
                yield asked.build_problem(
                    PROPERTY, _CATEGORY, f"{_format_clause(clause)} has no field of {stage!r}", hint
                )
            elif named.count(stage) > 1:
                message = f"{_format_clause(clause)} names {stage!r} {named.count(stage)} times"
                yield asked.build_problem(
                    PROPERTY, _CATEGORY, message, "name each input once in every clause"
                )


def _by_stage(clause: Clause, asked: ParsedOptions) -> dict[str, str]:
    """Return the fields of a clause in the declared order of their inputs."""
    fields = dict(reversed(clause))
    return {stage: fields[stage] for stage in asked.stages if stage in fields}


def _type_problems(asked: ParsedOptions, clause: Mapping[str, str]) -> Iterator[Problem]:
    """Compare the type of the first input's field with the type of each other field."""
    typed = []
    for stage, field in clause.items():
        kinds = [each.type for each in asked.find_schema(stage) or () if each.name == field]
        typed += [(f"{stage}.{field}", kind) for kind in kinds]
    if not typed:
        return
    (first, base), *others = typed
    for other, kind in others:
        if not same_key(base, kind):
            message = f"{first} is {base} and {other} is {kind}: the fields of a key must have the same type"
            yield asked.build_problem(PROPERTY, "join_key_field", message, "cast one of them upstream")
        elif not is_comparable(base):
            message = f"{first} is {base} and {other} is {kind}: values of this type cannot be compared"
            yield asked.build_problem(PROPERTY, "join_key_field", message, "join on another field")


def _format_clause(clause: Clause) -> str:
    return "'" + " = ".join(f"{stage}.{field}" for stage, field in clause) + "'"
