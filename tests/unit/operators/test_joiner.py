"""Tests of JoinerOperator without a database: accepted and rejected arguments, preview and request."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import Asset

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.protocol import JobResult
from airflow_merge_provider.operators.joiner import JoinerOperator
from tests.fakes import build_report
from tests.unit.operators.test_merge_source import execute_operator

KEYS = {"inputs": {"a": "A", "b": "B"}, "join_keys": "a.x = b.x", "join_type": "innerjoin"}
PROPERTIES = {"joinKeys": "a.x=b.x", "requiredInputs": "a,b", "selectedFields": "a.x,b.y as z"}


def build_operator(**kwargs: Any) -> Any:
    return JoinerOperator(**{"task_id": "join", "target": "joined", **KEYS, **kwargs})


def test_every_problem_of_literal_arguments_is_named_at_parse_time() -> None:
    """One error has all problems of the literal arguments with their paths, also of common arguments."""
    with pytest.raises(ConfigError) as refused:
        build_operator(
            join_type="sideways", num_of_inputs="3", selected_fields="a.x, b.x", warehouse="relative"
        )

    paths = {problem.path for problem in refused.value.problems}
    assert paths == {"join_type", "num_of_inputs", "selected_fields", "warehouse"}


def test_a_template_postpones_the_check_to_the_run() -> None:
    """A template defers the check to the run, because its value is not available before."""
    assert (
        build_operator(selected_fields="{{ params.fields }}, c.x").selected_fields
        == "{{ params.fields }}, c.x"
    )


@pytest.mark.parametrize("name", ["coalesced_keys", "join_keyz"])
def test_an_argument_that_does_not_exist_is_refused(name: Any) -> None:
    """An unknown argument is rejected, because it would have no effect."""
    with pytest.raises(ConfigError, match=f"{name}: unknown argument"):
        build_operator(**{name: True})


def test_literal_inputs_become_inlets_and_the_target_an_outlet() -> None:
    """Literal inputs are inlets and the target is an outlet.

    An input in another format than Delta has no asset.
    """
    inputs = {"a": "A", "b": Asset("web", uri="s3://lake/web"), "c": {"dataset": "/in", "format": "csv"}}
    operator = build_operator(inputs=inputs, join_keys="a.x = b.x = c.x")

    assert [asset.uri for asset in operator.inlets] == ["merge://warehouse/A", "s3://lake/web"]
    assert [asset.uri for asset in operator.outlets] == ["merge://warehouse/joined"]
    assert operator.inputs["b"] == "s3://lake/web"


def test_inputs_may_be_a_list() -> None:
    """Inputs may be a list, as in every other operator."""
    operator = build_operator(inputs=["A a", "lake.crm.b b"])

    assert [asset.uri for asset in operator.inlets] == ["merge://warehouse/A", "merge://catalog/lake.crm.b"]


def test_the_request_holds_what_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request has the given arguments in the order of the inputs, without those that were not given."""
    operator = build_operator(inputs={"z": "Z", "a": "A"}, join_keys="z.x = a.x", warehouse="/lake")

    fake, *_ = execute_operator(operator, JobResult(report=build_report()), monkeypatch)

    (request,) = fake.requests
    assert request.job == "joiner"
    assert list(request.config["inputs"]) == ["z", "a"]
    assert not {"required_inputs", "output_schema", "expect"} & set(request.config)


@pytest.mark.parametrize("wrapped", [False, True], ids=["plugin", "stage"])
def test_a_stage_of_a_pipeline_becomes_an_operator(wrapped: Any) -> None:
    """The properties of a pipeline stage become arguments.

    Datasets are given separately, and given arguments take precedence.
    """
    plugin = {"name": "Joiner", "type": "batchjoiner", "properties": PROPERTIES}
    stage = {"name": "join", "plugin": plugin} if wrapped else plugin

    operator = JoinerOperator.from_stage(
        stage,
        task_id="join",
        inputs={"a": "A", "b": Asset("B", uri="s3://lake/b")},
        target="t",
        required_inputs="a",
    )

    assert (operator.join_keys, operator.selected_fields) == ("a.x=b.x", "a.x,b.y as z")
    assert (operator.required_inputs, operator.target) == ("a", "t")


def test_every_problem_of_a_stage_is_named_as_it_is_written() -> None:
    """Every problem of a stage is reported with the name of the property in the pipeline."""
    properties = {**PROPERTIES, "numPartitions": "many", "requiredInput": "a"}

    with pytest.raises(ConfigError) as refused:
        JoinerOperator.from_stage(
            {"properties": properties}, task_id="join", inputs=KEYS["inputs"], target="t"
        )

    assert {problem.path for problem in refused.value.problems} == {"numPartitions", "requiredInput"}


def test_a_preview_shows_the_schemas_of_all_inputs_and_of_the_output() -> None:
    """A preview shows the schemas of all inputs and the output without reading data or starting Spark."""
    operator = build_operator(join_type="outerjoin", required_inputs="b", selected_fields="a.y, b.x as id")

    shown = operator.preview({"a": {"x": "int", "y": "string"}, "b": {"x": "int"}})

    assert shown == {
        "inputs": {"a": [["x", "int", False], ["y", "string", False]], "b": [["x", "int", False]]},
        "output": [["y", "string", True], ["id", "int", False]],
    }


def test_a_preview_refuses_what_the_run_would_refuse() -> None:
    """A preview rejects at once what a run would reject, also errors that only the schemas show."""
    with pytest.raises(ConfigError) as refused:
        build_operator().preview({"a": {"x": "int"}, "b": {"x": "long"}})

    assert [problem.code for problem in refused.value.problems] == ["join_key_field"]
