"""Test columns that a source gains or loses between loads."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_merge_provider.core.errors import DataError
from tests.jobs.merge_load.conftest import MakeLoads

KEY = {"primary_key": "id"}


@pytest.mark.long
def test_new_columns_come_with_any_kind_of_write(loads: MakeLoads) -> None:
    """Appended, updated and inserted rows have the new columns; older rows have NULL.

    Columns that the load does not send are NULL too.
    """
    table = loads("upsert", **KEY)
    table.load_rows([{"id": 1, "v": "a"}])
    table.load_rows([{"id": 2, "v": "b", "n": 5}])
    table.load_rows([{"id": 1, "o": "x"}, {"id": 3, "o": "y"}], schema_evolution="add, allow_missing")
    table.load_rows([{"id": 3, "o": "z", "p": 1}], schema_evolution=["ignore", "allow_missing"])

    assert table.read_rows() == [{"id": 1, "o": "x"}, {"id": 2, "v": "b", "n": 5}, {"id": 3, "o": "z"}]


@pytest.mark.parametrize(
    "settings",
    [
        {"merge_key": "g"},
        pytest.param({"merge_key": "g", **KEY}, marks=pytest.mark.long),
        pytest.param({"destination_scope": "g = 'x'"}, marks=pytest.mark.long),
    ],
    ids=["merge key", "both keys", "scope"],
)
def test_replaced_groups_get_new_columns(loads: MakeLoads, settings: dict[str, Any]) -> None:
    """Replaced groups get new columns; stored rows are compared by the columns that they have."""
    table = loads("delete-insert", **settings)
    table.load_rows([{"id": 1, "g": "x", "v": 1}, {"id": 2, "g": "x", "v": 2}])
    report = table.load_rows([{"id": 3, "g": "x", "v": 3, "n": 5}, {"id": 1, "g": "x", "v": 1}])

    assert table.read_rows() == [{"id": 1, "g": "x", "v": 1}, {"id": 3, "g": "x", "v": 3, "n": 5}]
    assert (report["rows"]["inserted"], report["rows"]["deleted"]) == (1, 1)


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("upsert", {"primary_key": "id"}),
        ("delete-insert", {"primary_key": "id"}),
        ("delete-insert", {}),
        ("scd2", {"natural_key": "id", "boundary_timestamp": "{at}"}),
        ("scd2", {"boundary_timestamp": "{at}"}),
    ],
)
def test_a_column_that_the_source_has_no_more_is_an_error(
    memory_loads: MakeLoads, strategy: str, settings: dict[str, Any]
) -> None:
    """A missing column is an error and nothing is written; NULL is accepted if the option is set.

    The error lists all missing columns with similar names in the source.
    """
    days = iter(("2024-01-01", "2024-01-02", "2024-01-03"))

    def load_rows(rows: Any, **more: Any) -> Any:
        at = {name: next(days) for name in settings if name == "boundary_timestamp"}
        return table.load_rows(rows, **{**at, **more})

    table = memory_loads(strategy, **{k: v for k, v in settings.items() if k != "boundary_timestamp"})
    load_rows([{"id": 1, "amount": 5, "note": "x"}])

    with pytest.raises(DataError) as refused:
        load_rows([{"id": 1, "Amont": 6}])

    assert "the source no longer has column 'amount'" in str(refused.value)
    assert "did you mean 'Amont'?" in str(refused.value)
    assert "the source no longer has column 'note'" in str(refused.value)
    assert table.read_version() == 0
    load_rows([{"id": 2, "amount": 6}], schema_evolution=["add", "allow_missing"])
    assert {"id": 2, "amount": 6} in table.read_rows("id", "amount", "note")


def test_a_list_that_the_source_has_no_more_is_an_error(loads: MakeLoads) -> None:
    """A missing list column is an error, because its elements would be deleted with the rows."""
    table = loads("upsert", primary_key="id", nested="tables")
    table.load_rows([{"id": 1, "v": 1, "items": [{"n": 1, "inner": [1]}]}])

    with pytest.raises(DataError, match="the source no longer has column 'items'"):
        table.load_rows([{"id": 1, "v": 2}])

    table.load_rows([{"id": 1, "v": 2}], schema_evolution="allow_missing")
    assert table.rows_of("__items") == []
