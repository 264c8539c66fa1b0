"""Join conditions written as expressions, and the aliases under which an expression refers to the inputs.

Source: docs/semantics/joiner.md, Conditions.
"""

from __future__ import annotations

from collections.abc import Iterator

from airflow_merge_provider.core.errors import Problem
from airflow_merge_provider.core.joiner.hints import IN_MEMORY
from airflow_merge_provider.core.joiner.parsed_options import ParsedOptions

TYPE, EXPRESSION, ALIASES = "condition_type", "condition_expression", "input_aliases"
_CATEGORY = "invalid_condition"
_TWO = 2


def find_aliases(asked: ParsedOptions) -> dict[str, str]:
    """Return the alias of every input in the expression."""
    given = dict(asked[ALIASES] or ())
    return {stage: given.get(stage, stage) for stage in asked.stages}


def condition_problems(asked: ParsedOptions) -> Iterator[Problem]:
    """Yield the problems of an expression that can be detected without Spark."""
    yield from _alias_problems(asked)
    if not asked.advanced:
        return
    if asked.cross:
        message = f"{asked.spelling('join_type')} crossjoin takes no expression"
        yield asked.build_problem(TYPE, "config", message, "an inner join with the expression is the same")
    if asked.stages and len(asked.stages) != _TWO:
        message = f"{asked.spelling(TYPE)} advanced takes two inputs, these are {len(asked.stages)}"
        yield asked.build_problem(TYPE, _CATEGORY, message, "join two first, then the others")
    if EXPRESSION in asked.values and not (asked[EXPRESSION] or "").strip():
        message = f"{asked.spelling(EXPRESSION)} is required with {asked.spelling(TYPE)} advanced"
        yield asked.build_problem(EXPRESSION, _CATEGORY, message, "a boolean expression over <input>.<field>")
    outer = len(asked.required & set(asked.stages)) < len(asked.stages)
    if outer and not asked[IN_MEMORY]:
        message = f"an outer join by an expression needs one of its inputs in {asked.spelling(IN_MEMORY)}"
        yield asked.build_problem(IN_MEMORY, "broadcast", message, "name the smaller input")


def condition_warnings(asked: ParsedOptions) -> Iterator[str]:
    """Yield warnings about properties that have no effect with an expression, or only with one."""
    if asked.advanced:
        unread = [name for name in ("join_keys", "num_partitions") if asked[name]]
        unread += ["join_null_keys"] if asked["join_null_keys"] is False else []
        yield from (f"{asked.spelling(name)}: is not read with an expression" for name in unread)
        return
    unread = [name for name in (EXPRESSION, ALIASES) if asked[name]]
    yield from (
        f"{asked.spelling(name)}: is read with {asked.spelling(TYPE)} advanced only" for name in unread
    )


def _alias_problems(asked: ParsedOptions) -> Iterator[Problem]:
    pairs = asked[ALIASES] or ()
    for stage in dict.fromkeys(stage for stage, _ in pairs):
        if asked.stages and stage not in asked.stages:
            yield asked.unknown_stage(ALIASES, "config", stage)
        given = [alias for each, alias in pairs if each == stage]
        if len(given) > 1:
            message = f"{stage!r} has several aliases: {', '.join(given)}"
            yield asked.build_problem(ALIASES, "config", message, "give it one")
    names = list(find_aliases(asked).values())
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            message = f"{name!r} stands for more than one input"
            yield asked.build_problem(ALIASES, "config", message, "every input needs a name of its own")
