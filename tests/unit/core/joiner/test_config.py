"""Tests of the joiner configuration: notations, errors that the vectors do not cover, and warnings."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.joiner.config import (
    JoinerConfig,
    compute_signature,
    from_stage,
)
from airflow_merge_provider.core.joiner.plan import preview_join

NO_KEYS: dict[str, Any] = {"join_keys": None}
TWO = {"inputs": {"a": "A", "b": "B"}, "join_keys": "a.x = b.x"}
THREE = {"inputs": {"a": "A", "b": "B", "c": "C"}, "join_keys": "a.x = b.x = c.x"}
ADVANCED = {
    "inputs": {"a": "A", "b": "B"},
    "condition_type": "advanced",
    "condition_expression": "a.x < b.x",
    "required_inputs": "a,b",
}
SCHEMAS = {
    "a": {"x": "int", "m": "map<string,int>", "v": "variant"},
    "b": {"x": "int", "m": "map<string,int>", "v": "variant"},
}


def list_faults(**raw: Any) -> list[tuple[str, str]]:
    """Return the category and the property of every error."""
    with pytest.raises(ConfigError) as refused:
        JoinerConfig.parse(raw)
    return [(problem.code, problem.path) for problem in refused.value.problems]


def read_message(**raw: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        JoinerConfig.parse(raw)
    return str(refused.value)


def test_texts_and_native_values_are_one_configuration() -> None:
    """Booleans, numbers, lists and objects give the same configuration as their text form."""
    texts = JoinerConfig.parse(
        {
            "inputs": ["A a", "B b"],
            "joinKeys": "a.x = b.x & a.y = b.z",
            "requiredInputs": " a ,, b",
            "selectedFields": "a.x, b.y as z",
            "joinNullKeys": "False",
            "numPartitions": " 4 ",
            "distributionEnabled": "true",
            "distributionFactor": "3",
            "distributionStageName": "a",
        }
    )
    native = JoinerConfig.parse(
        {
            "inputs": {"a": "A", "b": "B"},
            "join_keys": "a.x = b.x & a.y = b.z",
            "required_inputs": ["a", "b"],
            "selected_fields": ["a.x", "b.y as z"],
            "join_null_keys": False,
            "num_partitions": 4,
            "distribution_enabled": True,
            "distribution_factor": 3,
            "distribution_stage_name": "a",
        }
    )

    assert texts == native


@pytest.mark.parametrize(
    "changed",
    [
        {"required_inputs": "a", "selected_fields": "a.x", "join_null_keys": "true", "num_partitions": "4"},
        {"required_inputs": ["a"], "selected_fields": ["a.x", {"input": "b", "field": "x", "as": "y"}]},
        {"inputs": ["A a", "B b"], "join_keys": [{"a": "x", "b": "x"}], "join_type": "InnerJoin"},
        {"input_aliases": "a=u", "output_schema": [["a.x", "int"], {"name": "b.x", "type": "int"}]},
    ],
)
def test_editors_accept_what_is_understood(changed: dict[str, Any]) -> None:
    """The JSON Schema accepts every notation of a property, and no other property."""
    accepts = jsonschema.Draft202012Validator(JoinerConfig.model_json_schema()).is_valid
    JoinerConfig.parse({**TWO, **changed})

    assert accepts({**TWO, **changed})
    assert not accepts({**TWO, "nobody": 1})
    assert not accepts({**TWO, "required_inputs": 5})


@pytest.mark.parametrize(
    "keys",
    [
        "a.x=b.x&a.y=b.z",
        "a.x,b.x:a.y,b.z",
        ["a.x = b.x", "b.z = a.y"],
        [{"a": "x", "b": "x"}, {"a": "y", "b": "z"}],
        ["a.x, b.x", {"b": "z", "a": "y"}],
        "a.x=b.x&a.x=b.x&a.y=b.z&",
    ],
    ids=["shipped", "seed", "list", "objects", "mixed list", "repeated clause"],
)
def test_keys_may_be_written_in_several_ways(keys: Any) -> None:
    """All notations of join keys compare the same fields."""
    from airflow_merge_provider.core.joiner.keys import read_keys as read

    key_fields, problems = read(JoinerConfig.parse({**TWO, "join_keys": keys}).parse_options())

    assert problems == []
    assert key_fields == {"a": ("x", "y"), "b": ("x", "z")}


def test_names_that_hold_separators_are_written_as_objects() -> None:
    """A field named "x.y = z" can be a key, selected and renamed if it is written as an object."""
    odd = "x.y = z, as :"
    raw = {
        "inputs": {"a": "A", "b": "B"},
        "join_keys": {"a": odd, "b": "x"},
        "required_inputs": ["a"],
        "selected_fields": [{"input": "a", "field": odd, "as": "first"}, {"input": "a", "field": odd}],
    }

    shown = preview_join(raw, {"a": {odd: "int"}, "b": {"x": "int"}})

    assert shown["output"] == [["first", "int", False], [odd, "int", False]]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"inputs": {"a": "A"}, "join_keys": "a.x"}, [("input", "inputs")]),
        ({"inputs": "A"}, [("input", "inputs")]),
        ({"inputs": ["A a", "B a"]}, [("input", "inputs")]),
        ({"inputs": {"a": "A", "b as c": "B"}, "join_type": "crossjoin", **NO_KEYS}, [("input", "inputs")]),
        ({"inputs": {"a": "A", "": "B"}, "join_keys": [{"a": "x", "": "x"}]}, [("input", "inputs")]),
        ({"inputs": {"a": "A", "b": "no dataset"}}, [("dataset", "inputs.b")]),
        ({"target": "A"}, [("config", "target")]),
        ({"target_format": "parquet"}, [("config", "target_format")]),
        ({"target_format": None}, [("config", "target_format")]),
        ({"target_options": {"sep": ";"}}, [("config", "target_options")]),
        ({"write_mode": "upsert"}, [("config", "write_mode")]),
        ({"join_keys": None}, [("join_key", "join_keys")]),
        ({"join_keys": 5}, [("join_key", "join_keys")]),
        ({"join_keys": "a.x = b.x & a.y = b.y = b.z"}, [("join_key", "join_keys")] * 2),
        ({"join_keys": "a.x = a.y"}, [("join_key", "join_keys")] * 2),
        ({"join_keys": "ax = b.x"}, [("join_key", "join_keys")] * 2),
        ({"join_type": "sidewaysjoin"}, [("config", "join_type")]),
        ({"join_type": "leftouterjoin", "required_inputs": "b"}, [("config", "required_inputs")]),
        ({"num_of_inputs": "two"}, [("input", "num_of_inputs")]),
        ({"required_inputs": {"a": 1}}, [("required_input", "required_inputs")]),
        ({"selected_fields": "a.x, a.y as x"}, [("selected_field", "selected_fields")]),
        ({"fields_to_select": "a.x", "fields_to_drop": "b.x"}, [("config", "fields_to_drop")]),
        ({"fields_to_select": "a.x,a.x"}, [("selected_field", "fields_to_select")] * 2),
        ({"fields_to_select": [{"input": "a", "as": "x"}]}, [("selected_field", "fields_to_select")]),
        ({"fields_to_rename": [{"input": "a", "field": "x"}]}, [("selected_field", "fields_to_rename")]),
        ({"join_null_keys": "maybe"}, [("config", "join_null_keys")]),
        ({"join_null_keys": 1}, [("config", "join_null_keys")]),
        ({"num_partitions": 0}, [("config", "num_partitions")]),
        ({"distribution_enabled": True}, [("distribution_size", "distribution_factor"),
                                          ("distribution_stage", "distribution_stage_name")]),
        ({"distribution_enabled": True, "distribution_factor": "many", "distribution_stage_name": "a",
          "required_inputs": "a"}, [("distribution_size", "distribution_factor")]),
        ({"distribution_enabled": True, "distribution_factor": 2, "distribution_stage_name": "b",
          "required_inputs": "a"}, [("distribution_stage", "distribution_stage_name")]),
        ({"input_aliases": "a=u;a=v"}, [("config", "input_aliases")]),
        ({"input_aliases": "a=u;b=u"}, [("config", "input_aliases")]),
        ({"input_aliases": {"c": "u"}}, [("config", "input_aliases")]),
        ({"output_schema": [["x", "whole number"]]}, [("output_schema", "output_schema")]),
        ({"output_schema": "x int"}, [("output_schema", "output_schema")]),
        ({"output_schema": [["x", "int"], ["x", "int"]]}, [("output_schema", "output_schema")]),
        ({"indicator": ""}, [("config", "indicator")]),
        ({"indicator": "X", "selected_fields": "a.x"}, [("config", "indicator")]),
        ({"key_columns": "id, id2"}, [("config", "key_columns")]),
        ({"key_columns": "X", "selected_fields": "a.x"}, [("config", "key_columns")]),
        ({"key_columns": "k", "indicator": "K"}, [("config", "indicator")]),
        ({"unmatched": "A", "join_type": "innerjoin"}, [("config", "unmatched")]),
        ({"unmatched": "no dataset", "join_type": "innerjoin"}, [("dataset", "unmatched")]),
        ({"unmatched": "rest"}, [("config", "unmatched")]),
        ({"expect": {"b": "unique"}}, [("config", "expect.b")]),
        ({"expect": {"c": "one_to_one"}}, [("config", "expect")]),
        ({"expect": {"a": "one_to_one"}}, [("config", "expect")]),
        ({"join_keyz": "a.x=b.x"}, [("config", "join_keyz")]),
        ({"joinKeys": "a.x=b.x"}, [("config", "joinKeys")]),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else "",
)  # fmt: skip
def test_each_fault_has_its_category_and_its_property(changed: dict[str, Any], expected: Any) -> None:
    """Each error has its category and names the property that has to be changed."""
    assert list_faults(**{**TWO, **changed}) == expected


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"required_inputs": "a"}, [("broadcast", "in_memory_inputs")]),
        ({"condition_expression": " "}, [("invalid_condition", "condition_expression")]),
        ({"condition_expression": 5}, [("invalid_condition", "condition_expression")]),
        ({"join_type": "crossjoin"}, [("config", "condition_type")]),
        ({"expect": {"b": "one_to_one"}}, [("config", "expect")]),
    ],
)
def test_each_fault_of_an_expression_has_its_category(changed: dict[str, Any], expected: Any) -> None:
    """Each error in an expression that can be found without Spark has its category."""
    assert list_faults(**{**ADVANCED, **changed}) == expected


def test_a_key_of_several_types_cannot_be_one_column() -> None:
    """Decimals of different sizes are compared, but cannot share one output column."""
    raw = {**TWO, "join_type": "innerjoin", "selected_fields": "a.x", "key_columns": "k"}

    with pytest.raises(ConfigError, match=r"different types: decimal\(5,2\) and decimal\(9,2\)"):
        preview_join(raw, {"a": {"x": "decimal(5,2)"}, "b": {"x": "decimal(9,2)"}})


def test_names_of_inputs_that_differ_in_case_only_need_another_target() -> None:
    """Input names that differ in case only are rejected if all fields are output.

    They are part of the column names then.
    """
    raw = {"inputs": {"a": "A", "A": "B"}, "join_keys": "a.x = A.x", "join_type": "innerjoin"}
    schemas = {"a": {"x": "int"}, "A": {"x": "int"}}

    with pytest.raises(ConfigError, match="only in case"):
        preview_join({**raw, "target": "T"}, schemas)
    assert [name for name, *_ in preview_join(raw, schemas)["output"]] == ["a.x", "A.x"]


def test_salting_takes_two_inputs() -> None:
    """More than two inputs are rejected, and the error names the property that enables salting."""
    salted = {"distribution_enabled": True, "distribution_factor": 2, "distribution_stage_name": "a"}

    assert list_faults(**THREE, **salted, join_type="innerjoin") == [("general", "distribution_enabled")]


@pytest.mark.parametrize("field", ["m", "v"])
def test_keys_that_cannot_be_compared_are_refused(field: str) -> None:
    """Maps and variants are rejected as keys because Spark cannot compare them."""
    raw = {**TWO, "join_keys": f"a.{field} = b.{field}", "join_type": "innerjoin", "fields_to_select": "a.x"}

    with pytest.raises(ConfigError, match="cannot be compared") as refused:
        preview_join(raw, SCHEMAS)

    assert [problem.code for problem in refused.value.problems] == ["join_key_field"]


def test_a_misspelt_property_is_not_taken_in_silence() -> None:
    """A misspelt property is rejected with the nearest known name, in the notation that the user chose."""
    assert "did you mean 'requiredInputs'?" in read_message(
        inputs=["A", "B"], joinKeys="A.x=B.x", requiredInput="A"
    )
    assert "did you mean 'required_inputs'?" in read_message(**TWO, required_input="a")


def test_faults_of_properties_and_between_them_come_together() -> None:
    """One report holds the errors of single properties and the errors between properties."""
    faults = list_faults(
        **{**TWO, "join_type": "x", "required_inputs": "z", "selected_fields": "a.x, q.x", "num_of_inputs": 3}
    )

    assert {category for category, _ in faults} == {"config", "required_input", "selected_field", "input"}


def test_names_that_differ_in_case_only_need_another_target() -> None:
    """Names that differ in case only are rejected for Delta. Without a target they are two columns."""
    raw = {**TWO, "selected_fields": "a.x, b.X"}

    assert list_faults(**raw, target="T") == [("selected_field", "selected_fields")]
    JoinerConfig.parse(raw)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (TWO, "full outer join"),
        ({**TWO, "join_type": "innerjoin", "required_inputs": "a"}, "required_inputs: has no effect"),
        (
            {**TWO, "join_type": "inner_join", "fields_to_select": "a.x", "fields_to_rename": "b.x:y"},
            "b.x is not selected",
        ),
        ({**TWO, "join_type": "innerjoin", "condition_expression": "true"}, "has an effect only with"),
        ({**ADVANCED, "join_keys": "a.x=b.x"}, "join_keys: has no effect"),
        ({**ADVANCED, "distribution_enabled": True, "distribution_factor": 2, "distribution_stage_name": "a"},
         "only joins by keys are salted"),
        ({**TWO, "required_inputs": "", "in_memory_inputs": "b"}, "no effect on a full outer join"),
        ({**TWO, "required_inputs": "a", "in_memory_inputs": "a"}, "is not broadcast"),
    ],
)  # fmt: skip
def test_what_is_probably_not_meant_is_said(raw: dict[str, Any], message: str) -> None:
    """A probable mistake gives a warning, and the join still runs."""
    assert [message in warning for warning in JoinerConfig.parse(raw).list_warnings()] == [True]


def test_a_plain_inner_join_gives_no_warning() -> None:
    """A plain inner join gives no warning."""
    inner = {**TWO, "join_type": "innerjoin", "in_memory_inputs": "b"}

    assert JoinerConfig.parse(inner).list_warnings() == []


def test_a_stage_of_a_pipeline_is_a_configuration() -> None:
    """The properties of a pipeline stage are accepted, together with inputs and a target."""
    properties = {"joinKeys": "a.x=b.x", "requiredInputs": "a,b", "selectedFields": "a.x"}
    plugin = {"name": "Joiner", "type": "batchjoiner", "properties": properties}
    stage = {"name": "join", "plugin": plugin, "inputs": TWO["inputs"], "target": "T"}

    config = JoinerConfig.parse(from_stage(stage))

    assert (config.required_inputs, config.target) == (("a", "b"), "T")
    assert from_stage(TWO) == TWO
    with pytest.raises(ConfigError, match="has no object `properties`"):
        from_stage({"plugin": {"name": "Joiner"}})


def test_datasets_are_named_by_their_paths() -> None:
    """Inputs and target have the paths that errors use; what a run does with them selects some."""
    config = JoinerConfig.parse({**TWO, "target": "T"})

    assert config.list_datasets() == {"target": "T", "inputs.a": "A", "inputs.b": "B"}
    assert config.list_datasets("output") == {"target": "T"}


def test_what_cannot_change_a_row_is_not_in_the_signature() -> None:
    """Another hint does not change the signature.

    Another order of inputs does, because the order of columns depends on it.
    """
    base = compute_signature(JoinerConfig.parse({**TWO, "join_type": "innerjoin"}))
    hinted = {**TWO, "join_type": "innerjoin", "in_memory_inputs": "b", "num_of_inputs": 2, "target": "T"}
    turned = {**TWO, "join_type": "innerjoin", "inputs": {"b": "B", "a": "A"}}

    assert compute_signature(JoinerConfig.parse(hinted)) == base
    assert compute_signature(JoinerConfig.parse(turned)) != base


@pytest.mark.parametrize(
    ("schemas", "message"),
    [
        ({"a": {"x": "int"}}, "inputs.b: has no schema"),
        ({"a": {"x": "int"}, "b": {"x": "number"}}, "inputs.b: unknown type 'number'"),
        ({"a": {"x": "int"}, "b": "x int"}, "inputs.b: must be a list"),
    ],
)
def test_a_preview_needs_the_schema_of_every_input(schemas: dict[str, Any], message: str) -> None:
    """A preview needs the schema of every input; the error names missing and unreadable schemas."""
    with pytest.raises(ConfigError) as refused:
        preview_join(TWO, schemas)

    assert message in str(refused.value)


def test_a_later_option_leaves_the_signature_of_targets() -> None:
    """Otherwise a new version of the package would join everything again; an option that is set counts."""

    class LaterConfig(JoinerConfig):
        on_null_key: str = "skip"

    plain = compute_signature(JoinerConfig.parse(TWO))

    assert compute_signature(LaterConfig.parse(TWO)) == plain
    assert compute_signature(LaterConfig.parse({**TWO, "on_null_key": "join"})) != plain
