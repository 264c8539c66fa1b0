"""Tests that the provider info is valid and matches the package."""

from __future__ import annotations

import importlib
import json
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from airflow_merge_provider import __version__
from airflow_merge_provider.get_provider_info import get_provider_info

INFO = get_provider_info()
PACKAGE = Path(importlib.import_module("airflow_merge_provider").__file__).parent


def import_object(path: Any) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def modules_in(folder: Any) -> Any:
    return {f"airflow_merge_provider.{folder}.{path.stem}" for path in (PACKAGE / folder).glob("[a-z]*.py")}


def list_modules(kind: Any) -> Any:
    return {module for entry in INFO.get(kind, []) for module in entry["python-modules"]}


def test_it_is_valid_by_the_schema_of_airflow() -> None:
    """The provider info is valid by Airflow's own schema."""
    schema = json.loads(files("airflow").joinpath("provider_info.schema.json").read_text(encoding="utf-8"))

    assert [error.message for error in jsonschema.Draft7Validator(schema).iter_errors(INFO)] == []


def test_airflow_finds_it_and_the_plugin_by_their_entry_points() -> None:
    """Airflow finds the provider and the plugin by their entry points."""
    (provider,) = entry_points(group="apache_airflow_provider", name="provider_info").select(
        module="airflow_merge_provider.get_provider_info"
    )
    (plugin,) = entry_points(group="airflow.plugins", name="merge")

    assert provider.load()() == INFO
    assert plugin.load().name == "merge"
    assert "plugins" not in INFO, "Airflow would load the plugin twice where discovery is not lazy"


def test_the_version_is_that_of_the_package() -> None:
    """The version is that of the package and is defined once."""
    assert INFO["versions"][0] == __version__


@pytest.mark.parametrize("kind", ["operators", "hooks", "sensors", "triggers"])
def test_every_public_module_is_listed_and_no_other(kind: Any) -> None:
    """The provider info lists exactly the public modules."""
    assert list_modules(kind) == modules_in(kind)


def test_every_operator_of_a_job_has_a_task_decorator() -> None:
    """Airflow imports decorators by name; an undo computes nothing and has none."""
    for entry in INFO["task-decorators"]:
        decorator = import_object(entry["class-name"])
        operator = decorator(get_provider_info, task_id="t")().operator
        assert operator.custom_operator_name == f"@task.{entry['name']}"
    without = {"approve_plan", "undo"}
    assert {f"airflow_merge_provider.operators.{entry['name']}" for entry in INFO["task-decorators"]} == (
        list_modules("operators") - {f"airflow_merge_provider.operators.{name}" for name in without}
    )


def test_every_class_and_function_named_exists() -> None:
    """Every listed class and function exists, because Airflow imports it by name."""
    for path in INFO["extra-links"]:
        assert import_object(path)().name
    for connection in INFO["connection-types"]:
        hook = import_object(connection["hook-class-name"])
        assert (hook.conn_type, hook.hook_name) == (connection["connection-type"], connection["hook-name"])
    for scheme in INFO["asset-uris"]:
        assert all(callable(import_object(scheme[key])) for key in scheme if key != "schemes")


def test_every_operator_has_its_links_listed() -> None:
    """Every operator link is listed, because Airflow loses other links when a DAG is serialised."""
    for module in list_modules("operators"):
        operators = [
            value for value in vars(importlib.import_module(module)).values() if hasattr(value, "job")
        ]
        for operator in operators:
            for link in operator.operator_extra_links:
                assert f"{type(link).__module__}.{type(link).__name__}" in INFO["extra-links"]


def test_the_configuration_has_the_defaults_that_the_code_expects() -> None:
    """The defaults in the provider info, which Airflow shows and conf returns, are those of the code."""
    from airflow.sdk import conf

    assert conf.get("merge", "warehouse") == ""
    assert conf.getboolean("merge", "show_task_tab") is True
