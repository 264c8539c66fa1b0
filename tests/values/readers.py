"""Readers that are independent of Spark: of Parquet files, and of Delta tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyarrow import parquet

Rows = list[dict[str, Any]]

READERS = ("pyarrow", "DuckDB", "polars", "pandas")


def read_files(reader: str, paths: Sequence[Path | str]) -> Rows:
    """Return the rows of Parquet files."""
    names = [str(path) for path in paths]
    if reader == "DuckDB":
        return _list_rows(_query_duckdb("FROM read_parquet($names)", names=names))
    if reader == "polars":
        return [row for name in names for row in _list_rows(pl.read_parquet(name).to_arrow())]
    if reader == "pandas":
        return [row for name in names for row in _list_frame(pd.read_parquet(name, dtype_backend="pyarrow"))]
    return [row for name in names for row in _list_rows(parquet.ParquetFile(name).read())]


def read_table(reader: str, path: Path) -> Rows:
    """Return the rows of a Delta table: of its files, or of delta-rs if the files have deletion vectors."""
    if reader == "polars":
        return _list_rows(pl.read_delta(str(path)).to_arrow())
    table = DeltaTable(str(path))
    if reader != "pyarrow" and '"deletionVector":{' not in _read_log(path):
        return read_files(reader, [unquote(uri) for uri in table.file_uris()])
    rows = pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all())
    if reader == "DuckDB":
        return _list_rows(_query_duckdb("FROM rows", rows=rows))
    return _list_frame(rows.to_pandas(types_mapper=pd.ArrowDtype)) if reader == "pandas" else _list_rows(rows)


def _list_rows(table: pa.Table) -> Rows:
    rows: Rows = table.to_pylist()
    return rows


def _read_log(path: Path) -> str:
    return "".join(file.read_text(encoding="utf-8") for file in (path / "_delta_log").glob("*.json"))


def _list_frame(frame: pd.DataFrame) -> Rows:
    return _list_rows(pa.Table.from_pandas(frame, preserve_index=False))


def _query_duckdb(query: str, rows: pa.Table | None = None, **parameters: Any) -> pa.Table:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        if rows is not None:
            connection.register("rows", rows)
        return connection.sql(query, params=parameters or None).to_arrow_table()
