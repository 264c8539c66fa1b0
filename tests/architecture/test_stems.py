"""Tests that modules with the same file name have the same content in every capability."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from airflow_merge_provider.core.capabilities import CAPABILITIES

PACKAGE = Path(__file__).parents[2] / "airflow_merge_provider"
CASES = [(side, name) for side in ("core", "jobs") for name in CAPABILITIES]


def list_modules(stem: str, side: str) -> list[tuple[str, ast.Module]]:
    """Return the modules with a name, by capability."""
    paths = ((name, PACKAGE / side / name / f"{stem}.py") for name in CAPABILITIES)
    return [(name, ast.parse(path.read_text(encoding="utf-8"))) for name, path in paths if path.exists()]


def list_functions(module: ast.Module) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}


def list_classes(module: ast.Module) -> list[str]:
    return [node.name for node in module.body if isinstance(node, ast.ClassDef) and node.name[0] != "_"]


def list_imports(module: ast.Module) -> list[str]:
    return [str(node.module) for node in ast.walk(module) if isinstance(node, ast.ImportFrom)]


def test_a_config_is_what_users_write() -> None:
    """`core/*/config.py` defines the configuration of its capability."""
    modules = list_modules("config", "core")

    assert [name for name, _ in modules] == list(CAPABILITIES)
    for name, module in modules:
        assert CAPABILITIES[name].config.__name__ in list_classes(module), name
        assert CAPABILITIES[name].config.__module__.endswith(f".core.{name}.config")


def test_counts_are_those_of_the_report() -> None:
    """Every capability declares the counts in its report."""
    for name, capability in CAPABILITIES.items():
        assert capability.counts, name


def test_a_plan_is_decided_before_anything_runs() -> None:
    """`core/*/plan.py` has a class that describes what a run will do."""
    for name, module in list_modules("plan", "core"):
        assert any(class_name.endswith("Plan") for class_name in list_classes(module)), name


def test_a_job_is_run_by_a_request() -> None:
    """`jobs/*/job.py` has `run(spark, request, progress)`, which the entry point calls."""
    modules = list_modules("job", "jobs")

    assert [name for name, _ in modules] == list(CAPABILITIES)
    for name, module in modules:
        arguments = list_functions(module)["run"].args.args
        assert [argument.arg for argument in arguments] == ["spark", "request", "progress"], name


def test_a_report_gives_the_details() -> None:
    """`jobs/*/report.py` builds only the report fields that are specific to its capability."""
    modules = list_modules("report", "jobs")

    assert [name for name, _ in modules] == list(CAPABILITIES)
    for name, module in modules:
        assert "build_details" in list_functions(module), name


def test_a_transformation_neither_reads_nor_writes() -> None:
    """`jobs/*/transform.py` transforms rows without reading or writing tables."""
    for name, module in list_modules("transform", "jobs"):
        assert not [
            import_name
            for import_name in list_imports(module)
            if ".jobs.delta" in import_name or ".jobs.run" in import_name
        ], name


def test_a_target_is_asked_the_same_by_every_job() -> None:
    """`jobs/*/target.py` declares which methods of a target its job calls, for any storage."""
    for name, module in list_modules("target", "jobs"):
        assert "Target" in list_classes(module), name


@pytest.mark.parametrize(("side", "name"), CASES, ids=lambda value: value)
def test_every_capability_has_a_folder_on_both_sides(side: Any, name: Any) -> None:
    """Every capability has a folder in core for its rules and one in jobs for its data processing."""
    assert (PACKAGE / side / name / "__init__.py").exists()
