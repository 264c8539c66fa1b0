"""Write the figures of a benchmark into its table in ``docs/benchmarks.md``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
_HEAD = "| measured | date | seconds (median) | ratios |\n|---|---|---|---|\n"


def update_page(
    benchmark: str,
    measured: str,
    medians: Mapping[str, float],
    ratios: Mapping[str, float],
    *,
    page: Path = PAGE,
) -> None:
    """Replace the row of one measurement, or add it; the rows of other measurements stay.

    The table is between ``<!-- measured: BENCHMARK -->`` and ``<!-- end -->``.

    :param measured: what was measured, such as "1,000,000 entities"; it identifies the row.
    :param medians: seconds of each candidate.
    :param ratios: ratios of candidates, such as "operator / DuckDB".
    :raises ValueError: when the page has no table for the benchmark.
    """
    text = page.read_text(encoding="utf-8")
    start = f"<!-- measured: {benchmark} -->\n"
    block = re.search(re.escape(start) + r"(.*?)(?=<!-- end -->)", text, re.DOTALL)
    if block is None:
        raise ValueError(f"{page}: no line {start.strip()!r}")
    rows = {row.split(" | ")[0].removeprefix("| "): row for row in block[1].splitlines() if row[:2] == "| "}
    rows.pop("measured", None)
    date = datetime.now(tz=UTC).date().isoformat()
    cells = [measured, date, _format_figures(medians, " s"), _format_figures(ratios, "")]
    rows[measured] = f"| {' | '.join(cells)} |"
    table = _HEAD + "".join(f"{row}\n" for row in rows.values())
    page.write_text(text[: block.start(1)] + table + text[block.end(1) :], encoding="utf-8")


def _format_figures(figures: Mapping[str, float], unit: str) -> str:
    return "<br>".join(f"{name}: {figure:.3g}{unit}" for name, figure in figures.items())
