"""Test how rows of one load are dispatched to the tables that one of their columns names."""

from __future__ import annotations

from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.population import FLAG, Population
from tests.jobs.delta_log import list_commits
from tests.jobs.merge_load.conftest import MakeLoads

EVENTS = [{"id": 1, "type": "push"}, {"id": 2, "type": "fork"}, {"id": 3, "type": "push"}]


def test_each_type_has_a_table_with_commits_of_its_own(loads: MakeLoads) -> None:
    """Each type has a table with its own commits; other tables stay unchanged, a retry writes none again."""
    table = loads("upsert", primary_key="id", dispatch_by="type")
    first = table.load_rows(EVENTS)
    second = table.load_rows([{"id": 4, "type": "push"}], run_id="mine")
    again = table.load_rows(run_id="mine")

    assert [row["id"] for row in table.rows_of("/push")] == [1, 3, 4]
    assert [row["id"] for row in table.rows_of("/fork")] == [2]
    assert first["details"]["tables"] == {"fork": 0, "push": 0}
    assert (first["counts"]["tables"], first["rows"]["inserted"]) == (2, 3)
    assert second["details"]["tables"] == again["details"]["tables"] == {"push": 1}
    assert [len(list_commits(table.target / name)) for name in ("push", "fork")] == [2, 1]


def test_each_table_has_a_flag_of_its_own(loads: MakeLoads) -> None:
    """Tables that exist get it as new ones do, after the load or before it, and lose it with ``reset``."""
    table = loads("upsert", primary_key="id", dispatch_by="type", nested="tables")
    tables = ("push", "push__tags", "fork")

    def load_rows(mode: Any, rows: Any = None, **fields: Any) -> Any:
        table.population = Population(target="t", set_initial_offset=mode, datasets=("s",), **fields)
        report = table.load_rows(rows)
        properties = (DeltaTable(table.target / name).metadata().configuration for name in tables)
        return report["populated"], report["became_populated"], [FLAG in one for one in properties]

    events = [{**event, "tags": [event["type"]] * (event["id"] % 2)} for event in EVENTS]
    assert load_rows("if-source-populated", events) == (True, True, [True, True, True])
    DeltaTable(table.folder / "s").alter.set_table_properties({FLAG: "false"}, raise_if_not_exists=False)
    assert load_rows("if-source-populated", reset=True) == (False, False, [False, False, False])
    events.append({"id": 4, "type": "fork", "tags": None})
    assert load_rows("initially", events) == (True, True, [True, True, True])
    operations = [commit["operation"] for commit in DeltaTable(table.target / "fork").history(2)]
    assert operations[1] == "SET TBLPROPERTIES"


def test_values_that_are_no_names_stop_the_load(loads: MakeLoads) -> None:
    """A value that is not a valid table name stops the load, including rows with valid names."""
    table = loads("upsert", primary_key="id", dispatch_by="type")
    for wrong, message in [
        (None, "None"),
        ("../x", "'../x'"),
        ("-5", "'-5' .*use an ASCII letter, digit or _, followed by"),
        ("_delta_log", "'_delta_log' in column"),
        ("x" * 201, "x' in column 'type', which is not a valid table name"),
        ("fork__rejected", "'fork' and 'fork__rejected' in 'type': the one may be the name of a table"),
        ("Push", "differ only in case"),
    ]:
        with pytest.raises(DataError, match=message):
            table.load_rows([*EVENTS, {"id": 9, "type": wrong}])
    with pytest.raises(DataError, match="has no column 'kind'"):
        table.load_rows(EVENTS, dispatch_by="kind")

    assert not table.target.exists()
