"""Join conditions written as expressions, and the aliases under which an expression refers to the inputs.

Source: docs/semantics/joiner.md, Conditions.
"""

from __future__ import annotations

from collections.abc import Iterator

from airflow_merge_provider.core.errors import Problem
from airflow_merge_provider.core.joiner.hints import IN_MEMORY
from airflow_merge_provider.core.joiner.parsed_options import ParsedOptions

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
