"""Tests of writing the inputs of the demo and reading its results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from demo import inputs
from demo.tables import entity_lines, read_rows, write_rows

ROWS = [{"_id": "b", "x": 1}, {"_id": "a", "y": "text"}]


def test_a_row_lacks_what_it_does_not_say(tmp_path: Path) -> None:
    """Properties that only some rows have are NULL in the others."""
    write_rows(tmp_path / "t", ROWS)

    assert sorted(map(repr, read_rows(tmp_path / "t"))) == [
        "{'_id': 'a', 'x': None, 'y': 'text'}",
        "{'_id': 'b', 'x': 1, 'y': None}",
    ]


@pytest.mark.parametrize("again", [ROWS, ROWS[::-1]])
def test_the_same_content_makes_no_new_version(tmp_path: Path, again: Any) -> None:
    """Writing the same content in another order creates no new version."""
    assert write_rows(tmp_path / "t", ROWS)

    assert not write_rows(tmp_path / "t", again)
    assert DeltaTable(str(tmp_path / "t")).version() == 0


@pytest.mark.parametrize(
    "changed", [ROWS[:1], [{"_id": "a", "x": 2}], [{"_id": "a", "z": 1.5}], [*ROWS, ROWS[0]]]
)
def test_other_content_replaces_what_was_there(tmp_path: Path, changed: Any) -> None:
    """Other rows, values or columns replace the content of the table."""
    write_rows(tmp_path / "t", ROWS)

    assert write_rows(tmp_path / "t", changed)
    assert DeltaTable(str(tmp_path / "t")).version() == 1
    assert len(read_rows(tmp_path / "t")) == len(changed)


def test_entities_are_written_by_the_names_of_their_properties() -> None:
    """Entities have the names of their properties as columns.

    The order is that of the worked example, and text is unchanged.
    """
    assert entity_lines([{"b": "ä", "_id": "1", "$ids": ["1"]}]) == ['{"$ids": ["1"], "_id": "1", "b": "ä"}']


@pytest.mark.parametrize(
    ("table", "id_column"), [("airports_world", "icao"), ("airports_nyc", "faa"), ("airports_us", "iata")]
)
def test_airports_have_ids_and_no_empty_text(table: Any, id_column: Any) -> None:
    """Airports have the code of their own list as ID, and missing text is NULL."""
    rows = inputs.TABLES[table]()

    assert len({row["_id"] for row in rows}) == len(rows)
    assert all(row["_id"] == row[id_column] for row in rows)
    assert {"", "nan"}.isdisjoint(str(value) for row in rows for value in row.values())
