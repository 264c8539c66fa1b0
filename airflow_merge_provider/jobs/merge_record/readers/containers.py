"""Metadata that is read from files without reading their records: the footers and headers of containers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import pyarrow as pa
from fastavro.schema import UnknownType
from pyarrow import orc, parquet

from airflow_merge_provider.core.merge_record.schema import Schema
from airflow_merge_provider.jobs.merge_record.files.storage import PACKED, Storage, StoreReadError
from airflow_merge_provider.jobs.merge_record.readers.arrow_types import (
    convert_orc_schema,
    convert_parquet_schema,
    describe_old_day,
)
from airflow_merge_provider.jobs.merge_record.readers.avro_types import convert_avro_schema
from airflow_merge_provider.jobs.spark.files.container_files import (
    find_stored_problem,
    list_columns,
    open_avro,
    read_orc_writer,
)
from airflow_merge_provider.jobs.spark.files.file_problem import WRITE_AGAIN, UnreadableError, describe_damage
from airflow_merge_provider.jobs.spark.files.value_problems import (
    GREGORIAN_START,
)

_CHUNK = 1 << 20
# The limit of uncompressed content, so that every read ends.
_MOST_UNPACKED = 64 << 30


FileMetadata = tuple[Schema, int]


def ask_files(storage: Storage, names: Sequence[str], ask: Callable[[BinaryIO], Any]) -> dict[str, Any]:
    """Call a function for each opened file, decompressed, and return the results by file name.

    The result for a file that cannot be read is an ``UnreadableError``.

    :raises StoreReadError: if the store fails, which says nothing about the file.
    """

    def ask_file(name: str) -> Any:
        try:
            with storage.open_unpacked(name) as file:
                return ask(file)
        except UnreadableError as error:
            return error
        except FileNotFoundError:
            return UnreadableError("it no longer exists (write it again)")
        except PermissionError as error:
            return UnreadableError(describe_damage("it may not be read", error))
        except StoreReadError:
            raise
        except Exception as error:  # noqa: BLE001 - any error of a reader affects only its file
            return UnreadableError(describe_damage("its content cannot be read", error))

    return dict(zip(names, storage.for_each(ask_file, names), strict=True))


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
            raise UnreadableError(
                f"its uncompressed content is larger than {_MOST_UNPACKED >> 30} GiB (split the file)"
            )
    return total


def parquet_footer(file: BinaryIO) -> FileMetadata:
    """Return the schema and the number of records of a Parquet file."""
    try:
        footer = parquet.ParquetFile(file, coerce_int96_timestamp_unit="us")
    except pa.ArrowInvalid as error:
        raise UnreadableError(describe_damage("its Parquet footer is damaged", error)) from error
    if problem := find_stored_problem(footer, file):
        raise UnreadableError(problem)
    return convert_parquet_schema(footer.schema_arrow, list_columns(footer)), footer.metadata.num_rows


def orc_footer(file: BinaryIO) -> FileMetadata:
    """Return the schema and the number of records of an ORC file."""
    try:
        footer = orc.ORCFile(file)
    except (pa.ArrowInvalid, OSError) as error:
        raise UnreadableError(describe_damage("its ORC footer is damaged", error)) from error
    if problem := describe_old_day(footer.schema, lambda column: footer.read(columns=[column])):
        raise UnreadableError(
            f"{problem} before {GREGORIAN_START}, which Spark takes for another day (write Parquet)"
        )
    file.seek(0)
    _, lost = read_orc_writer(file)
    if lost is not None:
        raise UnreadableError(lost)
    return convert_orc_schema(footer.schema), footer.nrows


def avro_header(file: BinaryIO) -> FileMetadata:
    """Return the schema of an Avro file, and the number of records from its block headers.

    A file is unreadable if a block is truncated or not followed by the sync marker of the file.
    """
    try:
        blocks = open_avro(file)
        counts = [block.num_records for block in blocks]
    except UnknownType as error:
        raise UnreadableError(
            f"its Avro schema has the unknown type {error.name!r} (write a type of Avro)"
        ) from error
    except Exception as error:
        raise UnreadableError(describe_damage("its Avro header or a block is damaged", error)) from error
    if any(count < 0 for count in counts):
        raise UnreadableError(f"an Avro block is damaged ({WRITE_AGAIN})")
    return convert_avro_schema(blocks.writer_schema, blocks.metadata["avro.schema"]), sum(counts)
