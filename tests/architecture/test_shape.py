"""Tests of the limits for lines of modules and functions, and for nesting."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "airflow_merge_provider"
FOLDERS = ("airflow_merge_provider", "dags", "tests", "benchmarks")
MODULES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
MODULE_LINES = 600
FUNCTION_LINES = 60
DEPTH = 3
FOLDER_MODULES = 20
_NESTING = (ast.For, ast.AsyncFor, ast.While, ast.If, ast.With, ast.AsyncWith, ast.Try, ast.Match)
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def measure_depth(node: ast.AST) -> int:
    """Return the maximum nesting depth of blocks; an elif does not add a level."""
    deepest = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*_FUNCTION, ast.ClassDef, ast.Lambda)):
            continue
        chained = isinstance(node, ast.If) and node.orelse == [child] and isinstance(child, ast.If)
        deepest = max(deepest, measure_depth(child) + (isinstance(child, _NESTING) and not chained))
    return deepest


def find_violations(source: str) -> Iterator[str]:
    """Return what is too long or nested too deeply in one module."""
    lines = source.count("\n") + 1
    if lines > MODULE_LINES:
        yield f"{lines} lines, at most {MODULE_LINES}"
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, _FUNCTION):
            continue
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length > FUNCTION_LINES:
            yield f"{node.name}: {length} lines, at most {FUNCTION_LINES}"
        if measure_depth(node) > DEPTH:
            yield f"{node.name}: nested {measure_depth(node)} deep, at most {DEPTH}"


def test_folders_stay_small() -> None:
    """No folder of the package has too many modules; larger ones are split into subfolders."""
    folders = [path for path in PACKAGE.rglob("*") if path.is_dir() and path.name != "__pycache__"]
    counts = {
        str(folder.relative_to(ROOT)): sum(path.name != "__init__.py" for path in folder.glob("*.py"))
        for folder in [PACKAGE, *folders]
    }

    assert {folder: count for folder, count in counts.items() if count > FOLDER_MODULES} == {}


def test_nothing_is_asserted_that_types_can_say() -> None:
    """The package has no assertions: a value that cannot be None has a type without None."""
    asserted = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Assert) or (isinstance(node, ast.Name) and node.id == "AssertionError")
    ]

    assert asserted == []


def test_modules_and_functions_stay_small() -> None:
    """No module, function or nesting is above its limit."""
    violations = {
        str(path.relative_to(ROOT)): list(find_violations(path.read_text(encoding="utf-8")))
        for path in MODULES
    }

    assert len(violations) > 700
    assert {path: problems for path, problems in violations.items() if problems} == {}


@pytest.mark.parametrize(
    "source",
    [
        "\n" * MODULE_LINES,
        "def long():\n" + "    x = 1\n" * FUNCTION_LINES,
        "def deep():\n for a in b:\n  for c in d:\n   if e:\n    while f:\n     pass\n",
    ],
    ids=["module", "function", "nesting"],
)
def test_the_caps_catch_what_is_above_them(source: Any) -> None:
    """Each limit rejects the smallest module that exceeds it."""
    assert list(find_violations(source))


def test_every_module_says_what_it_is_for() -> None:
    """Every module that is not empty begins with a docstring."""
    trees = {
        str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8"))
        for path in PACKAGE.rglob("*.py")
    }

    assert [path for path, tree in trees.items() if tree.body and not ast.get_docstring(tree)] == []


def test_columns_are_not_chained() -> None:
    """Columns are not added in a chain.

    One operator for each column of a wide table overflows Spark's stack.
    """
    jobs = (PACKAGE / "jobs").rglob("*.py")

    assert [path.name for path in jobs if "reduce(Column." in path.read_text(encoding="utf-8")] == []


def test_every_test_is_in_one_suite() -> None:
    """The three targets together run every test, whatever its markers, and no test twice."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")

    suites = re.findall(r"""^(test|test-e2e|test-long):.*\n\t.* -m "([^"]+)" (.*)""", makefile, re.MULTILINE)

    assert suites == [
        ("test", "not e2e and not long", "$(ARGS)"),
        ("test-e2e", "e2e", "tests $(ARGS)"),
        ("test-long", "long and not e2e", "tests $(ARGS)"),
    ]
