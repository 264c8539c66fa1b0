"""Test loads into tables that other programs have written."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.population import WRITER
from airflow_merge_provider.core.run_mode import ADOPTED
from tests.jobs.merge_load.conftest import MakeLoads
from tests.jobs.merge_load.loads import Loads
from tests.jobs.merge_load.test_undo_load import undo_load

ROWS = pa.table({"id": [1, 2], "v": ["a", "b"]})


def read_owner(loads: Loads) -> str | None:
    """Return the capability that the table names as its writer."""
    return DeltaTable(str(loads.target)).metadata().configuration.get(WRITER)


def test_a_table_of_another_program_is_taken_over(loads: MakeLoads) -> None:
    """Its rows stay; the next run needs no adopt, and continues from the first one."""
    table = loads("upsert", primary_key="id")
    write_deltalake(str(table.target), ROWS)
    table.write_source([{"id": 2, "v": "c"}, {"id": 3, "v": "d"}])

    with pytest.raises(DataError, match=r"was written by another writer, not by merge_load .*set adopt=True"):
        table.load_rows()
    dry_run = table.load_rows(adopt=True, until="transform")
    assert (dry_run["run_mode_reason"], read_owner(table), table.read_version()) == (ADOPTED, None, 0)

    report = table.load_rows(adopt=True)
    assert (report["rows"]["inserted"], report["rows"]["updated"]) == (1, 1)
    assert table.read_rows() == [{"id": 1, "v": "a"}, {"id": 2, "v": "c"}, {"id": 3, "v": "d"}]
    assert read_owner(table) == "merge_load"
    assert table.load_rows()["run_mode"] == table.load_rows(adopt=True)["run_mode"] == "noop"

    undo_load(table, None, only=False)
    assert table.read_rows() == [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]
    again = table.load_rows(adopt=True)
    assert (again["run_mode_reason"], again["warnings"]) == (ADOPTED, [])


def test_a_load_without_changes_adopts_too(loads: MakeLoads) -> None:
    """The commit of the run has no rows, so that the next run continues from it."""
    table = loads("delete-insert", primary_key="id")
    write_deltalake(str(table.target), ROWS)
    report = table.load_rows(ROWS, adopt=True)

    assert not report["changed"]
    assert (read_owner(table), table.load_rows()["run_mode"]) == ("merge_load", "noop")


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        ({"id": [1, 1, 2], "v": ["a", "b", "c"]}, {}, "with the key id, because it has 2 rows with id='1'"),
        ({"id": [None, 2], "v": ["a", "b"]}, {}, "with the key id, because it has 1 row with id=NULL"),
        ({"v": ["a"]}, {}, "the target has no column 'id', which is part of the key"),
        ({"id": ["1"], "v": ["a"]}, {}, "column 'id' has type bigint in the source and type string"),
        ({"id": [1], "v": ["a"]}, {"strategy": "scd2"}, "is not an SCD2 history"),
    ],
    ids=["duplicate", "null", "no key", "type", "history"],
)
def test_a_table_that_does_not_fit_is_not_adopted(
    loads: MakeLoads, rows: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    """Keys and types are checked before anything is written."""
    table = loads("upsert", primary_key="id")
    write_deltalake(str(table.target), pa.table(rows))
    if settings:
        table.settings = {"target": "t", "source": "s", "natural_key": "id", **settings}

    with pytest.raises(DataError, match=message):
        table.load_rows(ROWS, adopt=True)

    assert (read_owner(table), table.read_version()) == (None, 0)


def test_a_column_that_pads_texts_is_refused(loads: MakeLoads) -> None:
    """A CHAR column would store other texts than those of the source, and keys would not match."""
    table = loads("upsert", primary_key="id")
    table.spark.sql(f"CREATE TABLE delta.`{table.target}` (id CHAR(3), v STRING) USING delta").collect()

    with pytest.raises(DataError, match=r"column 'id' has type char\(3\), which pads its texts"):
        table.load_rows([{"id": "a", "v": "b"}], adopt=True)


@pytest.mark.parametrize(
    ("strategy", "column", "value", "message"),
    [
        (
            "upsert",
            "`a.b` VARCHAR(3)",
            "abcd",
            "value 'abcd' of column 'a.b' is longer than its type allows, 3 c",
        ),
        (
            "delete-insert",
            "v STRING NOT NULL",
            None,
            "a row has NULL in column 'v', which is NOT NULL (set a val",
        ),
    ],
)
def test_what_the_columns_of_a_table_refuse_is_named(
    loads: MakeLoads, strategy: str, column: str, value: str | None, message: str
) -> None:
    """The error has the table, the column and the remedy, and no row is written."""
    table = loads(strategy, primary_key="id", adopt=True)
    table.spark.sql(f"CREATE TABLE delta.`{table.target}` (id BIGINT, {column}) USING delta")
    name = "a.b" if "a.b" in column else "v"
    with pytest.raises(DataError) as caught:
        table.load_rows(pa.table({"id": [1], name: pa.array([value], pa.string())}))

    assert str(caught.value).startswith(f"{table.target}: {message}")
    assert table.read_rows() == []
