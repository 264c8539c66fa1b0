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
        message = f"advanced is not supported with {asked.spelling('join_type')} crossjoin"
        yield asked.build_problem(TYPE, "config", message, "use an inner join with the expression")
    if asked.stages and len(asked.stages) != _TWO:
        message = f"{asked.spelling(TYPE)} advanced requires two inputs, found {len(asked.stages)}"
        yield asked.build_problem(TYPE, _CATEGORY, message, "join two inputs first, then the others")
    if EXPRESSION in asked.values and not (asked[EXPRESSION] or "").strip():
        message = f"{asked.spelling(EXPRESSION)} is required with {asked.spelling(TYPE)} advanced"
        yield asked.build_problem(
            EXPRESSION, _CATEGORY, message, "write a boolean SQL expression over <input>.<field>"
        )
    outer = len(asked.required & set(asked.stages)) < len(asked.stages)
    if outer and not asked[IN_MEMORY]:
        message = f"an outer join by an expression requires one of its inputs in {asked.spelling(IN_MEMORY)}"
        yield asked.build_problem(IN_MEMORY, "broadcast", message, "set the smaller input")


def condition_warnings(asked: ParsedOptions) -> Iterator[str]:
    """Yield warnings about properties that have no effect with an expression, or only with one."""
    if asked.advanced:
        unread = [name for name in ("join_keys", "num_partitions") if asked[name]]
        unread += ["join_null_keys"] if asked["join_null_keys"] is False else []
        yield from (
            f"{asked.spelling(name)}: has no effect with {asked.spelling(TYPE)} advanced" for name in unread
        )
        return
    unread = [name for name in (EXPRESSION, ALIASES) if asked[name]]
    yield from (
        f"{asked.spelling(name)}: has an effect only with {asked.spelling(TYPE)} advanced" for name in unread
    )


def _alias_problems(asked: ParsedOptions) -> Iterator[Problem]:
    pairs = asked[ALIASES] or ()
    for stage in dict.fromkeys(stage for stage, _ in pairs):
        if asked.stages and stage not in asked.stages:
            yield asked.unknown_stage(ALIASES, "config", stage)
        given = [alias for each, alias in pairs if each == stage]
        if len(given) > 1:
            message = f"{stage!r} has several aliases: {', '.join(given)}"
            yield asked.build_problem(ALIASES, "config", message, "set one alias")
    names = list(find_aliases(asked).values())
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            message = f"{name!r} refers to more than one input"
            yield asked.build_problem(ALIASES, "config", message, "set a unique alias for each input")
