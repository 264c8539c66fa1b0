"""Tests of the merge source vectors without tables: values, expressions, rules, errors, decisions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig, is_populated, is_signalling
from airflow_merge_provider.core.merge_source.dtl.expressions import (
    evaluate_expression,
    parse_expression,
    to_raw,
)
from airflow_merge_provider.core.merge_source.dtl.values import build_keys
from airflow_merge_provider.core.merge_source.equality import list_rules
from airflow_merge_provider.core.population import output_populated

VECTORS = json.loads(
    (Path(__file__).parents[3] / "conformance" / "vectors" / "merge_source.json").read_text("utf-8")
)
Vector = dict[str, Any]


def parametrize_section(section: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("vector", VECTORS[section], ids=lambda vector: vector["id"])


def build_config(vector: Vector) -> dict[str, Any]:
    return {**vector["config"], **vector.get("operator", {})}


def is_same(left: Any, right: Any) -> bool:
    """Compare as JSON text, which distinguishes 1 from 1.0 and from true."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


@parametrize_section("value_equality")
def test_two_values_join_when_they_share_a_key(vector: Vector) -> None:
    """Two values join exactly if they share a key, in both directions."""
    shared = set(build_keys(vector["left"])) & set(build_keys(vector["right"]))

    assert bool(shared) is vector["expect"]


@parametrize_section("expressions")
def test_an_expression_gives_its_value(vector: Vector) -> None:
    """An expression has the value in the documentation, and its text is parsed to the same expression."""
    expression = parse_expression(vector["expr"], {"a"})

    assert is_same(evaluate_expression(expression, vector["entity"]), vector["expect"])
    assert parse_expression(to_raw(expression), {"a"}) == expression


@parametrize_section("rules")
def test_a_configuration_makes_its_rules(vector: Vector) -> None:
    """Rules are in the configured order: equality first, then those that the sets imply."""
    config = MergeSourceConfig.parse(build_config(vector))

    assert [rule.source for rule in list_rules(config)] == vector["expect_rules"]


@pytest.mark.parametrize(
    "vector",
    [vector for vector in VECTORS["vectors"] if "expect_error" in vector],
    ids=lambda vector: vector["id"],
)
def test_a_wrong_configuration_is_refused(vector: Vector) -> None:
    """The error message holds the quoted text."""
    with pytest.raises(ConfigError) as refused:
        MergeSourceConfig.parse(build_config(vector))

    assert vector["expect_error"] in refused.value.message


@pytest.mark.parametrize(
    "vector",
    [vector for vector in VECTORS["vectors"] if "expect_error" not in vector],
    ids=lambda vector: vector["id"],
)
def test_a_right_configuration_survives_the_request_file(vector: Vector) -> None:
    """A valid configuration that is written as JSON and read again is the same, with the same warnings."""
    config = MergeSourceConfig.parse(build_config(vector))

    again = MergeSourceConfig.parse(json.loads(config.model_dump_json()))

    assert again == config
    assert again.list_warnings() == config.list_warnings()


@parametrize_section("populated")
def test_a_source_is_populated(vector: Vector) -> None:
    """The source is populated if it waits for none of its initial datasets."""
    config = MergeSourceConfig.parse(vector["config"])

    assert is_populated(config, vector["state"]) is vector["expect"]


@parametrize_section("sink_populated")
def test_an_output_becomes_populated(vector: Vector) -> None:
    """The flag of the output depends on set_initial_offset, on the source and on how far the run came."""
    became = output_populated(
        vector["set_initial_offset"], source_populated=vector["source_populated"], run=vector["run"]
    )

    assert became is vector["expect"]


@parametrize_section("signalling")
def test_signalling_is_decided(vector: Vector) -> None:
    """The setting of the source takes precedence over the global setting and the schedule."""
    decided = is_signalling(
        vector["supports_signalling"],
        vector["schedule"],
        use_signalling_internally=vector["use_signalling_internally"],
    )

    assert decided is vector["expect"]
