"""Test that the tables of outcomes, of which a page shows the number of cells, are what tests check."""

from __future__ import annotations

from tests.values.cells import SAMPLED, list_cells, list_tested
from tests.values.outcomes import list_outcomes


def test_every_cell_of_a_table_is_checked() -> None:
    """A test has each cell of each type as its parameters, and no test has another one."""
    tables = {outcomes.heading: outcomes for outcomes in list_outcomes()}
    untested = {}
    for heading, outcomes in tables.items():
        cells = {cell for cell in list_cells(outcomes) if cell[1] not in SAMPLED.get(heading, ())}
        untested[heading] = cells - list_tested()[heading]
        assert list_tested()[heading] <= list_cells(outcomes), heading

    assert {heading: cells for heading, cells in untested.items() if cells} == {}
    assert list_tested().keys() == tables.keys()
