"""Test the page about exports: its code writes the values of a joined table in every format."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
from pyarrow import parquet

from tests.jobs.joiner.conftest import MakeLake
from tests.unit.test_docs import ROOT, list_blocks

PAGE = ROOT / "docs/guides/export_table.md"
AT = datetime(2024, 5, 1, 12, 30, 0, 123456)  # noqa: DTZ001 - a time without a time zone
CUSTOMERS = pa.table({
    "id": pa.array([1, 2, 3, 4], pa.int64()),
    "name": ['  a "b"\nc, ', "", None, "N\u00e9"],
    "big": pa.array([2**63 - 1, -(2**63), None, 0], pa.int64()),
    "amount": pa.array([Decimal("1.10"), Decimal("12345678901234567890.12"), None, Decimal("0.00")]),
    "at": pa.array([AT.replace(tzinfo=UTC)] * 3 + [None], pa.timestamp("us", "UTC")),
    "local": pa.array([AT, None, AT, AT], pa.timestamp("us")),
})  # fmt: skip
ROWS = sorted(CUSTOMERS.to_pylist(), key=lambda row: row["id"])


def test_the_exports_of_the_page_have_the_values_of_the_table(lake: MakeLake) -> None:
    """Each line writes the values of a target: parquet as they are, CSV and JSON as text."""
    join = lake(target="customer_sales", selected_fields=None, fields_to_drop="purchases.purchase")
    join.write_rows("customers", CUSTOMERS)
    join.write_rows("purchases", pa.table({"purchase": [1], "customer": [9]}))
    join.run_job(fields_to_drop="purchases.purchase, purchases.customer")
    (join.folder / "export").mkdir()

    names: dict[str, Any] = {"spark": join.spark}
    for block in list_blocks(PAGE):
        code = block.text.replace("12", "0").replace("/lake/", f"{join.folder}/")
        code = code.replace("/export/", f"{join.folder}/export/")
        exec(compile(code, PAGE.name, "exec"), names)  # noqa: S102 - our own page

    exports = {path.name: path for path in (join.folder / "export").iterdir()}
    for name in [name for name in exports if "parquet" in name]:
        table = parquet.read_table(exports.pop(name))
        assert (name, sorted(table.to_pylist(), key=lambda row: row["id"])) == (name, ROWS)
    rows = [json.loads(line) for text in _read_texts(exports.pop("spark_json")) for line in text.splitlines()]
    assert sorted(rows, key=lambda row: row["id"])[2] == {
        "id": 3, "name": None, "big": None, "amount": None,
        "at": "2024-05-01T12:30:00.123456Z", "local": "2024-05-01T12:30:00.123456",
    }  # fmt: skip
    assert sorted(exports) == ["duckdb.csv", "polars.csv", "spark_csv"]
    for name, path in exports.items():
        assert (name, _read_csv(path)) == (name, ROWS)


def _read_csv(path: Path) -> list[dict[str, Any]]:
    """Return the records of CSV files, with the types of the table and NULL for an empty field."""
    options = pa.csv.ConvertOptions(
        column_types=CUSTOMERS.schema, strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    parsing = pa.csv.ParseOptions(newlines_in_values=True)
    table = pa.concat_tables([
        pa.csv.read_csv(pa.py_buffer(text.encode()), parse_options=parsing, convert_options=options)
        for text in _read_texts(path)
    ])  # fmt: skip
    return sorted(table.to_pylist(), key=lambda row: row["id"])


def _read_texts(path: Path) -> list[str]:
    """Return the content of a file, or of the files of a folder."""
    return [file.read_bytes().decode() for file in (path.glob("part-*") if path.is_dir() else [path])]
