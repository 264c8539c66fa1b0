"""Render the tables of types: what a value of each type becomes in each format, column and use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from render_reference import escape_cell

from tests.values.cells import list_tested
from tests.values.outcomes import EXACT, REFUSED, Outcomes, list_outcomes

_MARKS = {EXACT: "✓"}
_NESTED = {"array", "struct", "map"}


def render_types() -> str:
    """Return the number of cells that tests check, and a section for each table of outcomes.

    Texts of refusals are below the table, by number.
    """
    tables = list_outcomes()
    counts = [_count_cells(outcomes) for outcomes in tables]
    totals = [f"{sum(numbers):,}" for numbers in zip(*counts, strict=True)]
    lines = [
        f"Tests check {totals[0]} cells, each a type in a use, of which {totals[1]} are refused:",
        "",
        "| table | cells | refused |",
        "| --- | --- | --- |",
        *(
            f"| {outcomes.heading} | {tested:,} | {refused:,} |"
            for outcomes, (tested, refused) in zip(tables, counts, strict=True)
        ),
        "",
    ]
    return "\n".join([*lines, *map(_render_section, tables)])


def _count_cells(outcomes: Outcomes) -> tuple[int, int]:
    """Return the numbers of cells that tests check, and of those among them that are refused."""
    cells = list_tested()[outcomes.heading]
    return len(cells), sum(outcomes.find_outcome(*cell).startswith(REFUSED) for cell in cells)


def _render_section(outcomes: Outcomes) -> str:
    """Return a section; uses named as ``<format> of <program>`` have a table for each format."""
    refusals: dict[str, int] = {}
    lines = [f"## {outcomes.heading}", "", outcomes.text, ""]
    groups = [
        (name, list(uses)) for name, uses in groupby(outcomes.uses, lambda use: use.rpartition(" of ")[0])
    ]
    for name, uses in groups:
        if name:
            lines += [f"### {name} files of", ""]
        lines += [*_render_table(outcomes, uses, refusals), ""]
    notes = [f"{number}. {escape_cell(text)}" for text, number in refusals.items()]
    if notes and len(groups) > 1:
        lines += ["### Refusals", ""]
    return "\n".join([*lines, *(["Refused with:", "", *notes, ""] if notes else [])])


def _render_table(outcomes: Outcomes, uses: Sequence[str], refusals: dict[str, int]) -> Iterator[str]:
    """Yield the lines of a table, without the rows that say the same as the row of a shorter name."""
    yield f"| type | {' | '.join(use.rpartition(' of ')[2] for use in uses)} |"
    yield f"|{' --- |' * (len(uses) + 1)}"
    for row, cells in outcomes.rows.items():
        shorter = outcomes.find_shorter(row)
        if all(not cells[use] or (shorter and outcomes.rows[shorter][use] == cells[use]) for use in uses):
            continue
        texts = [_render_cell(EXACT if cells[use] == f"as {row}" else cells[use], refusals) for use in uses]
        yield f"| `{_name_row(row)}` | {' | '.join(texts)} |"


def _render_cell(cell: str, refusals: dict[str, int]) -> str:
    if not cell.startswith(REFUSED):
        return _MARKS.get(cell, escape_cell(cell))
    number = refusals.setdefault(cell.removeprefix(REFUSED), len(refusals) + 1)
    return f"refused ({number})"


def _name_row(row: str) -> str:
    """Return the type of a row as people write it.

    >>> (
    ...     _name_row("decimal_38_18"),
    ...     _name_row("array_struct_double"),
    ...     _name_row("map_int_string"),
    ...     _name_row("array"),
    ... )
    ('decimal(38,18)', 'array<struct<double>>', 'map<int, string>', 'array<…>')
    >>> _name_row("map_string")
    'map<string, …>'
    """
    kind, *inner = row.split("_")
    if kind == "map" and len(inner) == 1:
        return f"map<{inner[0]}, …>"
    if kind in _NESTED:
        return f"{kind}<{_name_parts(inner)}>"
    return f"{kind}({','.join(inner)})" if inner and inner[-1].isdigit() else row


def _name_parts(parts: list[str]) -> str:
    if not parts:
        return "…"
    if parts[0] in _NESTED or parts[0] == "decimal" or len(parts) == 1 or parts[1] == "ntz":
        return _name_row("_".join(parts))
    return f"{parts[0]}, {_name_parts(parts[1:])}"
