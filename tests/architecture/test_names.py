"""Tests of module names: the same in every folder, specific, and different from installed packages."""

from __future__ import annotations

import inspect
import re
import sys
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from airflow_merge_provider.operators import (
    delete_insert,
    joiner,
    merge_engine,
    merge_record,
    merge_source,
    scd2,
    undo,
    upsert,
)
from airflow_merge_provider.operators._arguments import own_parameters
from airflow_merge_provider.operators._spark_job import SparkJobOperator

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "airflow_merge_provider"
OPERATORS = [
    delete_insert.DeleteInsertOperator,
    joiner.JoinerOperator,
    merge_engine.MergeEngineOperator,
    merge_record.MergeRecordOperator,
    merge_source.MergeSourceOperator,
    scd2.Scd2Operator,
    undo.UndoOperator,
    upsert.UpsertOperator,
]
# Arguments about how a task waits are not passed to its job.
WAITING = {"deferrable", "poll_interval"}
WITHOUT_JOB = {"approve_plan"}
EMPTY_WORDS = {"utils", "util", "common", "helpers", "helper", "misc", "manager", "base"}


def to_snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def test_every_operator_module_is_listed_here() -> None:
    """Every operator module is in the list that the tests of this file check, unless it runs no job."""
    modules = {path.stem for path in (PACKAGE / "operators").glob("[a-z]*.py")} - WITHOUT_JOB
    assert {operator.__module__.rpartition(".")[2] for operator in OPERATORS} == modules


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_lives_in_the_module_of_its_name(operator: Any) -> None:
    """FooBarOperator is defined in operators/foo_bar.py."""
    stem = operator.__module__.rpartition(".")[2]
    assert to_snake_case(operator.__name__.removesuffix("Operator")) == stem


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_job_has_the_same_name_on_both_sides(operator: Any) -> None:
    """A job has the same name in operators, in its configuration in core, and in jobs."""
    assert (PACKAGE / "core" / operator.job / "config.py").is_file()
    assert (PACKAGE / "jobs" / operator.job / "job.py").is_file()


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_argument_is_documented_and_has_the_default_of_the_configuration(operator: Any) -> None:
    """The docstring describes each argument, and its default is the same in operator and configuration."""
    fields = operator.config_class.model_fields
    classes = operator.__mro__[: operator.__mro__.index(SparkJobOperator)]
    documented = "".join(class_.__doc__ or "" for class_ in classes)
    for name, parameter in own_parameters(operator, SparkJobOperator).items():
        assert f":param {name}:" in documented, name
        if parameter.default is not inspect.Parameter.empty and name not in WAITING:
            assert parameter.default == fields[name].get_default(call_default_factory=True), name


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_argument_of_the_configuration_reaches_the_job(operator: Any) -> None:
    """Every argument of the configuration is passed to the job."""
    arguments = set(own_parameters(operator, SparkJobOperator)) - WAITING
    assert arguments == set(operator.config_fields)
    assert arguments <= set(operator.template_fields)


def test_no_module_hides_an_installed_one() -> None:
    """No module has the name of an installed one.

    The folder of a script is first on the path, so the wrong module would be imported.
    """
    installed_names = set(sys.stdlib_module_names) | set(packages_distributions())
    in_submit = {path.stem for path in (PACKAGE / "jobs" / "submit").glob("*.py")}
    assert in_submit & installed_names <= {"__init__"}


def test_no_module_has_a_name_that_says_nothing() -> None:
    """No module has a generic name."""
    assert {path.stem for path in PACKAGE.rglob("*.py")} & EMPTY_WORDS == set()
