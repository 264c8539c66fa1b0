"""Tests that the pages for users of other systems map to options that exist."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_merge_provider.get_provider_info import get_provider_info
from airflow_merge_provider.operators._spark_job import SparkJobOperator
from tests.unit.test_docs import ROOT, read_rows

PAGES = sorted((ROOT / "docs/coming_from").glob("*.md"))
_NO_COUNTERPART = "no counterpart"
# What a cell may name besides operators and their arguments.
_OTHER_NAMES = {"airflow_merge_provider", "load_pipes", "pipe_dag", "read_current_rows", "rowkind"}
_OTHER_NAMES |= {"ni", "ni-id", "ni-ns"}


def list_operators() -> Iterator[type[SparkJobOperator]]:
    """Yield the operators of the package."""
    entries = get_provider_info()["operators"]
    modules = [importlib.import_module(name) for entry in entries for name in entry["python-modules"]]
    for value in [value for module in modules for value in vars(module).values()]:
        if inspect.isclass(value) and issubclass(value, SparkJobOperator):
            yield value


@pytest.fixture(scope="module")
def valid_names() -> set[str]:
    """Return the names of all operators and of their arguments."""
    operators = set(list_operators())
    arguments = {name for operator in operators for name in inspect.signature(operator).parameters}
    shared = set(inspect.signature(SparkJobOperator).parameters)
    return {operator.__name__ for operator in operators} | arguments | shared | _OTHER_NAMES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_options_of_other_systems_lead_to_options_that_exist(page: Path, valid_names: Any) -> None:
    """Each name in the second column is an operator or an argument of one."""
    cells = [row[1] for row in read_rows(page.read_text(encoding="utf-8"))]
    codes = [code for cell in cells for code in re.findall(r"`([^`]+)`", cell)]

    assert len(codes) > 8
    assert _NO_COUNTERPART in cells
    assert [code for code in codes if re.split(r"[=. ]", code)[0] not in valid_names] == []
