"""Test that lists which become tables keep the values of every type, and that changes of them are seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.conformance.lean import lean_session
from tests.jobs.merge_load.loads import Loads
from tests.values.catalog import NESTED, SIMPLE, Kind
from tests.values.neighbours import ID, READERS, Neighbours, flip_table, read_table, write_plain
from tests.values.steps import Steps

pytestmark = [pytest.mark.spark, pytest.mark.long]

# A list inside an element would become a table of its own.
KINDS = {kind.name: kind for kind in (*SIMPLE, *NESTED) if not kind.name.startswith("array")}
ROWS = Neighbours(tuple(KINDS.values()))


def put_in_lists(rows: pa.Table) -> pa.Table:
    """Return rows with their columns, other than the ID, as the fields of the only element of a list."""
    columns = [rows[name].combine_chunks() for name in KINDS]
    fields = [pa.field(name, column.type) for name, column in zip(KINDS, columns, strict=True)]
    elements = pa.StructArray.from_arrays(columns, fields=fields)
    lists = pa.ListArray.from_arrays(pa.array(range(rows.num_rows + 1), pa.int32()), elements)
    return pa.table({ID: rows[ID], "items": lists})


class NestedSteps(Steps):
    """The runs of an upsert whose lists become a table."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        super().__init__()
        self._loads = Loads(spark, folder, "upsert", primary_key=ID, nested="tables")

    def read_elements(self, reader: str = "delta-rs") -> dict[str, dict[str, Any]]:
        """Return the elements by the IDs of their rows."""
        rows = read_table(self._loads.target)
        ids = dict(zip(rows["_row_id"], rows[ID], strict=True))
        elements = read_table(f"{self._loads.target}__items", reader, by="_root_id")
        return {
            ids[root]: {name: elements[name][position] for name in KINDS}
            for position, root in enumerate(elements["_root_id"])
        }

    def _first(self) -> dict[str, dict[str, dict[str, Any]]]:
        self._loads.load_rows(put_in_lists(ROWS.before))
        return {reader: self.read_elements(reader) for reader in READERS}

    def _second(self) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        self.find_result("first")
        report = self._loads.load_rows(put_in_lists(ROWS.after))
        return report, self.read_elements()

    def _equal(self) -> dict[str, Any]:
        self.find_result("second")
        return self._loads.load_rows(put_in_lists(flip_table(ROWS.after)))


@pytest.fixture(scope="module")
def steps(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> NestedSteps:
    """Return the runs over all types."""
    return NestedSteps(lean_session(request.getfixturevalue("spark")), tmp_path_factory.mktemp("nested"))


def check_elements(kind: Kind, elements: dict[str, dict[str, Any]], rows: pa.Table) -> None:
    expected = zip(rows[ID].to_pylist(), rows[kind.name].to_pylist(), strict=True)
    wrong = [
        id_ for id_, one in expected if write_plain(elements[id_][kind.name], kind) != write_plain(one, kind)
    ]
    assert (wrong, len(elements)) == ([], rows.num_rows)


@pytest.mark.parametrize("name", KINDS)
def test_a_type_in_a_list_of_its_own_table(steps: NestedSteps, name: str) -> None:
    """The elements have the values of the source, and a neighbouring value replaces the element."""
    for elements in steps.find_result("first").values():
        check_elements(KINDS[name], elements, ROWS.before)
    report, elements = steps.find_result("second")
    check_elements(KINDS[name], elements, ROWS.after)
    assert report["rows"]["updated"] == len(ROWS.ids)
    assert not steps.find_result("equal")["changed"]
