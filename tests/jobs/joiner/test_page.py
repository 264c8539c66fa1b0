"""Run the worked examples of the joiner's page and compare their tables."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa

from tests.jobs.joiner.conftest import MakeLake
from tests.unit.test_docs import ROOT, read_section

PAGE = (ROOT / "docs/operators/joiner.md").read_text(encoding="utf-8")
TABLE = re.compile(r"((?:^\|[^\n]*\n)+)", re.MULTILINE)
INPUT = re.compile(r"^`(\w+)`\n\n" + TABLE.pattern, re.MULTILINE)
EXAMPLE = re.compile(r"```json\n(.*?)```\n\n" + TABLE.pattern, re.MULTILINE | re.DOTALL)


def parse_cells(table: str) -> list[list[str]]:
    """Return the column titles and the rows."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return [lines[0], *lines[2:]]


def parse_table(table: str) -> pa.Table:
    titles, *rows = parse_cells(table)
    values = [[int(cell) if cell.isdigit() else cell for cell in row] for row in rows]
    return pa.table(dict(zip(titles, map(list, zip(*values, strict=True)), strict=True)))


def test_the_worked_examples_give_the_tables_of_the_page(lake: MakeLake, tmp_path: Path) -> None:
    """The examples give the tables of the page, column by column and row by row.

    The second of the two consecutive joins reads what the first one wrote.
    """
    text = read_section(PAGE, "Worked examples")
    join = lake(required_inputs=None, selected_fields=None)
    for name, table in INPUT.findall(text):
        join.write_rows(name, parse_table(table))

    targets = []
    for arguments, table in EXAMPLE.findall(text):
        config = json.loads(arguments)
        join.run_job(**config)
        titles, *rows = parse_cells(table)
        written = join.spark.read.format("delta").load(str(tmp_path / config["target"]))
        assert written.columns == titles
        assert sorted([str(cell) for cell in row] for row in written.collect()) == rows
        targets.append(config["target"])

    assert targets == ["everything", "customers_purchases", "customers_purchases_transactions", "chosen"]
