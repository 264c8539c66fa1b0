"""The cells of the tables of outcomes that tests check, as the parameters of the tests name them."""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tests.values.catalog import ALL, SPARK_ONLY
from tests.values.outcomes import Outcomes

Cell = tuple[str, str]
# Of these, tests check a type of each family, and the types that a format has.
SAMPLED = {
    "MergeSourceOperator": ("sequence",),
    "Text files with a schema": tuple(
        f"{name}{more}" for name in ("csv", "json", "xml") for more in ("", " beyond")
    ),
}


@cache
def list_tested() -> dict[str, frozenset[Cell]]:
    """Return the cells, as kind and use, that a test checks, by the heading of their table."""
    cells: defaultdict[str, set[Cell]] = defaultdict(set)
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        module = importlib.import_module(f"tests.values.{path.stem}")
        tests = [value for name, value in vars(module).items() if name.startswith("test_")]
        if hasattr(module, "OUTCOMES"):
            cells[module.OUTCOMES.heading].update(cell for test in tests for cell in _list_parameters(test))
    return {heading: frozenset(tested) for heading, tested in cells.items()}


def list_cells(outcomes: Outcomes) -> set[Cell]:
    """Return the cells that a table has for the kinds of the catalog."""
    names = [kind.name for kind in (*ALL, *SPARK_ONLY)]
    kinds = [name for name in names if name in outcomes.rows or outcomes.find_shorter(name)]
    return {(kind, use) for kind in kinds for use in outcomes.uses if outcomes.find_outcome(kind, use)}


def _list_parameters(test: Any) -> Iterator[Cell]:
    """Yield the kinds and uses of a test that has both as parameters."""
    for mark in getattr(test, "pytestmark", ()):
        names = [{"name": "kind"}.get(name, name) for name in mark.args[0]] if mark.args else []
        if mark.name != "parametrize" or sorted(names) != ["kind", "use"]:
            continue
        for parameters in mark.args[1]:
            values = dict(zip(names, getattr(parameters, "values", parameters), strict=True))
            kind = values["kind"]
            yield kind if isinstance(kind, str) else kind.name, values["use"]
