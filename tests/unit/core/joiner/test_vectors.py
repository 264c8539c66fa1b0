"""Tests of the joiner vectors that need no tables: rejected configurations and output schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.joiner.config import JoinerConfig
from airflow_merge_provider.core.joiner.plan import preview_join

VECTORS = json.loads(
    (Path(__file__).parents[3] / "conformance" / "vectors" / "joiner.json").read_text("utf-8")
)["vectors"]
Vector = dict[str, Any]
# Only Spark can decide whether an expression is a boolean.
REFUSED = [
    vector
    for vector in VECTORS
    if "error" in vector["expected"] and vector["id"] != "advanced-not-boolean-error"
]
ACCEPTED = [vector for vector in VECTORS if "error" not in vector["expected"]]


def format_id(vector: Vector) -> str:
    return str(vector["id"])


def build_config(vector: Vector) -> dict[str, Any]:
    return {**vector["config"], "inputs": {stage: f"t{n}" for n, stage in enumerate(vector["inputs"])}}


def read_schemas(vector: Vector) -> dict[str, Any]:
    return {stage: stage_input["schema"] for stage, stage_input in vector["inputs"].items()}


@pytest.mark.parametrize("vector", REFUSED, ids=format_id)
def test_every_fault_is_reported_at_once(vector: Vector) -> None:
    """Each expected error has its category and its property, and its text holds all expected words."""
    with pytest.raises(ConfigError) as refused:
        preview_join(build_config(vector), read_schemas(vector))

    problems = [(problem.code, problem.path, str(problem).lower()) for problem in refused.value.problems]
    for fault in vector["expected"]["all_errors"]:
        fragments = [text.lower() for text in fault["must_mention"]]
        assert any(
            (category, path) == (fault["category"], fault["property"])
            and all(fragment in text for fragment in fragments)
            for category, path, text in problems
        ), (fault, problems)


@pytest.mark.parametrize("vector", ACCEPTED, ids=format_id)
def test_the_output_is_known_without_reading(vector: Vector) -> None:
    """Names, order, types and nullability of the output are those of the join.

    They are known without reading data, and inputs are shown unchanged.
    """
    shown = preview_join(build_config(vector), read_schemas(vector))

    assert shown["output"] == vector["expected"]["schema"]
    if "input_schemas" in vector["expected"]:
        assert shown["inputs"] == vector["expected"]["input_schemas"]


@pytest.mark.parametrize("vector", ACCEPTED, ids=format_id)
def test_a_right_configuration_survives_the_request_file(vector: Vector) -> None:
    """A valid configuration that is written as JSON and read again is the same, with the same warnings."""
    config = JoinerConfig.parse(build_config(vector))

    again = JoinerConfig.parse(json.loads(config.model_dump_json()))

    assert again == config
    assert list(again.inputs) == list(config.inputs)
    assert again.list_warnings() == config.list_warnings()
