"""Test that the name of a constant has one value, and that errors are not told by their texts."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "airflow_merge_provider"
# What each capability has under the same name.
OF_A_CAPABILITY = {"CAPABILITY", "COUNTS", "JOB"}
# A number that becomes smaller becomes the limit here.
SEVERAL_VALUES_MAX = 0
# Modules that read the text of an error of a program that has neither conditions nor classes for it.
TEXT_READERS = {"jobs/merge_record/files/local_copies.py", "jobs/spark/formats.py"}


def list_constants(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the names and values that a module assigns in upper case."""
    for node in module.body:
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            pairs: list[tuple[ast.expr, ast.expr]] = [(node.target, node.value)]
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
            pairs = [(target, value)]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = [*zip(target.elts, value.elts, strict=True)]
        else:
            continue
        for name, constant in pairs:
            if isinstance(name, ast.Name) and name.id.isupper():
                yield name.id, ast.unparse(constant)


def test_a_name_has_one_value() -> None:
    """A constant, private or not, means the same in every module: another idea has another name."""
    values: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(PACKAGE.rglob("*.py")):
        for name, value in list_constants(ast.parse(path.read_text(encoding="utf-8"))):
            values[name][value].append(str(path.relative_to(PACKAGE)))

    several = {name: dict(modules) for name, modules in values.items() if len(modules) > 1}

    assert len(several.keys() - OF_A_CAPABILITY) <= SEVERAL_VALUES_MAX, several


def test_errors_are_not_told_by_their_texts() -> None:
    """Conditions, classes and codes decide what an error is: a text may have values, and changes."""
    readers = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if any(_searches_error(node) for node in nodes):
            readers.add(str(path.relative_to(PACKAGE)))

    assert readers == TEXT_READERS


def _searches_error(node: ast.AST) -> bool:
    """Return whether an expression is ``"…" in str(error)``, also in lower case."""
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], ast.In):
        return False
    calls = [call for call in ast.walk(node.comparators[0]) if isinstance(call, ast.Call)]
    return any(ast.unparse(call) in ("str(error)", "str(cause)", "error.message") for call in calls)
