"""A preview of a join's output schema, from the schemas of its inputs alone: no rows are read.

Source: docs/semantics/joiner.md, Output schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_merge_provider.core.errors import ConfigError, Problem
from airflow_merge_provider.core.joiner.config import JoinerConfig
from airflow_merge_provider.core.joiner.plan import output_schema, plan_join
from airflow_merge_provider.core.joiner.schema import Schema, parse_fields


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
