"""The valid options of a join configuration, which every check reads, and its hints for speed.

A configuration may be wrong in one part and right in the others. Each check reads what it needs from here and
reports its own problems, so that one report contains all of them. Source: docs/semantics/joiner.md, Problems.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_merge_provider.core.errors import Problem, suggest_name
from airflow_merge_provider.core.joiner.schema import Schema, Schemas


class Spelling:
    """The way the user writes property names: as arguments, or as in CDAP pipelines.

    >>> Spelling({"joinKeys": "a.x=b.x"}, ["join_keys", "join_type"])("join_type")
    'joinType'
    """

    def __init__(self, raw: Mapping[str, Any], fields: Iterable[str]) -> None:
        self._snake = {to_camel_case(field): field for field in fields} | {"schema": "output_schema"}
        self._written = {self._snake.get(name, name): name for name in raw}
        self._camel = any(name in self._snake and name != self._snake[name] for name in raw)

    def __call__(self, field: str) -> str:
        """Return the name of a property as this user writes it."""
        return self._written.get(field, to_camel_case(field) if self._camel else field)

    def rename_fields(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Return the configuration with the argument names."""
        return {self._snake.get(name, name): value for name, value in raw.items()}

    def find_duplicates(self, raw: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return the pairs of names that mean the same property and are both present."""
        return [
            (name, self._snake[name])
            for name in raw
            if name in self._snake and name != self._snake[name] and self._snake[name] in raw
        ]


@dataclass(frozen=True)
class ParsedOptions:
    """The valid options of a configuration, the known schemas of the inputs, and the spelling of names."""

    values: Mapping[str, Any]
    spelling: Spelling
    schemas: Schemas | None = None

    def __getitem__(self, field: str) -> Any:
        """Return the value of a property, None if it is wrong."""
        return self.values.get(field)

    @property
    def stages(self) -> tuple[str, ...]:
        """The inputs in declared order; empty if they are wrong."""
        return tuple(self.values.get("inputs") or ())

    @property
    def cross(self) -> bool:
        """Whether this is a cross join."""
        return bool(self["join_type"] == "crossjoin")

    @property
    def advanced(self) -> bool:
        """Whether an expression determines which rows match."""
        return bool(self["condition_type"] == "advanced")

    @property
    def required(self) -> frozenset[str]:
        """The inputs that must have a row in every group.

        Source: docs/semantics/joiner.md, Groups and rows; Required inputs.
        """
        by_type = {
            "innerjoin": self.stages,
            "crossjoin": self.stages,
            "leftouterjoin": self.stages[:1],
            "rightouterjoin": self.stages[-1:],
            "fullouterjoin": (),
        }
        return frozenset(by_type.get(self["join_type"], self["required_inputs"] or ()))

    def find_schema(self, stage: str) -> Schema | None:
        """Return the fields of an input, None if they are unknown."""
        return None if self.schemas is None else self.schemas.get(stage)

    def build_problem(self, field: str, category: str, message: str, hint: str = "") -> Problem:
        """Return a problem of a property, under the name that the user wrote."""
        return Problem(self.spelling(field), category, message, hint)

    def unknown_stage(self, field: str, category: str, stage: str, element: str = "") -> Problem:
        """Return the problem that a property names an unknown input."""
        prefix = f"{element!r}: " if element else ""
        hint = suggest_name(stage, self.stages, "inputs")
        return self.build_problem(field, category, f"{prefix}{stage!r} is not an input", hint)

    def unknown_field(self, field: str, category: str, stage: str, name: str) -> Problem | None:
        """Return the problem that an input lacks a field; None if it has it, or if its fields are unknown."""
        schema = self.find_schema(stage)
        names = [schema_field.name for schema_field in schema or ()]
        if schema is None or name in names:
            return None
        hint = suggest_name(name, names, "fields")
        return self.build_problem(
            field, category, f"input {stage!r} has no field {name!r} ({stage}.{name})", hint
        )


def to_camel_case(field: str) -> str:
    """Convert the name of an argument to CDAP's spelling.

    >>> to_camel_case("join_null_keys")
    'joinNullKeys'
    """
    first, *following = field.split("_")
    return first + "".join(word.capitalize() for word in following)


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
