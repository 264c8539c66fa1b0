"""Metadata that is read from files without reading their records: footers, headers and first lines."""

from __future__ import annotations

import codecs
import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO

import pyarrow as pa
from pyarrow import orc, parquet
from pyspark.sql.pandas.types import from_arrow_schema

from airflow_merge_provider.core.errors import ConfigError, Problem
from airflow_merge_provider.core.merge_record.schema import Schema
from airflow_merge_provider.jobs.merge_record.files.storage import PACKED, Storage
from airflow_merge_provider.jobs.merge_record.readers.spark_types import convert_schema

_MAGIC = b"Obj\x01"
_SYNC = 16
_CHUNK = 1 << 20
# Limits of a line, of header metadata and of uncompressed content, so that every read ends.
_LONGEST_LINE = 1 << 20
_MOST_METADATA = 16 << 20
_MOST_UNPACKED = 64 << 30
_LONG_BYTES = 10
_LONGEST_REASON = 500
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
    """Raised if a file is not valid for its reader; the message contains the reason."""


FileMetadata = tuple[Schema, int]


def ask_files(storage: Storage, names: Sequence[str], ask: Callable[[BinaryIO], Any]) -> dict[str, Any]:
    """Call a function for each opened file, decompressed, and return the results by file name.

    The result for a file that cannot be read is an ``UnreadableError``.
    """

    def ask_file(name: str) -> Any:
        try:
            with storage.open_unpacked(name) as file:
                return ask(file)
        except UnreadableError as error:
            return error
        except FileNotFoundError:
            return UnreadableError("it no longer exists")
        except Exception as error:  # noqa: BLE001 - any error of a reader affects only its file
            return UnreadableError(describe_error(error))

    return dict(zip(names, storage.for_each(ask_file, names), strict=True))


def describe_error(error: Exception) -> str:
    """Return a description of an error of a reader in one line."""
    lines = str(error).strip().splitlines()
    return lines[0][:_LONGEST_REASON] if lines else type(error).__name__


def is_packed(name: str) -> bool:
    """Return whether the suffix of a name denotes a compression that ``ask_files`` decompresses."""
    return name.endswith(PACKED)


def measure_length(file: BinaryIO) -> int:
    """Return the length of a file in bytes.

    The file is read to its end, because the checksum of a compressed file is there.
    """
    total = 0
    while chunk := file.read(_CHUNK):
        total += len(chunk)
        if total > _MOST_UNPACKED:
            raise UnreadableError(f"its uncompressed content is larger than {_MOST_UNPACKED >> 30} GiB")
    return total


def parquet_footer(file: BinaryIO) -> FileMetadata:
    """Return the schema and the number of records of a Parquet file."""
    footer = parquet.ParquetFile(file)
    return _convert_arrow_schema(footer.schema_arrow), footer.metadata.num_rows


def orc_footer(file: BinaryIO) -> FileMetadata:
    """Return the schema and the number of records of an ORC file."""
    footer = orc.ORCFile(file)
    return _convert_arrow_schema(footer.schema), footer.nrows


def avro_header(file: BinaryIO) -> FileMetadata:
    """Return the schema of an Avro file, and the number of records from its block headers.

    A file is unreadable if a block is truncated or not followed by the sync marker of the file.
    """
    if file.read(len(_MAGIC)) != _MAGIC:
        raise UnreadableError("it is not an Avro file")
    text = _read_avro_metadata(file).get("avro.schema", b"").decode()
    marker = file.read(_SYNC)
    records = 0
    while first := file.read(1):
        count, size = _read_avro_long(file, first), _read_avro_long(file)
        # A negative size would seek backwards, and the loop might not end.
        if count < 0 or size < 0:
            raise UnreadableError("an Avro block is damaged")
        file.seek(size, io.SEEK_CUR)
        if file.read(_SYNC) != marker:
            raise UnreadableError("an Avro block is damaged")
        records += count
    schema = json.loads(text)
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise UnreadableError("its Avro schema is not a record")
    return Schema(tuple(_avro_fields(schema)), text), records


def first_line(options: Mapping[str, str]) -> Callable[[BinaryIO], tuple[str, ...]]:
    """Return a function that reads the cells of the first line of a CSV file, after blanks and comments.

    :raises ConfigError: when no file at all can be read with these options.
    """
    separator = options.get("sep", options.get("delimiter", ","))
    quote, comment = options.get("quote", '"'), options.get("comment")
    encoding = options.get("encoding", options.get("charset", "utf-8-sig"))

    try:
        codecs.lookup(encoding)
        csv.reader([], delimiter=separator, quotechar=quote or None)
    except (LookupError, TypeError) as error:
        raise ConfigError.from_problems(
            [Problem("reader.options", "options", str(error), "see the CSV options of Spark")]
        ) from None

    def read_cells(file: BinaryIO) -> tuple[str, ...]:
        with io.TextIOWrapper(file, encoding=encoding, newline=None) as lines:
            while raw := lines.readline(_LONGEST_LINE + 1):
                if len(raw) > _LONGEST_LINE:
                    raise UnreadableError(f"its first line is longer than {_LONGEST_LINE >> 20} MiB")
                line = raw.rstrip("\n")
                if line.strip() and not (comment and line.startswith(comment)):
                    (row,) = csv.reader([line], delimiter=separator, quotechar=quote or None)
                    return tuple(row)
        return ()

    return read_cells


def _convert_arrow_schema(schema: pa.Schema) -> Schema:
    fields = convert_schema(from_arrow_schema(schema, prefer_timestamp_ntz=True)).fields
    nullable = {field.name: field.nullable for field in schema}
    return Schema(tuple({**field, "nullable": nullable[field["name"]]} for field in fields))


def _read_avro_metadata(file: BinaryIO) -> dict[str, bytes]:
    """Read the metadata map of an Avro header: blocks of pairs, ended by an empty block."""
    pairs: dict[str, bytes] = {}
    while count := _read_avro_long(file):
        if count < 0:
            _read_avro_long(file)
        for _ in range(abs(count)):
            name = _read_avro_bytes(file).decode()
            pairs[name] = _read_avro_bytes(file)
    return pairs


def _read_avro_bytes(file: BinaryIO) -> bytes:
    size = _read_avro_long(file)
    content = file.read(size) if 0 <= size <= _MOST_METADATA else b""
    if len(content) != size:
        raise UnreadableError("its Avro header is damaged")
    return content


def _read_avro_long(file: BinaryIO, first: bytes | None = None) -> int:
    """Read an Avro long: seven bits per byte, lowest bits first, with the sign in the lowest bit."""
    number = shift = 0
    byte = (first or file.read(1))[0]
    while True:
        number |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return (number >> 1) ^ -(number & 1)
        shift += 7
        if shift >= 7 * _LONG_BYTES:
            raise UnreadableError(f"an integer in it is longer than {_LONG_BYTES} bytes, the maximum in Avro")
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
    """Return the schema type of an Avro type, and whether it is nullable."""
    if isinstance(kind, list):
        members = [_avro_type(member)[0] for member in kind if member != "null"]
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
