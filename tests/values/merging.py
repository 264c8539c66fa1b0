"""What the tests of merged values share: awkward tables, comparisons, and reads by other libraries."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.merge_engine.checks import plan_fold
from airflow_merge_provider.core.merge_engine.columns import Column
from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig
from tests.values.catalog import ALL, SHORT, SIMPLE, Kind, build_table
from tests.values.outcomes import EXACT, REFUSED, Outcomes

BY_NAME = {kind.name: kind for kind in ALL}
# Enough for the near values of each kind but text, whose other values come from the seed.
PAYLOAD_ROWS = 12


def list_cells(outcomes: Outcomes, kinds: Iterable[Kind], *uses: str, refused: bool = False) -> list[Any]:
    """Return the names of kinds and uses whose cells are refused, or not."""
    return [
        (kind.name, use)
        for kind in kinds
        for use in uses
        if outcomes.find_outcome(kind.name, use).startswith(REFUSED) == refused
    ]


def mark_long(cells: Iterable[tuple[str, str]]) -> list[Any]:
    """Return cells as parameters of a test: those of types that share no runs with ``SHORT`` are long."""
    names = {kind.name for kind in SHORT}
    return [pytest.param(*cell, marks=() if cell[0] in names else pytest.mark.long) for cell in cells]


def require_exact(outcomes: Outcomes, kind: str, use: str) -> None:
    """Check that a test knows what the cell of a kind and use says."""
    assert outcomes.find_outcome(kind, use) == EXACT


def find_refusal(use: str, written: Any) -> str:
    """Return why a merge engine refuses a use of the column ``v`` before it reads data.

    :param written: the type in Spark's JSON.
    """
    settings: dict[str, Any] = {"primary_key": ["v"] if use == "key" else ["k"]}
    if use == "sequence":
        settings |= {"options": {"sequence.field": "v"}}
    elif use != "key":
        function = use if use in {"max", "sum"} else "last_value"
        options = {"fields.v.aggregate-function": function}
        settings |= {"merge_engine": "aggregation", "options": options}
    columns = [Column("k", "integer"), Column("v", written)]
    with pytest.raises(ConfigError) as error:
        plan_fold(MergeEngineConfig.parse(settings), columns)
    return str(error.value)


def fold_value(value: Any) -> str:
    """Return a text that equal values share: -0.0 equals 0.0, maps have no order, instants are in UTC."""
    return repr(_normalize(value))


def _normalize(value: Any) -> Any:
    if isinstance(value, float):
        return value + 0.0
    if isinstance(value, datetime):
        return value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
    if isinstance(value, Mapping):
        return {name: _normalize(item) for name, item in value.items()}
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return sorted((fold_value(key), fold_value(item)) for key, item in value)
    return [_normalize(item) for item in value] if isinstance(value, list | tuple) else value


def sort_value(value: Any) -> tuple[Any, ...]:
    """Return a key that sorts values of a kind as Spark does: NaN is the largest number."""
    return (isinstance(value, float) and math.isnan(value), value)


def take_rows(rows: pa.Table, positions: Sequence[int | None]) -> pa.Table:
    """Return rows by their positions; a row of NULLs for None."""
    return rows.take(pa.array(positions, pa.int64()))


@cache
def build_payload() -> pa.Table:
    """Return a table with a column of each kind."""
    return build_table(ALL, 59, PAYLOAD_ROWS)


def build_neighbours(prefix: str) -> tuple[pa.Table, list[tuple[str, Any]]]:
    """Return rows that differ in one column each from the first row, and the column and value of each row."""
    cases: list[tuple[str, Any]] = [("", None)]
    cases += [(kind.name, value) for kind in SIMPLE for value in kind.values[1:]]
    columns = {}
    for kind in SIMPLE:
        values = [value if name == kind.name else kind.values[0] for name, value in cases]
        columns[f"{prefix}{kind.name}"] = pa.array(values, kind.arrow)
    return pa.table(columns), cases


def build_sparse(cells: Sequence[tuple[str, Kind, Any]]) -> pa.Table:
    """Return one entity for each cell: its ID, and a value in the column of its type alone."""
    columns: dict[str, Any] = {"_id": pa.array([id_ for id_, _, _ in cells], pa.string())}
    for kind in {kind.name: kind for _, kind, _ in cells}.values():
        values = [value if owner is kind else None for _, owner, value in cells]
        columns[kind.name] = pa.array(values, kind.arrow)
    return pa.table(columns)


def read_with_delta_rs(folder: Path) -> pa.Table:
    """Return the rows of a table as delta-rs reads them."""
    query = QueryBuilder().register("t", DeltaTable(str(folder)))
    return pa.RecordBatchReader.from_stream(query.execute("SELECT * FROM t")).read_all()


def read_with_duckdb(folder: Path) -> pa.Table:
    """Return the rows of a table as DuckDB returns them, from the files of the table."""
    files = [uri.removeprefix("file://") for uri in DeltaTable(str(folder)).file_uris()]
    with duckdb.connect() as connection:
        return connection.sql(f"SELECT * FROM read_parquet({files!r})").to_arrow_table()


def read_with_polars(folder: Path) -> pa.Table:
    """Return the rows of a table as polars reads them."""
    return pl.read_delta(str(folder)).to_arrow()


READERS: dict[str, Callable[[Path], pa.Table]] = {
    "delta-rs": read_with_delta_rs,
    "DuckDB": read_with_duckdb,
    "polars": read_with_polars,
}


def list_values(
    rows: pa.Table, column: str, kind: pa.DataType, order: str, marks: Sequence[bool] | None = None
) -> list[str]:
    """Return the values of a column as texts, in the order of another column.

    :param marks: which rows count; Arrow cannot filter the views that delta-rs returns.
    """
    marks = [True] * rows.num_rows if marks is None else marks
    values = zip(rows[order].to_pylist(), rows[column].to_pylist(), marks, strict=True)
    pairs = [(rank, value) for rank, value, is_counted in values if is_counted]
    return [fold_value(_shape(value, kind)) for _, value in sorted(pairs, key=lambda pair: pair[0])]


def _shape(value: Any, kind: pa.DataType) -> Any:
    """Return a value in the shape that Arrow gives values of a type: polars has no maps."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        entries = [tuple(entry.values()) if isinstance(entry, dict) else entry for entry in value]
        return [(_shape(key, kind.key_type), _shape(item, kind.item_type)) for key, item in entries]
    if pa.types.is_list(kind):
        return [_shape(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind):
        return {field.name: _shape(value[field.name], field.type) for field in kind}
    return value
