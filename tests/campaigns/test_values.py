"""A short campaign of random tables; ``make campaign`` runs a long one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.campaigns.values import ValueTally, try_tables
from tests.campaigns.values_files import FORMATS
from tests.campaigns.values_oracles import CASES
from tests.conformance.lean import lean_session
from tests.long import all_long_but
from tests.values.random_tables import NUMBER, RandomTables, find_differences

_TABLES = 12


@pytest.fixture(scope="module")
def tables() -> RandomTables:
    """Return tables whose values are drawn once."""
    return RandomTables(5, _TABLES)


@pytest.mark.spark
@pytest.mark.parametrize("name", all_long_but([*CASES, *FORMATS], "upsert"))
def test_random_tables_come_back_equal(
    name: str, tables: RandomTables, spark: SparkSession, tmp_path: Path
) -> None:
    """Rows equal those of the oracle after each run and after an undo, whichever reader reads them."""
    tally = ValueTally()

    try_tables(lean_session(spark), tables, tmp_path, tally, [name])

    assert tally.failed == []
    assert tally.tables[name] == _TABLES
    assert tally.rows.total() > 4 * _TABLES


def test_a_summary_has_the_seeds_and_the_number_of_tables() -> None:
    """The last lines of a campaign are its record."""
    tally = ValueTally(Counter(upsert=1500, scd2=500), Counter(pyarrow=9), failed=["seed 7, upsert, …"])
    tally.seconds["upsert"] = 61.5

    assert tally.describe("seeds 5 to 8") == [
        "values, seeds 5 to 8: 2,000 tables compared, 1 difference",
        "  tables: scd2 500, upsert 1500",
        "  rows by reader: pyarrow 9",
        "  seconds: upsert 62",
    ]


def test_differences_are_named(tables: RandomTables) -> None:
    """A difference names table, key, column and type with both values; equal values do not differ."""
    row, name = next((row, name) for row in tables.rows for name in tables.columns if row[name] is not None)
    remaining = [other for other in tables.rows if other is not row]
    names = tables.schema.names

    assert list(find_differences(tables, names, tables.rows, tables.shuffle(tables.rows))) == []
    (changed,) = find_differences(tables, names, tables.rows, [*remaining, row | {name: None}])
    assert tables.tables[row[NUMBER]].describe(tables.kinds) in changed
    assert f"{name} {tables.kinds[name].spark}: expected " in changed
    assert changed.endswith("is None")
    (missing,) = find_differences(tables, names, tables.rows, remaining)
    assert "the row is missing" in missing
    (surplus,) = find_differences(tables, names, remaining, tables.rows)
    assert "the row is not expected" in surplus
