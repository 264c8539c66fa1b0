"""Hints that make a join faster without changing its rows: broadcast inputs, and salt for a skewed input.

Source: docs/semantics/joiner.md, Hints; Conditions.
"""

from __future__ import annotations

from collections.abc import Iterator

from airflow_merge_provider.core.errors import Problem
from airflow_merge_provider.core.joiner.parsed_options import ParsedOptions

ENABLED, FACTOR, STAGE = "distribution_enabled", "distribution_factor", "distribution_stage_name"
IN_MEMORY = "in_memory_inputs"
_TWO = 2


def hint_problems(asked: ParsedOptions) -> Iterator[Problem]:
    """Yield the problems of the hints."""
    for stage in dict.fromkeys(asked[IN_MEMORY] or ()):
        if asked.stages and stage not in asked.stages:
            yield asked.unknown_stage(IN_MEMORY, "broadcast", stage)
    skewed = asked[STAGE]
    if skewed is not None and asked.stages and skewed not in asked.stages:
        yield asked.unknown_stage(STAGE, "distribution_stage", skewed)
    if asked[ENABLED]:
        yield from _check_salting(asked)


def is_salted(asked: ParsedOptions) -> bool:
    """Return whether the rows of one input are salted: only if keys are compared."""
    return bool(asked[ENABLED]) and not asked.advanced and not asked.cross


def hint_warnings(asked: ParsedOptions) -> Iterator[str]:
    """Yield warnings about hints that have no effect."""
    if asked[ENABLED] and not is_salted(asked):
        yield f"{asked.spelling(ENABLED)}: has no effect, because only joins by keys are salted"
    in_memory = tuple(dict.fromkeys(asked[IN_MEMORY] or ()))
    if not in_memory or asked.advanced or asked.cross:
        return
    required = [stage for stage in asked.stages if stage in asked.required]
    if not required:
        yield f"{asked.spelling(IN_MEMORY)}: has no effect on a full outer join"
    elif len(required) < len(asked.stages) and set(required) <= set(in_memory):
        yield (
            f"{asked.spelling(IN_MEMORY)}: {required[0]!r} is not broadcast,"
            " because the optional inputs are joined to it"
        )


def _check_salting(asked: ParsedOptions) -> Iterator[Problem]:
    factor, skewed = asked[FACTOR], asked[STAGE]
    if factor is None and FACTOR in asked.values:
        message = f"is required with {asked.spelling(ENABLED)}"
        yield asked.build_problem(
            FACTOR, "distribution_size", message, "set an integer of at least 1, for example 10"
        )
    elif factor is not None and factor < 1:
        yield asked.build_problem(FACTOR, "distribution_size", f"must be at least 1, not {factor}")
    if skewed is None and STAGE in asked.values:
        message = f"is required with {asked.spelling(ENABLED)}"
        yield asked.build_problem(
            STAGE, "distribution_stage", message, f"set one of {', '.join(asked.stages)}"
        )
    elif skewed in asked.stages and skewed not in asked.required:
        message = f"{skewed!r} is not a required input, so the output would contain duplicate rows"
        yield asked.build_problem(STAGE, "distribution_stage", message, "set a required input")
    if len(asked.stages) > _TWO:
        message = f"salting requires two inputs, found {len(asked.stages)}"
        yield asked.build_problem(ENABLED, "general", message, "join two inputs first, then the others")
    if asked[IN_MEMORY]:
        message = f"{asked.spelling(IN_MEMORY)} cannot be combined with {asked.spelling(ENABLED)}"
        yield asked.build_problem(IN_MEMORY, "broadcast", message, "remove one of them")
