"""Tests of reading the rows of a key at the versions of a table, with tables that delta-rs writes."""

from __future__ import annotations

import json
from datetime import date
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import ConfigError, DataError
from airflow_merge_provider.core.population import WRITER
from airflow_merge_provider.core.source_offset import SourceOffset
from airflow_merge_provider.core.value_text import Float32, format_value
from airflow_merge_provider.explain.merge_load import explain_row
from airflow_merge_provider.explain.model.key import convert_key
from airflow_merge_provider.explain.reading import (
    list_types,
    open_input,
    query_keys,
    query_rows,
    read_input_rows,
    read_states,
    render_key,
)
from tests.key_values import VALUES, convert_values, is_same_key, write_key


class Table:
    """A table whose commits have the metadata of runs."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "t")
        self.dataset = Dataset("t", path=self.path)
        self.runs = 0
        self.state: dict[str, Any] = {}

    def open_version(self, version: int | None = None) -> DeltaTable:
        return DeltaTable(self.path, version=version)

    def write_rows(self, **columns: Any) -> None:
        self.runs += 1
        state = {
            "number": self.runs,
            "capability": "merge_load",
            "token": {"run_id": f"r{self.runs}"},
        } | self.state
        properties = CommitProperties(custom_metadata={"userMetadata": json.dumps(state)})
        mode: dict[str, Any] = {"mode": "overwrite", "schema_mode": "overwrite"}
        write_deltalake(self.path, pa.table(columns), commit_properties=properties, **mode)

    def query_rows(self, **key: str | None) -> list[Any]:
        """Return the rows with a key, whose values are written as texts."""
        table = self.open_version()
        return query_keys(self.dataset, table, [convert_key(key, list_types(table))])

    def read_values(self, version: int | None = None) -> tuple[list[Any], str]:
        """Return version, run and values of the key 1 after each commit, and what is missing."""
        states = read_states(self.dataset, self.open_version(version), [{"id": 1}])
        values = [
            (state.commit.version, state.commit.token.get("run_id"), [row["v"] for row in state.rows])
            for state in states.states
        ]
        return values, states.missing


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Write three versions by runs; the second has another value of the key."""
    table = Table(tmp_path)
    for value in (1, 2, 3):
        table.write_rows(id=[1, 2], v=[value, 0])
    return table


def test_every_version_is_read_with_its_run(table: Table) -> None:
    """Each commit has its own run, also if an older version is explained; another writer has none."""
    table.open_version().delete("id = 1")

    assert table.read_values()[0] == [(0, "r1", [1]), (1, "r2", [2]), (2, "r3", [3]), (3, None, [])]
    assert table.read_values(version=1) == ([(0, "r1", [1]), (1, "r2", [2])], "")


def test_restored_and_maintained_tables_are_followed(table: Table) -> None:
    """Commits that a RESTORE undid do not count, nor does maintenance."""
    table.open_version().restore(1)
    table.open_version().optimize.compact()

    assert table.read_values() == ([(0, "r1", [1]), (1, "r2", [2])], "")


def test_deleted_files_end_the_history(table: Table) -> None:
    """If VACUUM has deleted the files of older versions, newer ones are read, and the end is stated."""
    table.open_version().optimize.z_order(["id"])
    table.open_version().vacuum(0, dry_run=False, enforce_retention_duration=False)

    assert table.read_values() == (
        [(2, "r3", [3])],
        "version 1 can no longer be read: files of it were deleted",
    )


def test_a_column_that_was_added_later_has_no_value_before(table: Table) -> None:
    """Versions without the key column have no row of the key."""
    table.write_rows(id=[1], v=[4], region=["eu"])
    states = read_states(table.dataset, table.open_version(), [{"id": 1, "region": "eu"}])

    assert [len(state.rows) for state in states.states] == [0, 0, 0, 1]


def test_a_column_that_had_another_type_before_is_read(table: Table) -> None:
    """Older versions have the rows with an equal value, or none if their type has no such value."""
    table.write_rows(id=pa.array([Decimal("1.00"), Decimal("1.50")]), v=[4, 5])

    counts = []
    for text in ("1.00", "1.50"):
        key = convert_key({"id": text}, list_types(table.open_version()))
        states = read_states(table.dataset, table.open_version(), [key])
        counts.append([len(state.rows) for state in states.states])
    assert counts == [[1, 1, 1, 1], [0, 0, 0, 1]]


def test_a_key_of_too_many_rows_is_refused(table: Table) -> None:
    """Only a part of the rows of a key would be compared, so a key with too many rows is an error."""
    table.write_rows(id=[1] * 1000, v=list(range(1000)))

    with pytest.raises(
        DataError, match=r"key: 1000 rows or more of .* have this key in version 3 \(name more"
    ):
        table.read_values()


def test_values_of_every_type_are_found(tmp_path: Path) -> None:
    """A key of each type selects its row, and names and values are quoted."""
    values: dict[str, tuple[pa.Array, str | None]] = {
        "long": (pa.array([7]), "7"),
        "float": (pa.array([1.1], pa.float32()), "1.1"),
        "double": (pa.array([float("nan")]), "NaN"),
        "decimal": (pa.array(["1.50"]).cast(pa.decimal128(38, 2)), "1.5"),
        "flag": (pa.array([False]), "false"),
        "date": (pa.array(["2024-01-31"]).cast(pa.date32()), "2024-01-31"),
        "at": (pa.array([253402300799999999], pa.timestamp("us", "UTC")), "9999-12-31T23:59:59.999999Z"),
        "local": (pa.array([1], pa.timestamp("us")), "1970-01-01T00:00:00.000001"),
        "bytes": (pa.array([b"'"]), "0x27"),
        'it\'s "x"': (pa.array(["it's"]), "it's"),
        "null": (pa.array([None], pa.string()), None),
    }
    table = Table(tmp_path)
    table.write_rows(**{name: array for name, (array, _) in values.items()})

    for name, (_, text) in values.items():
        assert len(table.query_rows(**{name: text})) == 1, name
    assert table.query_rows(long="8") == []


