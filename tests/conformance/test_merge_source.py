"""Tests of the merge source vectors on Spark: each run writes exactly the expected rows in order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.conformance import __main__ as runner, merge_source
from tests.conformance.lean import lean_session
from tests.conformance.outcomes import Outcomes, run_selected

Vector = dict[str, Any]

VECTORS: list[Vector] = json.loads(
    (Path(__file__).parent / "vectors" / "merge_source.json").read_text(encoding="utf-8")
)["vectors"]
WITH_STEPS = {vector["id"]: vector for vector in VECTORS if "steps" in vector}
# Written by the sink, from the clock and from hashes.
_NOT_COMPARED = {"_hash", "_previous", "_ts"}


# Vectors that depend on tables: first runs and changes of each identity and strategy, entities that are
# created, deleted and restored, a full run, a reset, a changed configuration, a rejected run.
ON_DELTA = (
    "seed-example-continued",
    "eq-feedback-loop",
    "first-delete-later-member",
    "inc-rerun",
    "inc-split-and-back",
    "inc-resurrect",
    "full-vanished-single",
    "full-vanished-all",
    "cfg-reorder-v1",
    "cfg-identity",
    "cfg-reset",
    "max-over",
)


@pytest.fixture(scope="module")
def outcomes(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Outcomes]:
    folder = tmp_path_factory.mktemp("vectors")

    def in_memory(session: SparkSession, id_: str) -> Any:
        return merge_source.outcome_in_memory(session, WITH_STEPS[id_], folder / id_)

    def on_delta(session: SparkSession, id_: str) -> Any:
        return runner.line_of(merge_source, session, WITH_STEPS[id_], folder / "delta" / id_)

    runs = {
        "test_runs_write_what_the_vector_expects": in_memory,
        "test_runs_on_delta_write_what_the_vector_expects": on_delta,
    }
    with run_selected(spark, request, runs) as results:
        yield results


@pytest.mark.parametrize("id_", WITH_STEPS)
def test_runs_write_what_the_vector_expects(id_: str, outcomes: Outcomes) -> None:
    """Each step writes exactly the expected entities, in order and with their numbers."""
    check_steps(id_, outcomes["test_runs_write_what_the_vector_expects", id_].result())


@pytest.mark.long
@pytest.mark.parametrize("id_", ON_DELTA)
def test_runs_on_delta_write_what_the_vector_expects(id_: str, outcomes: Outcomes) -> None:
    """Runs from Delta tables into a Delta table write the same entities."""
    check_steps(id_, outcomes["test_runs_on_delta_write_what_the_vector_expects", id_].result())


def check_steps(id_: str, line: Any) -> None:
    assert line["id"] == id_
    assert "error" not in line
    for number, (expected, step) in enumerate(zip(WITH_STEPS[id_]["steps"], line["steps"], strict=True)):
        if "expect_error" in expected:
            assert expected["expect_error"] in step["error"], number
        else:
            assert [to_comparable(entity) for entity in step] == [
                to_comparable(entity) for entity in expected["expect"]
            ], number


def to_comparable(value: Any) -> Any:
    """Format an entity so that ``==`` compares numbers by value and distinguishes booleans and texts."""
    if isinstance(value, dict):
        return {name: to_comparable(item) for name, item in value.items() if name not in _NOT_COMPARED}
    if isinstance(value, list):
        return [to_comparable(item) for item in value]
    return ("boolean", value) if isinstance(value, bool) else value


def test_comparing_tells_types_apart_and_numbers_by_value() -> None:
    """1 equals 1.0 but neither true nor "1"; hidden columns are not compared."""
    assert to_comparable({"x": [1], "_ts": 5}) == to_comparable({"x": [1.0]})
    assert to_comparable({"x": 1}) != to_comparable({"x": True})
    assert to_comparable({"x": 1}) != to_comparable({"x": "1"})


@pytest.mark.parametrize(
    "vector", [vector for vector in VECTORS if "expect_error" in vector], ids=lambda vector: vector["id"]
)
def test_a_wrong_configuration_is_the_outcome(vector: Vector, tmp_path: Path) -> None:
    """An invalid configuration is rejected without Spark, and the line has the quoted text."""
    line = merge_source.run_vector(None, vector, tmp_path)  # not reached

    assert vector["expect_error"] in line["error"]


def test_every_vector_gets_one_line(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every vector has a line, also a vector that cannot be run or read."""
    good = {
        "id": "good",
        "config": {"datasets": ["A a"], "version": 2},
        "steps": [{"inputs": {"A": [{"_id": "a1", "x": 1}]}}],
    }
    vectors = [
        {"id": "without-config", "steps": []},
        "no object",
        {"id": "refused", "config": {"datasets": []}},
        {**good, "id": "no-json-object", "steps": [{"inputs": {"A": ["text"]}}]},
        {**good, "id": "odd-inputs", "steps": [{"inputs": {"A": 1}}]},
        good,
    ]
    file = tmp_path / "vectors.json"
    file.write_text(json.dumps({"vectors": vectors}), encoding="utf-8")
    session = lean_session(spark)
    monkeypatch.setattr(session, "stop", lambda: None)
    monkeypatch.setattr(runner, "start_session", lambda _: session)

    assert runner.main(["merge_source", str(file)]) == 0

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [line["id"] for line in lines] == [
        "without-config", None, "refused", "no-json-object", "odd-inputs", "good",
    ]  # fmt: skip
    assert all("error" in line for line in (*lines[:3], lines[4]))
    assert "no JSON object" in lines[3]["steps"][0]["error"]
    assert lines[5]["steps"] == [[{"_id": "0|a1", "_updated": 0, "$ids": ["a1"], "x": 1}]]
