"""Tests that generated files match the code."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_generated_files_are_up_to_date() -> None:
    """`make docs` changes no file."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs/generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    outdated = [path for path, content in module.generate_files() if path.read_text("utf-8") != content]

    assert outdated == [], "run make docs"


def test_every_kind_of_report_has_its_table() -> None:
    """Every capability has a table of its report in the documentation."""
    from airflow_merge_provider.capabilities import CAPABILITIES

    page = (ROOT / "docs/report.md").read_text(encoding="utf-8")

    assert [job for job in CAPABILITIES if f"<!-- generated: {job} -->" not in page] == []
