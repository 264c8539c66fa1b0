"""Tests that generated files match the code."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def _generate_files() -> Any:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs/generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return list(module.generate_files())


@pytest.mark.parametrize(("path", "content"), _generate_files(), ids=lambda value: getattr(value, "name", ""))
def test_generated_files_are_up_to_date(path: Any, content: Any) -> None:
    """`make docs` changes no file."""
    assert path.read_text(encoding="utf-8") == content, "run make docs"


def test_every_kind_of_report_has_its_table() -> None:
    """Every capability has a table of its report in the documentation."""
    from airflow_merge_provider.core.capabilities import CAPABILITIES

    page = (ROOT / "docs/report.md").read_text(encoding="utf-8")

    assert [job for job in CAPABILITIES if f"<!-- generated: {job} -->" not in page] == []
