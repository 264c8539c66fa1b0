"""Test what merge record writes of each type in each format, as other programs read it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import orc, parquet
from pyspark.sql import SparkSession

from airflow_merge_provider.core.merge_record.schema import Schema, find_unwritable_field
from airflow_merge_provider.jobs.merge_record.readers.arrow_types import convert_parquet_schema
from tests.conformance.lean import lean_session
from tests.values.catalog import ALL
from tests.values.files import (
    build_all,
    build_awkward,
    build_parameters,
    find_kind,
    find_plain_type,
    merge_files,
    normalize,
    parse_value,
    read_texts,
    run_once,
    shorten_times,
    widen_type,
)
from tests.values.outcomes import EXACT, REFUSED, read_outcomes

OUTCOMES = read_outcomes("files_written")
# One text format and one container; the others have the same mechanism.
SHORT = ("csv", "json", "parquet")
CELLS = [(kind.name, use) for use in OUTCOMES.uses for kind in ALL]
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - of times without a time zone
_TYPE = " files cannot hold values of type "
_AS_INT, _AS_MICROS, _AS_LOCAL = "as int", "as microseconds", "as timestamp_ntz"

_LAST = datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
_JULIAN = datetime(1582, 10, 14, 23, 59, 59, 999999, tzinfo=UTC)
_KEYS = pa.array([[(b"\xff", 1)]], pa.map_(pa.binary(), pa.int32()))
# Columns with a value that files of the format lack, or of which their readers make another one.
_SINGLE = {
    "json": {"keys": pa.table({"keys": _KEYS})},
    "orc": {"second": pa.table({"second": [_LAST]}), "old": pa.table({"old": [_JULIAN]})},
    "xml": {"control": pa.table({"control": ["a\x01b"]})},
}

pytestmark = pytest.mark.spark
Results = Callable[[str], tuple[Path, dict[str, str]]]


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Return the merged file of all columns that a format holds, and why files with others failed."""
    # Garbage is collected after every tenth test that asks for Spark itself.
    lean = lean_session(request.getfixturevalue("spark"))
    return run_once(lambda use: _write_format(use, lean, tmp_path_factory.mktemp(use.replace("-", "_"))))


def _write_format(use: str, spark: SparkSession, root: Path) -> tuple[Path, dict[str, str]]:
    table = _build_source(use)
    outcomes = {name: OUTCOMES.find_outcome(name, use) for name in table.column_names}
    refused = [name for name, outcome in outcomes.items() if outcome.startswith(REFUSED)]
    # One file stands for all whose types are refused with one text, which needs no value.
    by_type = {outcomes[name]: name for name in refused if _TYPE in outcomes[name]}
    tried = [name for name in refused if _TYPE not in outcomes[name] or name in by_type.values()]
    files = {name: _to_parquet(table.select([name])) for name in tried}
    files |= {name: _to_parquet(table) for name, table in _SINGLE.get(use, {}).items()}
    files["all"] = _to_parquet(table.drop_columns(refused))
    options = {"rowTag": "r"} if use == "xml" else {}
    writer = {"format": use, "options": options}
    merged, reasons = merge_files(files, spark, root, reader="parquet", writer=writer)
    assert merged.keys() == {"all"}
    return merged["all"], reasons