def test_an_input_is_the_table_that_the_run_read(table: Table, tmp_path: Path) -> None:
    """An input is read at its version, by names in any case; another table at its location is not read."""
    table_id = str(table.open_version().metadata().id)
    offset = SourceOffset(table.path, 1, table_id)

    assert read_input_rows(offset, {"ID": 1}) == ({"id": 1}, [{"id": 1, "v": 2}])
    assert len(read_input_rows(offset, {"id": Decimal("1.00")})[1]) == 1
    assert read_input_rows(offset, {"id": 1.5})[1] == []
    with pytest.raises(ConfigError, match=r"has no column 'idd' at version 1 \(did you mean 'id'"):
        read_input_rows(offset, {"idd": 1})
    with pytest.raises(DataError, match="is another table than the one that the run read"):
        open_input(SourceOffset(table.path, 1, "other"))
    with pytest.raises(DataError, match="cannot be read at version 9"):
        open_input(SourceOffset(table.path, 9, table_id))
    with pytest.raises(DataError, match="is not a Delta table at a location"):
        open_input(SourceOffset(str(tmp_path / "files"), None))


def test_the_source_rows_of_a_load_have_equal_keys_of_other_types(tmp_path: Path) -> None:
    """A row whose key the load has widened is explained by its source row, however the key is written."""
    source = pa.table(
        {"id": pa.array([1, 2], pa.int32()), "day": pa.array([date(2024, 5, 1)] * 2), "v": ["a", "b"]}
    )
    write_deltalake(str(tmp_path / "s"), source)
    table_id = str(DeltaTable(str(tmp_path / "s")).metadata().id)
    target = Table(tmp_path)
    target.state = {
        "config": {"primary_key": ["id", "day"]},
        "sources": {str(tmp_path / "s"): 0},
        "tables": {str(tmp_path / "s"): table_id},
    }
    target.write_rows(
        id=pa.array(["1.00", "2.00"]).cast(pa.decimal128(12, 2)),
        day=source["day"].cast(pa.timestamp("us", "UTC")),
        v=source["v"],
    )
    target.open_version().alter.set_table_properties({WRITER: "merge_load"}, raise_if_not_exists=False)

    for id_, day in (
        ("1.00", "2024-05-01T00:00:00Z"),
        ("1", "2024-05-01"),
        ("1.0", "2024-05-01T02:00:00+02:00"),
    ):
        explanation = explain_row("t", json.dumps({"id": id_, "day": day}), warehouse=str(tmp_path))
        assert explanation.source.missing == ""
        assert [(row.values["v"], row.effect) for row in explanation.source.rows] == [("a", "written")]


def test_negative_zero_is_found_by_zero(tmp_path: Path) -> None:
    """-0.0 equals 0.0, in either form of the key."""
    table = Table(tmp_path)
    table.write_rows(id=pa.array([-0.0, 0.0, 5e-324]))

    all_rows = [table.query_rows(id=text) for text in ("0", "-0.0")]

    assert [[str(row["id"]) for row in rows] for rows in all_rows] == [["-0.0", "0.0"]] * 2


def test_long_decimals_are_found_whatever_their_statistics(tmp_path: Path) -> None:
    """delta-rs writes statistics of decimals as doubles, which do not hold their last digits."""
    table = Table(tmp_path)
    values = [Decimal("9" * 38), Decimal("9" * 37 + "8"), Decimal("-" + "9" * 38), Decimal(0)]
    prices = [value.scaleb(-18, Context(prec=38)) for value in values]
    kinds = pa.decimal128(38, 0), pa.decimal128(38, 18)
    table.write_rows(id=pa.array(values, kinds[0]), price=pa.array(prices, kinds[1]))

    keys = [{"id": str(value), "price": f"{price:f}"} for value, price in zip(values, prices, strict=True)]
    rows = [table.query_rows(**key) for key in keys]

    assert [[row["id"] for row in one] for one in rows] == [[value] for value in values]


def test_a_key_finds_the_equal_values_of_every_type(tmp_path: Path) -> None:
    """A key of one type, as people write it, selects exactly the equal values in columns of other types.

    A load writes a date as the beginning of its day, so both are one key there.
    """
    columns = {
        kind: [*convert_values(kind), *[None] * 9][:9]
        for kind in VALUES
        if "<" not in kind and not kind.startswith("char")
    }
    table = Table(tmp_path)
    table.write_rows(
        n=list(range(9)), **{kind: pa.array(values, VALUES[kind][0]) for kind, values in columns.items()}
    )
    stored = table.open_version()
    types = {name: kind for name, kind in list_types(stored).items() if name != "n"}
    selected, expected = {}, {}
    for kind, values in columns.items():
        for value in (value for value in values if value is not None):
            text = write_key(value) if kind != "float" else format_value(Float32(np.float32(value)))
            key = convert_key({kind: text}, types)[kind]
            conditions = ", ".join(f'({render_key({name: key}, types)}) AS "{name}"' for name in types)
            rows = list(query_rows(table.dataset, stored, f"SELECT n, {conditions} FROM target"))
            for name in types:
                selected[kind, text, name] = [row["n"] for row in rows if row[name]]
                expected[kind, text, name] = [
                    row["n"]
                    for row in rows
                    if columns[name][row["n"]] is not None
                    and is_same_key((value, kind), (columns[name][row["n"]], name))
                ]

    assert {at: found_rows for at, found_rows in selected.items() if found_rows != expected[at]} == {}
