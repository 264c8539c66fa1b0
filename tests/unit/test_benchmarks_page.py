"""Test that a benchmark writes its figures into its table on the page, and only there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.page import PAGE, update_page

TEXT = "# Benchmarks\n\n<!-- measured: joiner -->\n<!-- end -->\n\nText.\n"


@pytest.fixture
def page(tmp_path: Path) -> Path:
    file = tmp_path / "page.md"
    file.write_text(TEXT, encoding="utf-8")
    return file


def _read_rows(page: Path) -> list[list[str]]:
    """Return the cells of each row, without the date, which is that of today."""
    lines = page.read_text(encoding="utf-8").splitlines()
    rows = [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in lines if "|" in line]
    return [[row[0], *row[2:]] for row in rows[2:]]


def test_a_measurement_replaces_its_row_and_leaves_the_others(page: Path) -> None:
    """The last figures of a measurement count; text around the table stays."""
    update_page("joiner", "full", {"operator": 3.0, "DuckDB": 1.0}, {"operator / DuckDB": 3.0}, page=page)
    update_page("joiner", "inner", {"operator": 2.0}, {}, page=page)
    update_page("joiner", "full", {"operator": 2.348, "DuckDB": 1.0}, {"operator / DuckDB": 2.348}, page=page)

    assert _read_rows(page) == [
        ["full", "operator: 2.35 s<br>DuckDB: 1 s", "operator / DuckDB: 2.35"],
        ["inner", "operator: 2 s", ""],
    ]
    assert page.read_text(encoding="utf-8").endswith("<!-- end -->\n\nText.\n")


def test_a_benchmark_without_a_table_is_an_error(page: Path) -> None:
    with pytest.raises(ValueError, match="no line '<!-- measured: other -->'"):
        update_page("other", "full", {}, {}, page=page)


def test_every_benchmark_has_its_table() -> None:
    """The page has one table for each benchmark that measures times."""
    text = PAGE.read_text(encoding="utf-8")
    names = {
        file.stem
        for file in PAGE.parents[1].glob("benchmarks/*.py")
        if re.search(r"(update_page|write_results)\(", file.read_text(encoding="utf-8"))
    } - {"page", "measure"}

    assert len(names) == 9
    assert {name for name in names if f"<!-- measured: {name} -->" not in text} == set()
