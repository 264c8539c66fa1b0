"""Tests of the joiner vectors that need no tables: rejected configurations and output schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.joiner.config import JoinerConfig, list_warnings
from airflow_merge_provider.core.joiner.preview import preview_join

VECTORS = json.loads(
    (Path(__file__).parents[3] / "conformance" / "vectors" / "joiner.json").read_text("utf-8")
)["vectors"]
Vector = dict[str, Any]
# Only Spark can decide whether an expression is a boolean.
REFUSED = [
    each for each in VECTORS if "error" in each["expected"] and each["id"] != "advanced-not-boolean-error"
]
ACCEPTED = [each for each in VECTORS if "error" not in each["expected"]]


def format_id(vector: Vector) -> str:
    return str(vector["id"])


def build_config(vector: Vector) -> dict[str, Any]:
    return {**vector["config"], "inputs": {stage: f"t{n}" for n, stage in enumerate(vector["inputs"])}}


def read_schemas(vector: Vector) -> dict[str, Any]:
    return {stage: given["schema"] for stage, given in vector["inputs"].items()}


@pytest.mark.parametrize("vector", REFUSED, ids=format_id)
def test_every_fault_is_reported_at_once(vector: Vector) -> None:
    """Each expected error has its category and its property, and its text holds all expected words."""
    with pytest.raises(ConfigError) as refused:
        preview_join(build_config(vector), read_schemas(vector))

    found = [(each.code, each.path, str(each).lower()) for each in refused.value.problems]
    for fault in vector["expected"]["all_errors"]:
        wanted = [text.lower() for text in fault["must_mention"]]
        assert any(
            (category, path) == (fault["category"], fault["property"])
            and all(each in text for each in wanted)
            for category, path, text in found
        ), (fault, found)


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
    assert list_warnings(again) == list_warnings(config)
