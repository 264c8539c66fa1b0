"""Random tables as files through MergeRecord into another format and back, read by independent readers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import SparkSession

from tests.jobs.merge_record.landing import Landing
from tests.values.catalog import Kind
from tests.values.random_tables import NUMBER, RandomTables, Rows, find_differences
from tests.values.readers import READERS, read_files


def _has_typed_names(kind: pa.DataType) -> bool:
    """Return whether a type has maps whose keys are not texts."""
    parts = [kind.field(index).type for index in range(kind.num_fields)]
    is_typed = pa.types.is_map(kind) and not pa.types.is_string(kind.key_type)
    return is_typed or any(map(_has_typed_names, parts))


# Of each format: whether it does not hold a type.
_LEFT_OUT: dict[str, Callable[[Kind], bool]] = {
    "parquet": lambda _: False,
    # Names in objects are texts.
    "avro": lambda kind: _has_typed_names(kind.arrow),
    "json": lambda kind: _has_typed_names(kind.arrow),
    # Spark keeps one entry of a map whose keys are dates.
    "orc": lambda kind: "map_date" in kind.name,
}
# ORC takes the times of this second for those of the one after.
_LAST_SECOND = (datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC))
# ORC refuses earlier dates; after so many years the days of all months are the same.
_FIRST_DAY, _CYCLE = date(1582, 10, 15), 1600
FORMATS = tuple(f"merge_record_{name}" for name in _LEFT_OUT)
# The number of tables whose files have only their own columns.
_UNITED = 8
_NO_LIMITS = {"max_records": 1_000_000, "max_bins": "unlimited", "schema_merge": "union"}


def try_format(
    spark: SparkSession, tables: RandomTables, name: str, folder: Path, counts: Counter[str]
) -> Iterator[str]:
    """Merge files of a first landing and of a second one, merge nothing, and undo; return differences.

    The merged files are merged again, from their format into Parquet.
    """
    suffix = name.removeprefix("merge_record_")
    names = [NUMBER, *(name for name, kind in tables.kinds.items() if not _LEFT_OUT[suffix](kind))]
    landing = Landing(folder / "there", spark, **_NO_LIMITS, reader="parquet", writer=suffix)
    rows = {1: _blank_rows(tables, tables.rows), 2: _blank_rows(tables, tables.changes)}
    before = set[Path]()
    if suffix == "orc":
        rows = {step: list(map(_move_times, some)) for step, some in rows.items()}
    for step in (1, 2):
        _put_files(landing, tables, rows[step], names, step)
        before = set(landing.list_outputs())
        report = landing.run_job(at=10 * step)
        if report["counts"]["failed_files"]:
            reasons = {line["reason"] for line in landing.read_ledger() if line["outcome"] == "failed"}
            yield f"run {step}: {report['counts']['failed_files']} files failed: {sorted(reasons)[:3]}"
            return
        outputs = sorted(set(landing.list_outputs()) - before)
        readers = [*READERS, "fastavro"] if suffix == "avro" else READERS
        back = _merge_back(spark, tables, names, outputs, folder / f"back-{step}")
        for reader in readers:
            merged = _read_avro(outputs) if reader == "fastavro" else read_files(reader, back)
            counts[reader] += len(merged)
            merged = [dict.fromkeys(names) | row for row in merged]
            for difference in find_differences(tables, names, rows[step], merged):
                yield f"run {step}, read by {reader}, {difference}"
    if landing.run_job(at=30)["changed"]:
        yield "run 3: changed is True"
    files = set(landing.list_names("in"))
    landing.undo_runs()
    if set(landing.list_outputs()) != before or len(landing.list_names("in")) - len(files) != len(
        tables.tables
    ):
        yield f"undo: {landing.list_outputs()}, {landing.list_names('in')}"


def _move_times(value: Any) -> Any:
    """Return a row, or a value in it, whose times that ORC lacks are 1,600 years later."""
    if isinstance(value, dict):
        return {name: _move_times(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_move_times, value))
    if not isinstance(value, date):
        return value
    is_instant = isinstance(value, datetime) and value.tzinfo is not None
    is_last = is_instant and _LAST_SECOND[0] < value < _LAST_SECOND[1]
    day = value.date() if isinstance(value, datetime) else value
    return value.replace(year=value.year + _CYCLE) if is_last or day < _FIRST_DAY else value


def _blank_rows(tables: RandomTables, rows: Rows) -> Rows:
    """Return rows with NULL in the columns that their files do not have."""
    return [
        {name: value if name in _list_columns(tables, row[NUMBER]) else None for name, value in row.items()}
        for row in rows
    ]


def _list_columns(tables: RandomTables, number: int) -> Sequence[str]:
    """Return the columns of a file; those of the first tables have only their own columns."""
    table = tables.tables[number]
    return (NUMBER, *table.keys, *table.columns) if number < _UNITED else tables.schema.names


def _put_files(landing: Landing, tables: RandomTables, rows: Rows, names: list[str], step: int) -> None:
    """Write a file for each table."""
    for number in tables.tables:
        columns = [name for name in names if name in _list_columns(tables, number)]
        records = [row for row in rows if row[NUMBER] == number]
        schema = pa.schema([tables.schema.field(name) for name in columns])
        sink = pa.BufferOutputStream()
        parquet.write_table(pa.Table.from_pylist(records, schema), sink)
        landing.put_file(f"{step}-{number}.parquet", bytes(sink.getvalue()), at=step)


def _merge_back(
    spark: SparkSession, tables: RandomTables, names: list[str], paths: Sequence[Path], folder: Path
) -> list[Path]:
    """Merge files into Parquet, and return the merged files."""
    suffix = paths[0].suffix[1:]
    kinds = {NUMBER: "int", **{name: kind.spark for name, kind in tables.kinds.items()}}
    schema = ", ".join(f"{name} {kinds[name]}" for name in names) if suffix == "json" else None
    landing = Landing(
        folder, spark, **_NO_LIMITS, reader={"format": suffix, "schema": schema}, writer="parquet"
    )
    for path in paths:
        landing.put_file(path.name, path.read_bytes())
    report = landing.run_job(at=10)
    assert not report["counts"]["failed_files"], landing.read_ledger()
    return landing.list_outputs()


def _read_avro(paths: Sequence[Path]) -> Rows:
    rows: Rows = []
    for path in paths:
        with path.open("rb") as file:
            rows += fastavro.reader(file)
    return rows