@pytest.mark.parametrize(
    ("use", "name", "problem"),
    [
        ("json", "keys.key", "the BINARY '\ufffd' is not a value of STRING"),
        pytest.param(
            "xml", "control", "the STRING 'a?b' has a character that XML lacks", marks=pytest.mark.long
        ),
        pytest.param(
            "orc",
            "second",
            "the TIMESTAMP '1969-12-31 23:59:59.999999' is in the second before 1970",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "orc",
            "old",
            "the TIMESTAMP '1582-10-14 23:59:59.999999' is before 1582-10-15, which readers of ORC",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_single_value_fails_its_file(results: Results, use: str, name: str, problem: str) -> None:
    """A value that the format lacks fails its file, with the field and the value."""
    file = name.partition(".")[0]
    assert f"A value of {file} cannot be merged: field {name!r}: {problem}" in results(use)[1][file]


@cache
def _build_source(use: str) -> pa.Table:
    if use == "orc":
        return shorten_times(build_all())
    return build_all() if use in ("avro", "parquet") else build_awkward()


def _to_parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink)
    return bytes(sink.getvalue())


@pytest.mark.parametrize(("kind", "use"), build_parameters(CELLS, SHORT))
def test_a_value_is_written_equal_or_refused(results: Results, kind: str, use: str) -> None:
    """Each program that reads the format finds the value, or its text, or the file has failed by name."""
    path, reasons = results(use)
    outcome = OUTCOMES.find_outcome(kind, use)
    if outcome.startswith(REFUSED):
        table = _build_source(use).select([kind])
        stored = parquet.ParquetFile(pa.BufferReader(_to_parquet(table))).metadata.schema
        fields = convert_parquet_schema(table.schema, map(stored.column, range(len(stored))))
        reason = reasons.get(kind) or find_unwritable_field(fields, use) or ""
        assert outcome.removeprefix(REFUSED) in reason
        assert f"'{kind}" in reason
        return
    values = _build_source(use)[kind].to_pylist()
    if outcome == _AS_MICROS:
        values = [_count_micros(value) for value in values]
    form = partial(normalize, has_zones=outcome != _AS_LOCAL)
    for program, table in _READERS[use](path).items():
        column = _read_column(table[kind], find_kind(kind).arrow, outcome)
        assert form(column) == form(values), program


@pytest.mark.parametrize("use", ["csv", "avro", "orc", "xml"])
def test_a_variant_is_refused_where_files_have_none(use: str) -> None:
    """VARIANT, which only a schema of the reader gives a field, is refused in formats without it."""
    problem = find_unwritable_field(Schema(({"name": "v", "type": {"array": "variant"}},)), use)
    assert problem is not None
    assert "field 'v'" in problem


@pytest.mark.parametrize(("use", "field"), [("avro", "a b"), ("xml", "a b"), ("avro", "é")])
def test_a_name_is_refused_where_files_cannot_have_it(use: str, field: str) -> None:
    """A field with a name that is none in the format is refused, in records, too."""
    record = {"fields": [{"name": field, "type": "int"}]}
    problem = find_unwritable_field(Schema(({"name": "r", "type": {"map": record}},)), use)
    assert problem is not None
    assert f"field {field!r}: {use} files cannot have a field with this name" in problem


def _read_column(column: Any, kind: pa.DataType, outcome: str) -> list[Any]:
    """Return the values of a column of a file: those of Arrow, or what the texts of a text file stand for."""
    if not isinstance(column, pa.ChunkedArray):
        return [parse_value(value, kind) for value in column]
    if outcome in (EXACT, _AS_INT):
        assert find_plain_type(column.type) == (kind if outcome == EXACT else widen_type(kind))
    return list(column.to_pylist())


def _count_micros(value: Any) -> Any:
    if isinstance(value, datetime):
        return (value - _EPOCH) // timedelta(microseconds=1)
    if isinstance(value, dict):
        return {name: _count_micros(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_count_micros(item) for item in value]
    return tuple(map(_count_micros, value)) if isinstance(value, tuple) else value


@cache
def _read_parquet(path: Path) -> dict[str, Any]:
    frame = pd.read_parquet(path, dtype_backend="pyarrow")
    return {
        "pyarrow": parquet.read_table(path),
        "pandas": pa.Table.from_pandas(frame, preserve_index=False),
        "DuckDB": _connect().sql(f"SELECT * FROM read_parquet('{path}')").to_arrow_table(),
        "polars": pl.read_parquet(path).to_arrow(),
    }


@cache
def _read_orc(path: Path) -> dict[str, Any]:
    frame = pd.read_orc(path, dtype_backend="pyarrow")
    return {
        "pyarrow": orc.read_table(path),
        "pandas": pa.Table.from_pandas(frame, preserve_index=False),
    }


@cache
def _read_avro(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        records = list(fastavro.reader(file))
    columns = {}
    for name in records[0]:
        kind = widen_type(find_kind(name).arrow)
        columns[name] = pa.array([_list_entries(record[name], kind) for record in records], kind)
    return {"fastavro": pa.table(columns)}


def _list_entries(value: Any, kind: pa.DataType) -> Any:
    """Return a value of fastavro with the entries of maps as Arrow has them."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return [(key, _list_entries(item, kind.item_type)) for key, item in value.items()]
    if pa.types.is_list(kind):
        return [_list_entries(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind):
        return {one.name: _list_entries(value[one.name], one.type) for one in kind.fields}
    return value


@cache
def _read_csv(path: Path) -> dict[str, Any]:
    frame = pd.read_csv(path, dtype=str, keep_default_na=False, na_values=[])
    texts = read_texts("csv", path.read_bytes())
    # pandas cannot tell NULL from an empty text.
    blanks = {
        name: [value or (None if texts[name][row] is None else "") for row, value in enumerate(frame[name])]
        for name in frame
    }
    options = "all_varchar = true, header = true, allow_quoted_nulls = false"
    return {
        "pyarrow": texts,
        "pandas": blanks,
        "DuckDB": _connect().sql(f"SELECT * FROM read_csv('{path}', {options})").to_arrow_table().to_pydict(),
        "polars": pl.read_csv(path, infer_schema=False).to_dict(as_series=False),
    }


@cache
def _read_json(path: Path) -> dict[str, Any]:
    rows = _connect().execute(f"SELECT json::VARCHAR FROM read_json_objects('{path}')").fetchall()
    lines = "\n".join(line for (line,) in rows)
    kind = "json-array" if path.read_bytes().startswith(b"[") else "json"
    return {"Python": read_texts(kind, path.read_bytes()), "DuckDB": read_texts("json", lines.encode())}


@cache
def _read_xml(path: Path) -> dict[str, Any]:
    return {"Python": read_texts("xml", path.read_bytes())}


def _connect() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    return connection


_READERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "csv": _read_csv,
    "json": _read_json,
    "json-array": _read_json,
    "avro": _read_avro,
    "parquet": _read_parquet,
    "orc": _read_orc,
    "xml": _read_xml,
}
