"""What do files tell about themselves without reading their records: footers, headers, first lines."""

from __future__ import annotations

import csv
import io
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO

import pyarrow as pa
from pyarrow import orc, parquet
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema

from airflow_merge_provider.core.merge_record.schema import Schema
from airflow_merge_provider.jobs.merge_record.files.storage import PACKED, Storage
from airflow_merge_provider.jobs.merge_record.readers.spark_types import schema_of

_MAGIC = b"Obj\x01"
_SYNC = 16
_CHUNK = 1 << 20
_DAMAGE = (pa.ArrowException, PySparkException, ValueError, EOFError, IndexError, OSError, zlib.error)
_AVRO_LOGICAL = {
    "date": "date",
    "uuid": "uuid",
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
    "local-timestamp-millis": "timestamp_ntz",
    "local-timestamp-micros": "timestamp_ntz",
}
_AVRO_PLAIN = {"enum": "string", "fixed": "bytes", "null": "void"}


class UnreadableError(Exception):
    """Raised when a file is not what its reader wants; the text says why."""


Told = tuple[Schema, int]


def told_by(storage: Storage, names: Sequence[str], ask: Callable[[BinaryIO], Any]) -> dict[str, Any]:
    """Ask many files at once, unpacked; the answer of one that cannot be read is an ``UnreadableError``."""

    def answer(name: str) -> Any:
        try:
            with storage.unpacked(name) as file:
                return ask(file)
        except UnreadableError as error:
            return error
        except _DAMAGE as error:
            return UnreadableError(str(error).splitlines()[0] if str(error) else type(error).__name__)

    return dict(zip(names, storage.for_each(answer, names), strict=True))


def is_packed(name: str) -> bool:
    """Say whether the name tells a compression that ``told_by`` looks through."""
    return name.endswith(PACKED)


def length(file: BinaryIO) -> int:
    """Give the bytes of a file by reading it to its end, where the checksum of a packed one is."""
    return sum(len(chunk) for chunk in iter(lambda: file.read(_CHUNK), b""))


def parquet_footer(file: BinaryIO) -> Told:
    """Give the schema and the number of records of a Parquet file."""
    footer = parquet.ParquetFile(file)
    return _arrow(footer.schema_arrow), footer.metadata.num_rows


def orc_footer(file: BinaryIO) -> Told:
    """Give the schema and the number of records of an ORC file."""
    footer = orc.ORCFile(file)
    return _arrow(footer.schema), footer.nrows


def avro_header(file: BinaryIO) -> Told:
    """Give the schema of an Avro file, and the number of records by walking over its blocks.

    A block that is cut off or not followed by the file's marker makes the file unreadable.
    """
    if file.read(len(_MAGIC)) != _MAGIC:
        raise UnreadableError("it is no Avro file")
    text = _metadata(file).get("avro.schema", b"").decode()
    marker = file.read(_SYNC)
    records = 0
    while (first := file.read(1)) and (count := _long(file, first)) >= 0:
        size = _long(file)
        file.seek(size, io.SEEK_CUR)
        if file.read(_SYNC) != marker:
            raise UnreadableError("an Avro block is damaged")
        records += count
    return Schema(tuple(_avro_fields(json.loads(text))), text), records


def first_line(options: Mapping[str, str]) -> Callable[[BinaryIO], tuple[str, ...]]:
    """Give a question for the cells of the first line of a CSV file that is neither empty nor a comment."""
    separator = options.get("sep", options.get("delimiter", ","))
    quote, comment = options.get("quote", '"'), options.get("comment")
    encoding = options.get("encoding", options.get("charset", "utf-8-sig"))

    def cells(file: BinaryIO) -> tuple[str, ...]:
        for raw in io.TextIOWrapper(file, encoding=encoding, newline=None):
            line = raw.rstrip("\n")
            if line.strip() and not (comment and line.startswith(comment)):
                (row,) = csv.reader([line], delimiter=separator, quotechar=quote or None)
                return tuple(row)
        return ()

    return cells


def _arrow(schema: pa.Schema) -> Schema:
    fields = schema_of(from_arrow_schema(schema, prefer_timestamp_ntz=True)).fields
    nullable = {field.name: field.nullable for field in schema}
    return Schema(tuple({**field, "nullable": nullable[field["name"]]} for field in fields))


def _metadata(file: BinaryIO) -> dict[str, bytes]:
    """Read Avro's map of the header: blocks of pairs, closed by an empty one."""
    pairs: dict[str, bytes] = {}
    while count := _long(file):
        if count < 0:
            _long(file)
        for _ in range(abs(count)):
            name = file.read(_long(file)).decode()
            pairs[name] = file.read(_long(file))
    return pairs


def _long(file: BinaryIO, first: bytes | None = None) -> int:
    """Read Avro's integer: seven bits per byte, the lowest first, the sign in the last bit."""
    number = shift = 0
    byte = (first or file.read(1))[0]
    while True:
        number |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return (number >> 1) ^ -(number & 1)
        shift += 7
        byte = file.read(1)[0]


def _avro_fields(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    fields = []
    for field in record["fields"]:
        kind, nullable = _avro_type(field["type"])
        written = {"name": field["name"], "type": kind, "nullable": nullable}
        written |= {name: field[name] for name in ("default", "aliases") if field.get(name)}
        fields.append(written)
    return fields


def _avro_type(kind: Any) -> tuple[Any, bool]:
    """Give the type, and whether it may be null."""
    if isinstance(kind, list):
        members = [_avro_type(each)[0] for each in kind if each != "null"]
        return (members[0] if len(members) == 1 else members), "null" in kind
    if isinstance(kind, str):
        return _AVRO_PLAIN.get(kind, kind), False
    logical = kind.get("logicalType")
    if logical == "decimal":
        return f"decimal({kind['precision']},{kind.get('scale', 0)})", False
    if logical in _AVRO_LOGICAL:
        return _AVRO_LOGICAL[logical], False
    if kind["type"] == "record":
        return {"fields": _avro_fields(kind)}, False
    if kind["type"] == "array":
        return {"array": _avro_type(kind["items"])[0]}, False
    if kind["type"] == "map":
        return {"map": _avro_type(kind["values"])[0]}, False
    return _avro_type(kind["type"])
