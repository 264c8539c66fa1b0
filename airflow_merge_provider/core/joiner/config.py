"""The configuration and the counts of a join, and its signature: equal ones and inputs give equal rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field as Describe, ValidationError
from pydantic_core import ErrorDetails

from airflow_merge_provider.core.errors import ConfigError, Problem, suggest_name
from airflow_merge_provider.core.expectations.config import parse_expectations
from airflow_merge_provider.core.joiner import checks, keys, option_parsing, schema
from airflow_merge_provider.core.joiner.parsed_options import ParsedOptions, Spelling
from airflow_merge_provider.core.joiner.schema import Schemas
from airflow_merge_provider.core.model import (
    CONDITION,
    INPUTS,
    KEY,
    NO_COLUMN,
    OUTPUT,
    RESULT_COLUMN,
    SOURCE_COLUMN,
    Config,
    NamedBy,
    require_plain,
)
from airflow_merge_provider.core.report import Measure

COUNTS = (
    Measure("records_in", "rows", "Rows of all inputs together."),
    Measure("outputs", "rows", "Rows that the join returned.", "target"),
    Measure("unmatched", "rows", "Rows of the table of unmatched rows; 0 if there is none.", "target"),
)


def _build_validator(reader: Callable[[Any], Any], written_as: Any) -> BeforeValidator:
    """Return a validator that parses with ``reader``; its JSON Schema describes the accepted forms."""
    return BeforeValidator(reader, json_schema_input_type=written_as)


JoinType = Literal["innerjoin", "outerjoin", "leftouterjoin", "rightouterjoin", "fullouterjoin", "crossjoin"]
Texts = str | list[str] | None
Forms = str | list[str | dict[str, Any]] | dict[str, Any] | None
Declared = str | list[list[Any] | dict[str, Any]] | dict[str, Any] | None
Names = Annotated[tuple[str, ...] | None, _build_validator(option_parsing.parse_names, Texts)]
Elements = Annotated[
    tuple[Any, ...] | None, _build_validator(option_parsing.parse_elements, Forms), SOURCE_COLUMN
]
Flag = Annotated[bool, _build_validator(option_parsing.parse_boolean, bool | str)]
Positive = Annotated[int | None, _build_validator(option_parsing.parse_positive, int | str | None)]
Number = Annotated[int | None, _build_validator(option_parsing.parse_integer, int | str | None)]
# The problem category of each property checked by itself; all other properties have "config".
# Source: docs/semantics/joiner.md, Problems.
_CATEGORIES = {
    "inputs": "input",
    "num_of_inputs": "input",
    "required_inputs": "required_input",
    "join_keys": "join_key",
    "selected_fields": "selected_field",
    "fields_to_select": "selected_field",
    "fields_to_rename": "selected_field",
    "fields_to_drop": "selected_field",
    "in_memory_inputs": "broadcast",
    "distribution_factor": "distribution_size",
    "distribution_stage_name": "distribution_stage",
    "condition_expression": "invalid_condition",
    "output_schema": "output_schema",
}


def _read_declared_schema(value: Any) -> tuple[schema.Field, ...] | None:
    if value is None or value == "":
        return None
    return schema.from_record(value) if schema.is_record(value) else schema.parse_fields(value)


class JoinerConfig(Config):
    """A validated join; property names may be those of the arguments or CDAP's (``joinKeys``)."""

    unknown_word: ClassVar[str] = "unknown property"

    inputs: Annotated[
        dict[str, Any],
        _build_validator(option_parsing.parse_inputs, dict[str, Any] | list[str]),
        INPUTS,
    ] = Describe(description="The inputs to join: name and dataset of each, in the order of the output.")
    target: Annotated[str | None, OUTPUT] = Describe(None, description="The dataset that the run writes.")
    target_format: Annotated[Literal["delta"], _build_validator(option_parsing.target_format, str)] = (
        Describe("delta", description="The storage format of the target: a Delta table.")
    )
    write_mode: Literal["overwrite", "append"] = Describe(
        "overwrite", description="Whether a run replaces the rows of the target or appends to them."
    )
    join_keys: Annotated[Any, _build_validator(option_parsing.parse_clauses, Forms), KEY] = Describe(
        None, description="The fields to compare: `a.x = b.x & a.y = b.y`; each clause has every input once."
    )
    join_type: Annotated[JoinType | None, _build_validator(option_parsing.join_type, str | None)] = Describe(
        None, description="The join type; with `outerjoin` or if not set, `required_inputs` is used."
    )
    num_of_inputs: Number = Describe(None, description="The expected number of inputs.")
    required_inputs: Annotated[Names, NO_COLUMN] = Describe(
        None,
        description="The inputs that each output row must have a match in; without any, a full outer join.",
    )
    selected_fields: Elements = Describe(
        None, description="The output columns in this order: `a.x, b.y as z`."
    )
    fields_to_select: Elements = Describe(None, description="The output columns, with unchanged names.")
    fields_to_drop: Elements = Describe(
        None, description="The fields to leave out; all others are in the output."
    )
    fields_to_rename: Elements = Describe(None, description="New names of output columns: `a.x:z`.")
    join_null_keys: Flag = Describe(
        default=True, description="Whether a NULL in a key matches a NULL, unlike in SQL."
    )
    in_memory_inputs: Annotated[Names, NO_COLUMN] = Describe(
        None, description="The small inputs, which Spark broadcasts to every executor."
    )
    condition_type: Annotated[
        Literal["basic", "advanced"], _build_validator(option_parsing.condition_type, str)
    ] = Describe(
        "basic", description="Whether rows match by keys (`basic`) or by an expression (`advanced`)."
    )
    condition_expression: Annotated[str | None, CONDITION] = Describe(
        None, description="The SQL join condition over `<input>.<field>`."
    )
    input_aliases: Annotated[
        tuple[tuple[str, str], ...] | None, _build_validator(option_parsing.parse_aliases, Forms), NO_COLUMN
    ] = Describe(None, description="Names of the inputs inside the expression: `input=alias;other=alias`.")
    distribution_enabled: Flag = Describe(
        default=False, description="Whether the rows of a skewed input are distributed with a salt."
    )
    distribution_factor: Number = Describe(
        None, description="The number of parts over which the rows of a key are distributed."
    )
    distribution_stage_name: Annotated[str | None, NO_COLUMN] = Describe(
        None, description="The skewed input."
    )
    num_partitions: Positive = Describe(
        None, description="The number of shuffle partitions; by default, that of Spark's settings."
    )
    output_schema: Annotated[
        tuple[schema.Field, ...] | None, _build_validator(_read_declared_schema, Declared), RESULT_COLUMN
    ] = Describe(
        None,
        description="The expected output columns in order, each [name, type, nullable].",
    )
    indicator: Annotated[Annotated[str, Describe(min_length=1)] | None, RESULT_COLUMN] = Describe(
        None, description="The name of a column that lists the inputs that each row comes from."
    )
    key_columns: Annotated[Names, NamedBy("result", is_key=True)] = Describe(
        None,
        description="Names of leading columns with the key from whichever input has it; one per key clause.",
    )
    unmatched: Annotated[str | None, OUTPUT] = Describe(
        None,
        description="A dataset for input rows that are in no output row: name of the input, and row as JSON.",
    )
    expect: Annotated[dict[str, Any] | None, SOURCE_COLUMN] = Describe(
        None,
        description="The key cardinality of inputs, by input: one_to_one, one_to_many or many_to_one; and"
        " conditions on the rows of inputs, or on the rows that the run changes, by name.",
    )

    @classmethod
    def parse(cls, raw: Mapping[str, Any], schemas: Schemas | None = None) -> Self:
        """Validate ``raw``, against the inputs' schemas if known, and return the frozen configuration.

        :raises ConfigError: with every problem that can be known.
        """
        options, config, problems = cls._check_properties(raw, schemas)
        problems += checks.list_problems(options)
        if problems or config is None:
            raise ConfigError.from_problems(problems)
        return config

    @classmethod
    def rename_properties(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Return a configuration with the argument names, whichever names it uses."""
        return Spelling(raw, cls.model_fields).rename_fields(raw)

    def list_key_columns(self) -> tuple[str, ...]:
        fields, _ = keys.read_keys(self.parse_options())
        names = [name for stage_names in (fields or {}).values() for name in stage_names]
        return tuple(dict.fromkeys([*names, *(self.key_columns or ())]))

    def list_warnings(self) -> list[str]:
        return checks.list_warnings(self.parse_options())

    def parse_options(self, schemas: Schemas | None = None) -> ParsedOptions:
        """Return the configuration in the form that the functions of this package use."""
        return ParsedOptions(vars(self), Spelling({}, type(self).model_fields), schemas)

    @classmethod
    def _check_properties(
        cls, raw: Mapping[str, Any], schemas: Schemas | None
    ) -> tuple[ParsedOptions, Self | None, list[Problem]]:
        """Check every property by itself."""
        require_plain(raw)
        spelling = Spelling(raw, cls.model_fields)
        properties = spelling.rename_fields(raw)
        problems = [
            Problem(name, "config", f"{name} and {field} are the same property", "remove one of them")
            for name, field in spelling.find_duplicates(raw)
        ]
        try:
            config = cls.model_validate(properties)
        except ValidationError as error:
            details = error.errors(include_url=False)
            invalid_fields = {str(detail["loc"][0]) for detail in details if detail["loc"]}
            problems += [cls._spell_problem(detail, spelling) for detail in details]
            fields = cls._read_valid_fields(properties, invalid_fields)
            return ParsedOptions(fields, spelling, schemas), None, problems
        return ParsedOptions(vars(config), spelling, schemas), config, problems

    @classmethod
    def _spell_problem(cls, detail: ErrorDetails, spelling: Spelling) -> Problem:
        problem = cls._build_problem(detail)
        field = str(detail["loc"][0])
        if problem.code == "unknown":
            valid_names = [spelling(name) for name in cls.model_fields]
            name = str(detail["loc"][-1])
            hint = suggest_name(name, valid_names, "properties")
            return Problem(name, "config", f"{cls.unknown_word} {name!r}", hint)
        path = problem.path.replace(field, spelling(field), 1)
        return Problem(path, _CATEGORIES.get(field, "config"), problem.message, problem.hint)


def from_stage(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of a stage or plugin of a CDAP pipeline; return anything else unchanged.

    :raises ConfigError: when the stage has no properties.
    """
    plugin = raw.get("plugin", raw if "properties" in raw else None)
    if plugin is None:
        return dict(raw)
    properties = plugin.get("properties") if isinstance(plugin, Mapping) else None
    if not isinstance(properties, Mapping):
        hint = 'write {"name": …, "plugin": {"name": "Joiner", "properties": {…}}}'
        raise ConfigError.from_problems([Problem("plugin", "config", "has no object `properties`", hint)])
    stage_options = {name: value for name, value in raw.items() if name in JoinerConfig.model_fields}
    return {**properties, **stage_options}


# Hints, guards and the locations of the inputs (which the run compares by version) do not change the rows.
_WITHOUT_EFFECT = frozenset({
    "distribution_enabled",
    "distribution_factor",
    "distribution_stage_name",
    "expect",
    "in_memory_inputs",
    "num_of_inputs",
    "num_partitions",
    "target",
})  # fmt: skip


def compute_signature(config: JoinerConfig) -> str:
    """Return a text that differs if the rows, the columns or the way they are written may differ."""
    content = config.dump_choices(*_WITHOUT_EFFECT)
    # The order of the inputs determines the order of the columns, which sorted keys would lose.
    content["inputs"] = list(config.inputs.items())
    if expectations := parse_expectations(config.expect):
        content["expect"] = sorted(map(repr, expectations))
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
