"""Write the same three rows in every format, with a library other than Spark if there is one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import orc, parquet

from airflow_merge_provider.jobs.spark.formats import spark_format

ROWS = [{"id": 1, "v": "x"}, {"id": 2, "v": None}, {"id": 3, "v": 'q"u,o'}]
XML = {"format": "xml", "schema": "id BIGINT, v STRING", "options": {"rowTag": "r"}}


def write_content(kind: str, rows: list[dict[str, Any]], spark: Any, scratch: Path) -> bytes:
    """Write rows in a format, with a library other than Spark if there is one."""
    if kind == "csv":
        cells = [f"{row['id']},{_format_cell(row['v'])}" for row in rows]
        return "\n".join(["id,v", *cells, ""]).encode()
    if kind == "json":
        return "".join(json.dumps(row) + "\n" for row in rows).encode()
    if kind == "json-array":
        return json.dumps(rows, indent=2).encode()
    if kind == "xml":
        cells = [f"<r><id>{row['id']}</id>{_format_element(row['v'])}</r>" for row in rows]
        return f"<rows>{''.join(cells)}</rows>".encode()
    table = pa.table(
        {"id": pa.array([row["id"] for row in rows], pa.int64()), "v": [row["v"] for row in rows]}
    )
    if kind == "avro":
        path = str(scratch / "avro")
        spark.createDataFrame(table).coalesce(1).write.format(spark_format(spark, kind)).mode(
            "overwrite"
        ).save(path)
        return next(Path(path).glob("part-*")).read_bytes()
    sink = pa.BufferOutputStream()
    if kind == "parquet":
        parquet.write_table(table, sink)
    else:
        orc.write_table(table, sink, compression="zlib")
    return bytes(sink.getvalue().to_pybytes())


def _format_cell(text: str | None) -> str:
    return "" if text is None else '"' + text.replace('"', '""') + '"'


def _format_element(text: str | None) -> str:
    return "" if text is None else f"<v>{text.replace('&', '&amp;')}</v>"


def build_avro(schema: str, block: bytes, *, count: int = 1, size: int | None = None) -> bytes:
    """Build an Avro file of one block, whose header may be wrong on purpose."""
    marker = b"0123456789abcdef"
    text = schema.encode()
    header = (
        b"Obj\x01"
        + encode_zigzag(1)
        + encode_zigzag(11)
        + b"avro.schema"
        + encode_zigzag(len(text))
        + text
        + encode_zigzag(0)
    )
    return (
        header
        + marker
        + encode_zigzag(count)
        + encode_zigzag(len(block) if size is None else size)
        + block
        + marker
    )


def encode_zigzag(number: int) -> bytes:
    """Return a number in Avro's zigzag encoding."""
    remainder = number << 1 if number >= 0 else (-number << 1) - 1
    encoded = b""
    while remainder > 0x7F:
        encoded += bytes([remainder & 0x7F | 0x80])
        remainder >>= 7
    return encoded + bytes([remainder])
