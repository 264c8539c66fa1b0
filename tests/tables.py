"""Delta tables with or without the properties that this package sets, written and read without a JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake

FLAGGED = {"merge.capability": "joiner", "merge.populated": "true"}
OURS = {"merge.capability": "joiner"}


def create_table(path: Path, rows: int = 1, properties: dict[str, str] | None = None) -> str:
    """Create a table with some rows and properties, and return its path."""
    write_deltalake(path, pa.table({"_id": pa.array(map(str, range(rows)), pa.string())}), mode="append")
    if properties:
        DeltaTable(path).alter.set_table_properties(properties, raise_if_not_exists=False)
    return str(path)


def read_rows(
    path: Path | str, version: int | None = None, query: str = "SELECT * FROM t"
) -> list[dict[str, Any]]:
    """Return the rows of a table without a JVM; instants are in UTC without a time zone, as those of Spark.

    Spark needs half a second for that. A table with a VARIANT column cannot be read.
    """
    table = DeltaTable(str(path), version=version)
    result = pa.RecordBatchReader.from_stream(QueryBuilder().register("t", table).execute(query)).read_all()
    columns = [_drop_zones(column) for column in result.columns]
    rows: list[dict[str, Any]] = pa.table(columns, names=result.column_names).to_pylist(
        maps_as_pydicts="strict"
    )
    return rows


def _drop_zones(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = _without_zones(column.type)
    return column if kind == column.type else column.cast(kind)


def _without_zones(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp(kind.unit)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_zones(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_without_zones(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, kind.item_field.with_type(_without_zones(kind.item_type)))
    return kind
