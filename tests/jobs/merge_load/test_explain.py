"""Test explanations of loaded rows and histories: the runs that wrote them, and the source rows."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from airflow_merge_provider.cli.main import main
from airflow_merge_provider.core.errors import ConfigError, DataError
from airflow_merge_provider.explain.merge_load import explain_row
from tests.explanations import check_examples
from tests.jobs.merge_load.conftest import MakeLoads


def build_order(id_: int, price: str, seq: int, *, is_deleted: bool = False) -> dict[str, Any]:
    return {"id": id_, "price": Decimal(price), "seq": seq, "is_deleted": is_deleted}


def test_an_upsert_is_explained(loads: MakeLoads, capsys: pytest.CaptureFixture[str]) -> None:
    """The page's example: the run that wrote a row last, the values it replaced, and the rows that it beat.

    A deleted key names the run that deleted it. A key that no table has is an error.
    """
    orders = loads(
        "upsert", target="orders", source="changes", primary_key=["id"], hard_delete="is_deleted",
        dedup_sort={"seq": "desc"},
    )  # fmt: skip
    batches = [
        [build_order(7, "10.00", 1), build_order(8, "3.00", 1)],
        [build_order(7, "12.50", 3), build_order(7, "11.00", 2)],
        [build_order(8, "3.00", 2, is_deleted=True)],
    ]
    for number, rows in enumerate(batches, start=1):
        orders.write_source(rows, "changes")
        orders.load_rows(run_id=f"manual__{number}")
    lake = {"warehouse": str(orders.folder)}

    check_examples("upsert.md", orders.folder, capsys)
    explanation = explain_row("orders", '{"ID": 8}', **lake).as_object()

    assert [change["kind"] for change in explanation["changes"]] == ["inserted", "deleted"]
    assert explanation["changes"][1]["commit"]["run_id"] == "manual__3"
    assert explanation["rows"] == []
    with pytest.raises(DataError, match=r"orders has no row with id = 99 in versions 0 to 2 \(the source"):
        explain_row("orders", "99", **lake)
    with pytest.raises(ConfigError, match="key: 'x' is not a valid value of column 'id' of type long"):
        explain_row("orders", "x", **lake)
    with pytest.raises(DataError, match="changes was written by another program, not by merge_load"):
        explain_row("changes", "7", **lake)


@pytest.mark.long
def test_a_replaced_group_is_explained(loads: MakeLoads, capsys: pytest.CaptureFixture[str]) -> None:
    """The page's example: the rows of a group that a delete-insert replaced, and a deleted group."""
    lines = loads(
        "delete-insert", target="order_lines", source="lines", merge_key=["order_id"],
        destination_scope="day = '2026-11-24'",
    )  # fmt: skip
    columns = ("order_id", "day", "item")
    batches = [
        [(7, "2026-11-24", "pen"), (7, "2026-11-24", "ink"), (8, "2026-11-24", "nib")],
        [(7, "2026-11-24", "pen"), (7, "2026-11-24", "\x1b[2Jcap")],
    ]
    for number, rows in enumerate(batches, start=1):
        lines.write_source([dict(zip(columns, row, strict=True)) for row in rows], "lines")
        lines.load_rows(run_id=f"manual__{number}")

    check_examples("delete_insert.md", lines.folder, capsys)


@pytest.mark.long
def test_a_history_is_explained(loads: MakeLoads, capsys: pytest.CaptureFixture[str]) -> None:
    """The page's example: each version with the loads that opened, closed and repaired it."""
    customers = loads(
        "scd2", target="customers_history", source="customers", natural_key=["id"], on_late="repair"
    )
    snapshots = [(1, "Oslo"), (20, "Bergen"), (10, "Hamar")]
    for number, (day, city) in enumerate(snapshots, start=1):
        customers.write_source([{"id": 7, "city": city}], "customers")
        at = datetime(2026, 11, day, tzinfo=UTC).isoformat()
        customers.load_rows(run_id=f"manual__{number}", boundary_timestamp=at)

    check_examples("scd2.md", customers.folder, capsys)
    with pytest.raises(DataError, match="customers_history has no row with id = 9"):
        explain_row("customers_history", "9", warehouse=str(customers.folder))


@pytest.mark.long
def test_a_history_without_key_is_explained(loads: MakeLoads, capsys: pytest.CaptureFixture[str]) -> None:
    """Without natural key the KEY names any columns; values of every type can be searched and printed."""
    versions = loads("scd2")
    row = {
        "id": 1,
        "day": datetime(2024, 1, 31, tzinfo=UTC).date(),
        "tags": [{"a": "x"}, {"a": None}],
        "price": Decimal("1.5"),
    }
    versions.load_rows([row])
    versions.load_rows([{**row, "price": Decimal("2.5")}])

    command = ["explain", "t", '{"id": 1, "day": "2024-01-31"}', "--warehouse", str(versions.folder)]
    code = main(command)

    assert code == 0
    assert 'tags = [{"a": "x"}, {"a": NULL}]' in capsys.readouterr().out
