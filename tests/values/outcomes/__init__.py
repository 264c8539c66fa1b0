"""What each type becomes in each use: the tables that tests compare with, and docs/types.md is made of.

A file has a heading and a sentence after ``#``, then CSV: a row for a type, a column for a use. A row holds
for every kind whose name starts with it, unless a longer name has a row. A cell is ``exact``, ``refused: ``
with a part of the error, or else what the value is converted to, which a test has to know.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

EXACT, REFUSED = "exact", "refused: "
FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Outcomes:
    """A table of outcomes: by row (start of a kind's name, or the whole) and use."""

    heading: str
    text: str
    uses: tuple[str, ...]
    rows: dict[str, dict[str, str]]

    def find_outcome(self, kind: str, use: str) -> str:
        """Return the cell of the longest row that the name of a kind starts with, in whole words."""
        return self.rows[kind if kind in self.rows else self.find_shorter(kind) or kind][use]

    def find_shorter(self, kind: str) -> str | None:
        """Return the longest row that the name of a kind starts with, in whole words, and that is shorter."""
        parts = kind.split("_")
        starts = ("_".join(parts[:count]) for count in range(len(parts) - 1, 0, -1))
        return next((start for start in starts if start in self.rows), None)


def read_outcomes(name: str) -> Outcomes:
    """Return the table of a file of this folder, by its name without suffix."""
    heading, text, *lines = (FOLDER / f"{name}.csv").read_text(encoding="utf-8").splitlines()
    reader = csv.reader(lines)
    _, *uses = next(reader)
    rows = {name: dict(zip(uses, cells, strict=True)) for name, *cells in reader}
    return Outcomes(heading.removeprefix("# "), text.removeprefix("# "), tuple(uses), rows)


def list_outcomes() -> list[Outcomes]:
    """Return all tables, by the names of their files."""
    return [read_outcomes(path.stem) for path in sorted(FOLDER.glob("*.csv"))]
