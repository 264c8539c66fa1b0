"""Render the tables of types: what a value of each type becomes in each format, column and use."""

from __future__ import annotations

from render_reference import escape_cell

from tests.values.outcomes import EXACT, REFUSED, Outcomes, list_outcomes

_MARKS = {EXACT: "✓"}


def render_types() -> str:
    """Return a section for each table of outcomes; texts of refusals are below the table, by number."""
    return "\n".join(_render_section(outcomes) for outcomes in list_outcomes())


def _render_section(outcomes: Outcomes) -> str:
    refusals: dict[str, int] = {}
    head = ["type", *outcomes.uses]
    lines = [f"## {outcomes.heading}", "", outcomes.text, ""]
    lines += [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for row, cells in outcomes.rows.items():
        texts = [_render_cell(cells[use], refusals) for use in outcomes.uses]
        lines.append(f"| `{_name_row(row)}` | {' | '.join(texts)} |")
    notes = [f"{number}. {escape_cell(text)}" for text, number in refusals.items()]
    return "\n".join([*lines, "", *(["Refused with:", "", *notes, ""] if notes else [])])


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
    """
    kind, *inner = row.split("_")
    if kind in {"array", "struct", "map"}:
        return f"{kind}<{_name_parts(inner)}>"
    return f"{kind}({','.join(inner)})" if inner and inner[-1].isdigit() else row


def _name_parts(parts: list[str]) -> str:
    if not parts:
        return "…"
    if (
        parts[0] in {"array", "struct", "map"}
        or parts[0] == "decimal"
        or len(parts) == 1
        or parts[1] == "ntz"
    ):
        return _name_row("_".join(parts))
    return f"{parts[0]}, {_name_parts(parts[1:])}"
