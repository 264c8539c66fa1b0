"""Files of many programs with the columns of a table."""

from __future__ import annotations

import base64
import json
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable
from datetime import date, datetime
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import pandas as pd
import polars as pl
import pyarrow as pa
from pyarrow import csv as arrow_csv, orc, parquet
from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.jobs.spark.formats import build_writer_options, spark_format
from tests.values.catalog import Kind

_AVRO = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    pa.timestamp("us", "UTC"): {"type": "long", "logicalType": "timestamp-micros"},
    pa.timestamp("us"): {"type": "long", "logicalType": "local-timestamp-micros"},
}


def write_file(use: str, table: pa.Table, spark: SparkSession, scratch: Path) -> bytes:
    """Return the content of a file that a program has written, such as ``csv of polars``."""
    kind, _, program = use.partition(" of ")
    path = scratch / "file"
    if program == "Spark":
        return _write_with_spark(kind, table, spark, scratch)
    _WRITERS[program](kind, table, str(path))
    return path.read_bytes()


def _write_with_spark(kind: str, table: pa.Table, spark: SparkSession, scratch: Path) -> bytes:
    source = scratch / "source.parquet"
    parquet.write_table(table, source)
    options = build_writer_options(kind, {"header": "true"} if kind == "csv" else {})
    options |= {"rowTag": "r"} if kind == "xml" else {}
    frame = spark.read.parquet(str(source)).coalesce(1)
    return _save_frame(frame, kind, options, spark, scratch)


def write_spark_type(use: str, kind: Kind, spark: SparkSession, scratch: Path) -> bytes:
    """Return a file of Spark with the values of a type that only Spark has, and NULL."""
    values = [*kind.values, "NULL"]  # noqa: PD011
    selects = (f"SELECT CAST({value} AS {kind.spark}) AS {kind.name}" for value in values)
    frame = spark.sql(" UNION ALL ".join(selects)).coalesce(1)
    return _save_frame(frame, use.partition(" of ")[0], {}, spark, scratch)


def _save_frame(
    frame: DataFrame, kind: str, options: dict[str, str], spark: SparkSession, scratch: Path
) -> bytes:
    folder = scratch / "spark"
    frame.write.format(spark_format(spark, kind)).options(**options).mode("overwrite").save(str(folder))
    (part,) = folder.glob("part-*")
    return part.read_bytes()


def _write_with_pyarrow(kind: str, table: pa.Table, path: str) -> None:
    writers: dict[str, Callable[[pa.Table, str], None]] = {
        "csv": arrow_csv.write_csv,
        "parquet": parquet.write_table,
        "orc": orc.write_table,
    }
    writers[kind](table, path)


def _write_with_pandas(kind: str, table: pa.Table, path: str) -> None:
    frame = table.to_pandas(types_mapper=pd.ArrowDtype)
    if kind == "csv":
        frame.to_csv(path, index=False)
    elif kind == "xml":
        frame.to_xml(path, index=False, row_name="r", parser="etree")
    elif kind in ("json", "json-array"):
        frame.to_json(path, orient="records", lines=kind == "json", date_format="iso", date_unit="us")
    else:
        getattr(frame, f"to_{kind}")(path)


def _write_with_duckdb(kind: str, table: pa.Table, path: str) -> None:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("rows", table)
    array = ", ARRAY true" if kind == "json-array" else ""
    connection.execute(f"COPY rows TO '{path}' (FORMAT {kind.removesuffix('-array')}{array})")


def _write_with_polars(kind: str, table: pa.Table, path: str) -> None:
    names = {"json": "ndjson", "json-array": "json"}
    getattr(pl.from_arrow(table), f"write_{names.get(kind, kind)}")(path)


def _write_with_fastavro(_: str, table: pa.Table, path: str) -> None:
    names = iter(range(1000))
    fields = [
        {"name": field.name, "type": ["null", _describe_avro(field.type, names)]} for field in table.schema
    ]
    schema = fastavro.parse_schema({"type": "record", "name": "rows", "fields": fields})
    rows = [{name: _build_avro_value(value, table.schema.field(name).type) for name, value in row.items()}
            for row in table.to_pylist()]  # fmt: skip
    with Path(path).open("wb") as file:
        fastavro.writer(file, schema, rows)


def _describe_avro(kind: pa.DataType, names: Iterable[int]) -> Any:
    if pa.types.is_decimal(kind):
        return {
            "type": "bytes",
            "logicalType": "decimal",
            "precision": kind.precision,
            "scale": kind.scale,
        }
    if pa.types.is_list(kind):
        return {"type": "array", "items": ["null", _describe_avro(kind.value_type, names)]}
    if pa.types.is_map(kind):
        return {"type": "map", "values": ["null", _describe_avro(kind.item_type, names)]}
    if pa.types.is_struct(kind):
        members = [
            {"name": one.name, "type": ["null", _describe_avro(one.type, names)]} for one in kind.fields
        ]
        return {"type": "record", "name": f"record_{next(iter(names))}", "fields": members}
    return _AVRO[kind]


def _build_avro_value(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_list(kind):
        return [_build_avro_value(item, kind.value_type) for item in value]
    if pa.types.is_map(kind):
        return {key: _build_avro_value(item, kind.item_type) for key, item in value}
    if pa.types.is_struct(kind):
        return {one.name: _build_avro_value(value[one.name], one.type) for one in kind.fields}
    return value


def _write_by_hand(kind: str, table: pa.Table, path: str) -> None:
    rows = table.to_pylist()
    if kind == "csv":
        lines = [table.column_names, *([_format_cell(value) for value in row.values()] for row in rows)]
        text = "".join(",".join(line) + "\r\n" for line in lines)
    elif kind == "xml":
        text = f"<rows>{''.join(map(_format_element, rows))}</rows>"
    else:
        documents = [json.dumps(row, default=_format_plain) for row in rows]
        text = f"[{', '.join(documents)}]" if kind == "json-array" else "\n".join(documents)
    Path(path).write_bytes(text.encode())


def _format_cell(value: Any) -> str:
    if value is None:
        return ""
    return '"' + value.replace('"', '""') + '"' if isinstance(value, str) else _format_plain(value)


def _format_element(row: dict[str, Any]) -> str:
    record = ET.Element("r")
    for name, value in row.items():
        if value is not None:
            ET.SubElement(record, name).text = _format_plain(value)
    return ET.tostring(record, encoding="unicode")


def _format_plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, date | datetime) else str(value)


_WRITERS: dict[str, Callable[[str, pa.Table, str], None]] = {
    "pyarrow": _write_with_pyarrow,
    "pandas": _write_with_pandas,
    "DuckDB": _write_with_duckdb,
    "polars": _write_with_polars,
    "fastavro": _write_with_fastavro,
    "Python": _write_by_hand,
}
