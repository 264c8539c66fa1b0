"""The plan of a join: the order of the inputs, the keys, the output columns, and their preview.

Source: docs/semantics/joiner.md, Join plan; Output columns; Hints.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from airflow_merge_provider.core.errors import ConfigError, Problem
from airflow_merge_provider.core.joiner import checks
from airflow_merge_provider.core.joiner.checks import EXPRESSION, find_aliases
from airflow_merge_provider.core.joiner.columns import select_columns
from airflow_merge_provider.core.joiner.config import JoinerConfig
from airflow_merge_provider.core.joiner.keys import Keys, read_keys
from airflow_merge_provider.core.joiner.parsed_options import ParsedOptions, is_salted
from airflow_merge_provider.core.joiner.schema import Field, Schema, Schemas, parse_fields
from airflow_merge_provider.core.schema.key_types import KeyComparison, choose_comparison

How = Literal["inner", "left", "full", "cross"]


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """One output column and the field of the input that it shows."""

    stage: str
    source: str
    field: Field


@dataclass(frozen=True, slots=True)
class JoinStep:
    """One step of the join, which adds one input."""

    stage: str
    how: How
    in_memory: bool


@dataclass(frozen=True, slots=True)
class Salt:
    """The skewed input, and the number of parts over which each of its keys is spread."""

    stage: str
    factor: int


@dataclass(frozen=True)
class JoinPlan:
    """The complete plan of a join.

    ``keys`` holds the key fields of each input; it is empty for a cross join and for an expression. If some
    input is required, the others are compared with the key of the first required input. If none is, they are
    compared with the first key of a present row (``coalesced``). ``null_keys`` holds, for each key field of
    an input, whether a NULL may match: if it may on both sides, the join needs null-safe equality instead of
    plain equality, which is cheaper. ``comparisons`` holds for each clause how values of several types are
    compared.
    """

    schemas: Schemas
    required: frozenset[str]
    first: str
    first_in_memory: bool
    steps: tuple[JoinStep, ...]
    keys: Mapping[str, tuple[str, ...]]
    null_keys: Mapping[str, tuple[bool, ...]]
    comparisons: tuple[KeyComparison, ...]
    nulls_match: bool
    expression: str | None
    aliases: Mapping[str, str]
    key_columns: tuple[Field, ...]
    outputs: tuple[OutputColumn, ...]
    salt: Salt | None
    indicator: str | None
    unique: tuple[str, ...]

    @property
    def order(self) -> tuple[str, ...]:
        """The inputs in the order in which they are joined."""
        return (self.first, *(step.stage for step in self.steps))

    @property
    def coalesced(self) -> bool:
        """Whether no input is required, so that the key may come from any of them."""
        return not self.required and self.expression is None

    def list_needed_fields(self, stage: str) -> tuple[str, ...]:
        """Return the fields of an input that the join reads, in the order of its schema."""
        used = {output.source for output in self.outputs if output.stage == stage}
        used |= set(self.keys.get(stage, ()))
        return tuple(field.name for field in self.schemas[stage] if field.name in used)

    def with_non_null(self, non_null_fields: Mapping[str, Collection[str]]) -> JoinPlan:
        """Return the same plan, given the fields of each input that hold no NULL."""
        null_keys = {
            stage: tuple(
                is_nullable and field not in non_null_fields.get(stage, ())
                for is_nullable, field in zip(self.null_keys[stage], fields, strict=True)
            )
            for stage, fields in self.keys.items()
        }
        return replace(self, null_keys=null_keys)

    def explain_plan(self) -> str:
        """Return the plan as text, one line per input."""
        lines = [self.first]
        for step in self.steps:
            hint = ", in memory" if step.in_memory else ""
            lines.append(f"{step.how} join {step.stage}{hint}")
        if self.expression is not None:
            lines.append(f"on {self.expression}")
        elif self.keys:
            lines.append("on " + " and ".join(" = ".join(clause) for clause in self.list_clauses()))
        return "\n".join(lines)

    def list_clauses(self) -> list[tuple[str, ...]]:
        """Return the fields of each clause as users write them; empty without keys."""
        sources = [[f"{stage}.{field}" for field in self.keys.get(stage, ())] for stage in self.order]
        return list(zip(*sources, strict=True))


def plan_join(config: JoinerConfig, schemas: Schemas) -> JoinPlan:
    """Build the plan of a configuration that was checked against these schemas."""
    options = config.parse_options(schemas)
    order = _order_inputs(options)
    in_memory = frozenset(config.in_memory_inputs or ())
    first_in_memory = order[0] in in_memory and (options.advanced or options.required == set(options.stages))
    key_fields = read_keys(options)[0] or {}
    salt = None
    if is_salted(options) and config.distribution_stage_name and config.distribution_factor:
        salt = Salt(config.distribution_stage_name, config.distribution_factor)
    return JoinPlan(
        schemas=schemas,
        required=options.required,
        first=order[0],
        first_in_memory=first_in_memory,
        steps=tuple(
            JoinStep(stage, _choose_join_type(options, stage), stage in in_memory) for stage in order[1:]
        ),
        keys=key_fields,
        null_keys={stage: _null_keys(options, stage, names) for stage, names in key_fields.items()},
        comparisons=tuple(_choose_comparisons(options, key_fields)),
        nulls_match=config.join_null_keys,
        expression=options[EXPRESSION] if options.advanced else None,
        aliases=find_aliases(options),
        key_columns=_key_columns(options, key_fields),
        outputs=_build_outputs(options),
        salt=salt,
        indicator=config.indicator,
        unique=_list_unique_inputs(options),
    )


def output_schema(plan: JoinPlan) -> tuple[Field, ...]:
    """Return the fields of the result: the key columns first, the indicator last."""
    fields = (*plan.key_columns, *(output.field for output in plan.outputs))
    if plan.indicator is None:
        return fields
    return (*fields, Field(plan.indicator, "array<string>", nullable=False))


def _order_inputs(options: ParsedOptions) -> tuple[str, ...]:
    """Return the required inputs first, those in memory last among them: only the others are shuffled."""
    in_memory = set(options["in_memory_inputs"] or ())
    skewed_stage = options["distribution_stage_name"] if is_salted(options) else None

    def rank_input(stage: str) -> tuple[bool, bool, bool]:
        return stage not in options.required, stage != skewed_stage, stage in in_memory

    return tuple(sorted(options.stages, key=rank_input))


def _choose_join_type(options: ParsedOptions, stage: str) -> How:
    if options.cross:
        return "cross"
    if stage in options.required:
        return "inner"
    return "left" if options.required else "full"


def _null_keys(options: ParsedOptions, stage: str, names: tuple[str, ...]) -> tuple[bool, ...]:
    """Return for each key field of an input whether it may hold NULLs that match."""
    nullable = {field.name: field.nullable for field in options.find_schema(stage) or ()}
    return tuple(bool(options["join_null_keys"]) and nullable[name] for name in names)


def _choose_comparisons(options: ParsedOptions, key_fields: Keys) -> Iterator[KeyComparison]:
    """Yield for each clause how the values of its fields are compared."""
    for clause in zip(*key_fields.values(), strict=True):
        types = [
            field.key_type
            for stage, name in zip(key_fields, clause, strict=True)
            for field in options.find_schema(stage) or ()
            if field.name == name
        ]
        # The types were checked, so all of them can be compared.
        yield choose_comparison(types) or KeyComparison()


def _build_outputs(options: ParsedOptions) -> tuple[OutputColumn, ...]:
    """Pair the columns with their fields; a declared schema sets the order and may make fields nullable."""
    columns, fields = select_columns(options)[0] or (), checks.build_output_schema(options) or ()
    outputs = {
        field.name: OutputColumn(column.stage, column.field, field)
        for column, field in zip(columns, fields, strict=True)
    }
    declared = options["output_schema"]
    if declared is None:
        return tuple(outputs.values())
    return tuple(
        OutputColumn(outputs[field.name].stage, outputs[field.name].source, field) for field in declared
    )


def _key_columns(options: ParsedOptions, key_fields: Keys) -> tuple[Field, ...]:
    """Return the key columns; a column is nullable only if no input with such a row guarantees the key."""
    columns = []
    for position, name in enumerate(options["key_columns"] or ()):
        fields = {
            stage: next(field for field in options.find_schema(stage) or () if field.name == names[position])
            for stage, names in key_fields.items()
        }
        is_non_null = any(stage in options.required and not field.nullable for stage, field in fields.items())
        nullable = not is_non_null and any(field.nullable for field in fields.values())
        columns.append(Field(name, next(iter(fields.values())).type, nullable))
    return tuple(columns)


def _list_unique_inputs(options: ParsedOptions) -> tuple[str, ...]:
    """Return the inputs in which each key must be unique."""
    expected = checks.list_cardinalities(options)
    driving_input = checks.find_driving_input(options)
    unique_inputs = {
        stage for stage, cardinality in expected.items() if cardinality in {"one_to_one", "many_to_one"}
    }
    if driving_input and any(
        cardinality in {"one_to_one", "one_to_many"} for cardinality in expected.values()
    ):
        unique_inputs.add(driving_input)
    return tuple(stage for stage in options.stages if stage in unique_inputs)


def list_output_keys(plan: JoinPlan) -> tuple[str, ...]:
    """Return the output columns that hold the key of a row; empty if the output lacks a part of it."""
    if plan.key_columns:
        return tuple(field.name for field in plan.key_columns)
    first = next((stage for stage in plan.order if stage in plan.required), None)
    if first is None:
        return ()
    names = {(output.stage, output.source): output.field.name for output in reversed(plan.outputs)}
    fields = [names.get((first, field), "") for field in plan.keys.get(first, ())]
    return tuple(fields) if all(fields) else ()


def preview_join(raw: Mapping[str, Any], written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schemas of all inputs and of the output, each field as name, type, nullable.

    ``written`` has a schema for every input, in a form that ``schema.parse_fields`` reads.

    :raises ConfigError: with every problem of the configuration and of the schemas.
    """
    schemas = _read_schemas(written)
    config = JoinerConfig.parse(raw, schemas)
    if missing := [stage for stage in config.inputs if stage not in schemas]:
        hint = "set the schema of every input"
        raise ConfigError.from_problems(
            [Problem(f"inputs.{stage}", "input", "has no schema", hint) for stage in missing]
        )
    in_order = {stage: schemas[stage] for stage in config.inputs}
    return {
        "inputs": {stage: [field.as_list() for field in schema] for stage, schema in in_order.items()},
        "output": [field.as_list() for field in output_schema(plan_join(config, in_order))],
    }


def _read_schemas(written: Mapping[str, Any]) -> dict[str, Schema]:
    schemas, problems = {}, []
    for stage, schema in written.items():
        try:
            schemas[stage] = parse_fields(schema)
        except ValueError as error:
            problems.append(Problem(f"inputs.{stage}", "input", str(error), "for example {'id': 'int'}"))
    if problems:
        raise ConfigError.from_problems(problems)
    return schemas
