"""Hints that make a join faster without changing its rows: broadcast inputs, and salt for a skewed input.

Source: docs/semantics/joiner.md, Hints; Conditions.
"""

from __future__ import annotations

from collections.abc import Iterator

from airflow_merge_provider.core.errors import Problem
from airflow_merge_provider.core.joiner.parsed_options import ParsedOptions

ENABLED, FACTOR, STAGE = "distribution_enabled", "distribution_factor", "distribution_stage_name"
IN_MEMORY = "in_memory_inputs"
_SALTED_INPUTS_MAX = 2


def hint_problems(options: ParsedOptions) -> Iterator[Problem]:
    """Yield the problems of the hints."""
    for stage in dict.fromkeys(options[IN_MEMORY] or ()):
        if options.stages and stage not in options.stages:
            yield options.unknown_stage(IN_MEMORY, "broadcast", stage)
    skewed_stage = options[STAGE]
    if skewed_stage is not None and options.stages and skewed_stage not in options.stages:
        yield options.unknown_stage(STAGE, "distribution_stage", skewed_stage)
    if options[ENABLED]:
        yield from _check_salting(options)


def is_salted(options: ParsedOptions) -> bool:
    """Return whether the rows of one input are salted: only if keys are compared."""
    return bool(options[ENABLED]) and not options.advanced and not options.cross


def hint_warnings(options: ParsedOptions) -> Iterator[str]:
    """Yield warnings about hints that have no effect."""
    if options[ENABLED] and not is_salted(options):
        yield f"{options.spelling(ENABLED)}: has no effect, because only joins by keys are salted"
    in_memory = tuple(dict.fromkeys(options[IN_MEMORY] or ()))
    if not in_memory or options.advanced or options.cross:
        return
    required = [stage for stage in options.stages if stage in options.required]
    if not required:
        yield f"{options.spelling(IN_MEMORY)}: has no effect on a full outer join"
    elif len(required) < len(options.stages) and set(required) <= set(in_memory):
        yield (
            f"{options.spelling(IN_MEMORY)}: {required[0]!r} is not broadcast,"
            " because the optional inputs are joined to it"
        )


def _check_salting(options: ParsedOptions) -> Iterator[Problem]:
    factor, skewed_stage = options[FACTOR], options[STAGE]
    if factor is None and FACTOR in options.values:
        message = f"is required with {options.spelling(ENABLED)}"
        yield options.build_problem(
            FACTOR, "distribution_size", message, "set an integer of at least 1, for example 10"
        )
    elif factor is not None and factor < 1:
        yield options.build_problem(FACTOR, "distribution_size", f"must be at least 1, not {factor}")
    if skewed_stage is None and STAGE in options.values:
        message = f"is required with {options.spelling(ENABLED)}"
        yield options.build_problem(
            STAGE, "distribution_stage", message, f"set one of {', '.join(options.stages)}"
        )
    elif skewed_stage in options.stages and skewed_stage not in options.required:
        message = f"{skewed_stage!r} is not a required input, so the output would contain duplicate rows"
        yield options.build_problem(STAGE, "distribution_stage", message, "set a required input")
    if len(options.stages) > _SALTED_INPUTS_MAX:
        message = f"salting requires two inputs, found {len(options.stages)}"
        yield options.build_problem(ENABLED, "general", message, "join two inputs first, then the others")
    if options[IN_MEMORY]:
        message = f"{options.spelling(IN_MEMORY)} cannot be combined with {options.spelling(ENABLED)}"
        yield options.build_problem(IN_MEMORY, "broadcast", message, "remove one of them")
