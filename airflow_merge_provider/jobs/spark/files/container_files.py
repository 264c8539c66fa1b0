"""Facts of Parquet, ORC and Avro files that are in their headers and footers, and that Spark does not report.

The driver reads them if it sees the files that Spark reads.

Source: docs/values.md, Files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast
from urllib.parse import unquote

import fastavro
import pyarrow as pa
from pyarrow import orc, parquet
from pyspark.sql import SparkSession

from airflow_merge_provider.core.dataset import Dataset, escape_pattern, parse_hadoop_path
from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.file_store.folder import open_folder
from airflow_merge_provider.jobs.spark.files.file_problem import FileProblem
from airflow_merge_provider.jobs.spark.files.raw_texts import select_file_options
from airflow_merge_provider.jobs.spark.files.value_problems import (
    ODD_NANOS,
    find_lost_time,
    find_odd_nanos,
    is_written_by_spark,
)
from airflow_merge_provider.jobs.spark.session import is_local
from airflow_merge_provider.jobs.spark.storage import build_arguments

Header = TypeVar("Header")
_THREADS = 16
INT96 = "INT96"
# How pyarrow refuses a time of ORC before 1677 that is not a whole second.
_NEGATIVE_ORC_TIME = re.compile(r"ORC timestamp \(-[0-9]+s \+ -[0-9]+ns\)")
_DECIMAL_MAX_DIGITS = 38
# Types of Arrow that Spark does not read, and what to do.
_UNREADABLE: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (
        lambda kind: pa.types.is_timestamp(kind) and kind.unit == "ns",
        "write it with microseconds, with coerce_timestamps='us' in pandas and pyarrow",
    ),
    (pa.types.is_time, "write it as text"),
    (pa.types.is_float16, "write it as float32"),
    (lambda kind: getattr(kind, "extension_name", "") == "arrow.uuid", "write it as text"),
    (
        lambda kind: pa.types.is_decimal(kind) and kind.precision > _DECIMAL_MAX_DIGITS,
        f"write it as text: Spark has up to {_DECIMAL_MAX_DIGITS} digits",
    ),
    # Spark reads a number without its unit.
    (pa.types.is_duration, "write it as a number with its unit in the name"),
)
# Logical types of Avro that Spark reads as numbers or bytes without their meaning.
_AVRO_UNREADABLE = {
    "time-millis": "write it as text",
    "time-micros": "write it as text",
    "timestamp-nanos": "write it with microseconds",
    "local-timestamp-nanos": "write it with microseconds",
    "duration": "write it as text",
    "big-decimal": "write it as decimal or text",
}
# Unions of these types that Spark reads as the wider one.
_AVRO_WIDENED = ({"int", "long"}, {"float", "double"})


def describe_difference(name: str, first: tuple[Any, str], second: tuple[Any, str]) -> FileProblem:
    """Return the problem of a column that has different types in two files.

    :param first: the type and the location of a file.
    """
    message = f"column {name!r} has the type {first[0]} in {first[1]}, but {second[0]} in {second[1]}"
    return FileProblem(message, "write the files with one type, or read them as separate datasets")


def find_location(uri: str) -> str:
    """Return the location of a file as Spark names it."""
    return parse_hadoop_path(unquote(uri))


def list_files(spark: SparkSession, dataset: Dataset) -> list[str]:
    """Return the URIs of the files of a dataset."""
    reader = spark.read.format("binaryFile").options(**select_file_options(dataset))
    return sorted(reader.load(escape_pattern(str(dataset.path))).inputFiles())


def read_headers(
    spark: SparkSession, uris: Sequence[str], read: Callable[[BinaryIO], Header]
) -> dict[str, Header | None] | None:
    """Return what a function reads from each file, by its URI; None if the driver does not see the files.

    The header of a file that cannot be read is None.
    """
    locations = {uri: find_location(uri) for uri in uris}
    first = next(iter(locations.values()), "/")
    if first.startswith("/"):
        if not is_local(spark):
            return None
        open_file: Callable[[str], BinaryIO] = _open_local
    else:
        try:
            store, _ = open_folder(first, build_arguments(spark, first))
        except SetupError:
            return None
        open_file = partial(_open_remote, store)

    def read_file(location: str) -> Header | None:
        with suppress(OSError, ValueError), open_file(location) as file:
            return read(file)
        return None

    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(zip(locations, pool.map(read_file, locations.values()), strict=True))


def _open_local(location: str) -> BinaryIO:
    return Path(location).open("rb")


def _open_remote(store: Any, location: str) -> BinaryIO:
    return cast("BinaryIO", store.open(store._strip_protocol(location), "rb"))  # noqa: SLF001


def read_orc_writer(file: BinaryIO) -> tuple[bool, FileProblem | None]:
    """Return whether Spark has written an ORC file, or else a column with a time that Spark does not read."""
    content = orc.ORCFile(file)
    if is_written_by_spark(content.schema.metadata):
        return True, None
    for field in content.schema:
        if "timestamp" in str(field.type) and (lost := _find_lost_time(content, field.name)):
            return False, FileProblem(f"column {field.name!r} has {lost}", "write Parquet with microseconds")
    return False, None


def _find_lost_time(content: orc.ORCFile, name: str) -> str | None:
    try:
        return find_lost_time(content.read(columns=[name]).column(0))
    except pa.ArrowInvalid as error:
        is_old = _NEGATIVE_ORC_TIME.search(str(error)) is not None
        return "a TIMESTAMP before 1970 with a fraction of a second" if is_old else None


def find_parquet_problem(file: BinaryIO) -> FileProblem | None:
    """Return a column of a Parquet file whose type or times Spark changes, or None."""
    footer = parquet.ParquetFile(file, coerce_int96_timestamp_unit="us")
    if is_written_by_spark(footer.metadata.metadata):
        return None
    problems = (_find_unreadable(field.type, field.name) for field in footer.schema_arrow)
    if problem := next((problem for problem in problems if problem), None):
        return problem
    return find_stored_problem(footer, file)


def find_stored_problem(footer: parquet.ParquetFile, file: BinaryIO) -> FileProblem | None:
    """Return an interval of Parquet, which pyarrow takes for bytes, or an INT96 that Spark cuts; or None."""
    columns = list_columns(footer)
    if name := next((column.path for column in columns if column.converted_type == "INTERVAL"), None):
        return describe_type(name, "interval", "write it as text")
    paths = [f"{column.path}." for column in columns if column.physical_type == INT96]
    names = [one for one in footer.schema_arrow.names if any(path.startswith(f"{one}.") for path in paths)]
    if is_written_by_spark(footer.metadata.metadata):
        return None

    def read_times(name: str, unit: str) -> pa.ChunkedArray:
        return parquet.ParquetFile(file, coerce_int96_timestamp_unit=unit).read(columns=[name]).column(0)

    if (name := find_odd_nanos(names, read_times)) is None:
        return None
    return FileProblem(f"column {name!r} has {ODD_NANOS} (INT96)", "write it with microseconds")


def describe_type(path: str, kind: object, hint: str) -> FileProblem:
    """Return the problem of a column whose type Spark does not read."""
    return FileProblem(f"column {path!r} has the type {kind}, which Spark cannot read", hint)


def list_columns(footer: parquet.ParquetFile) -> list[parquet.ColumnSchema]:
    """Return the columns of a Parquet file, also those inside others, as they are stored."""
    return [footer.schema.column(number) for number in range(len(footer.schema))]


def read_arrow_schema(format_name: str, file: BinaryIO) -> pa.Schema:
    """Return the schema of a Parquet or ORC file."""
    if format_name == "orc":
        return orc.ORCFile(file).schema
    return parquet.ParquetFile(file, coerce_int96_timestamp_unit="us").schema_arrow


def open_avro(file: BinaryIO) -> fastavro.block_reader:
    """Return the blocks of an Avro file, whose fields may have defaults that are no values of their types.

    Like Java, fastavro accepts these if the reader has a schema of its own, which no block is read by.
    """
    return fastavro.block_reader(file, "null")


def read_avro_schema(file: BinaryIO) -> tuple[str, Any]:
    """Return the schema of an Avro file as it is written, and parsed."""
    blocks = open_avro(file)
    return blocks.metadata["avro.schema"], blocks.writer_schema


def parse_avro_schema(file: BinaryIO) -> Any:
    """Return a schema of Avro from a text of JSON, parsed like that of a file.

    :raises ValueError: if the text is not a schema of Avro.
    """
    try:
        return fastavro.parse_schema(json.load(file))
    except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType, KeyError, TypeError) as error:
        raise ValueError(str(error)) from error


def find_type_problem(schemas: Mapping[str, pa.Schema | None], format_name: str) -> FileProblem | None:
    """Return a column whose type differs between files, or a file that cannot be read; or None.

    :param schemas: the schemas of files by their URIs, or None for a file that cannot be read.
    """
    first_types: dict[str, tuple[pa.DataType, str]] = {}
    for uri, schema in schemas.items():
        location = find_location(uri)
        if schema is None:
            return FileProblem(f"{location} cannot be read as {format_name}", "remove or replace the file")
        for field in schema:
            kind, first = first_types.setdefault(field.name.casefold(), (field.type, location))
            if kind != field.type:
                return describe_difference(field.name, (kind, first), (field.type, location))
    return None


def find_hint(kind: pa.DataType) -> str | None:
    """Return what to do about a type of Arrow that Spark does not read; None for another type."""
    return next((hint for is_kind, hint in _UNREADABLE if is_kind(kind)), None)


def _find_unreadable(kind: pa.DataType, path: str) -> FileProblem | None:
    if hint := find_hint(kind):
        return describe_type(path, kind, hint)
    members = (kind.field(number) for number in range(kind.num_fields))
    problems = (_find_unreadable(member.type, f"{path}.{member.name}") for member in members)
    return next((problem for problem in problems if problem), None)


def find_avro_problem(schema: Any) -> FileProblem | None:
    """Return the first field of an Avro file whose type Spark does not read as one column."""
    for path, kind, hint in _list_avro_problems(schema, "", ()):
        return describe_type(path, kind, hint)
    return None


def _list_avro_problems(kind: Any, path: str, records: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    """Yield the paths, the types and the remedies of such fields.

    :param records: the names of the records that contain the type.
    """
    if isinstance(kind, str):
        if kind in records:
            yield path, f"record {kind} inside of itself", "write records that do not contain themselves"
        elif kind == "null":
            yield path, kind, "write it as another type"
    elif isinstance(kind, Mapping):
        if logical := kind.get("logicalType"):
            if logical == "decimal" and kind["precision"] > _DECIMAL_MAX_DIGITS:
                yield path, f"decimal of {kind['precision']} digits", "write it as text"
            elif hint := _AVRO_UNREADABLE.get(logical):
                yield path, logical, hint
        for field in kind.get("fields", ()):
            inner_path = f"{path}.{field['name']}".removeprefix(".")
            yield from _list_avro_problems(field["type"], inner_path, (*records, kind["name"]))
        for inner in filter(kind.get, ("items", "values", "type")):
            yield from _list_avro_problems(kind[inner], path, records)
    else:
        yield from _list_union_problems(kind, path, records)


def _list_union_problems(
    members: Sequence[Any], path: str, records: tuple[str, ...]
) -> Iterator[tuple[str, str, str]]:
    kinds = [member for member in members if member != "null"] or members
    # Spark reads a union of a date and a long as numbers.
    names = [
        str(kind.get("logicalType") or kind["type"]) if isinstance(kind, Mapping) else str(kind)
        for kind in kinds
    ]
    if len(names) > 1 and set(names) not in _AVRO_WIDENED:
        yield path, f"union of {' and '.join(names)}", "write one type, or a record"
    for kind in kinds:
        yield from _list_avro_problems(kind, path, records)
