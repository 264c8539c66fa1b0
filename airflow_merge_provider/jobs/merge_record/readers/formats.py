"""Spark's handling of each file format: reader and writer options, order of records, file names.

Source: docs/semantics/merge_record.md, Formats; Writing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from pyspark.sql import Column, DataFrame, SparkSession, functions as F
from pyspark.sql.types import StringType, StructField, StructType

from airflow_merge_provider.core.dataset import escape_pattern
from airflow_merge_provider.core.file_options import find_option
from airflow_merge_provider.core.merge_record.config import FileFormat
from airflow_merge_provider.core.merge_record.schema import Schema
from airflow_merge_provider.core.spark_conf import count_cores
from airflow_merge_provider.jobs.merge_record.readers.arrow_types import NANOS, NANOS_NTZ
from airflow_merge_provider.jobs.merge_record.readers.spark_types import file_schema
from airflow_merge_provider.jobs.spark.formats import (
    CORRUPT,
    build_reader_options,
    build_writer_options,
    complete_options,
    spark_format,
)
from airflow_merge_provider.jobs.spark.sql import quote_column, quote_name
from airflow_merge_provider.jobs.spark.text_values import TEXT_FORMATS, TextValues

FILE, BLOCK, POSITION = "__merge_file", "__merge_block", "__merge_position"
PLACE = (FILE, BLOCK, POSITION)
_OURS = "__merge_"
BAD = CORRUPT
_DEFAULTS = {"csv": {"header": "true"}}
_JSON_FORMATS = ("json", "json-array")
_BOM, _UTF8 = "\ufeff", "UTF-8"
_NANOS_PER_MICRO = 1000
# Characters that java.net.URI does not escape in a path.
_LEGAL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.!~'()*,;:$&+=@/")
_ASCII = 128


@contextmanager
def session_settings(spark: SparkSession) -> Iterator[None]:
    """Set the Spark settings for reading many small files, and restore the previous values afterwards."""
    settings = {
        "spark.sql.caseSensitive": "true",
        # By default, Spark would start ten thousand tasks to list ten thousand named files.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(2 * count_cores()),
        # Opening a small file costs less than Spark's default of 4 MB.
        "spark.sql.files.openCostInBytes": str(64 * 1024),
        # Times in nanoseconds are read as numbers: see convert_nanos.
        "spark.sql.legacy.parquet.nanosAsLong": "true",
        # Larger tables from the driver are parsed by all cores, not while Spark plans the query.
        "spark.sql.execution.arrow.localRelationThreshold": "1MB",
    }
    previous_values = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, previous_value in previous_values.items():
            spark.conf.unset(name) if previous_value is None else spark.conf.set(name, previous_value)


def read_strictly(spark: SparkSession, reader: FileFormat, schema: Schema, uris: Sequence[str]) -> DataFrame:
    """Read the records of files that share one schema; an unreadable record fails the query.

    Additional columns are ``FILE`` (in the notation of ``spark_file``), and ``BLOCK`` and ``POSITION``, which
    define the order of the records within their file, even if Spark has split it.
    """
    struct = file_schema(schema)
    options = {"mode": "FAILFAST"} if reader.format in TEXT_FORMATS else {}
    # A schema that was found in the files themselves holds their values.
    values = TextValues(reader.format, reader.options) if reader.schema is not None else None
    if values is None or reader.format not in TEXT_FORMATS:
        return convert_nanos(_load_files(spark, reader, options, struct, uris), schema, is_strict=True)
    reader = replace(reader, options=values.build_options(struct, reader.options))
    texts = _load_files(spark, reader, options, values.build_schema(struct), uris)
    return values.convert_strictly(texts, struct, F.concat(FILE, F.lit(": ")))


def read_leniently(
    spark: SparkSession, reader: FileFormat, schema: StructType, uris: Sequence[str]
) -> DataFrame:
    """Read records like ``read_strictly``, but without failing on unreadable records.

    For text formats, the column ``BAD`` contains the text of unreadable records. Damaged files of other
    formats end at the damaged position.
    """
    if reader.format in TEXT_FORMATS:
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": BAD, "columnPruning": "false"}
        schema = with_bad(schema)
    else:
        options = {"ignoreCorruptFiles": "true"}
    return _load_files(spark, reader, options, schema, uris)


def convert_nanos(frame: DataFrame, schema: Schema, *, is_strict: bool) -> DataFrame:
    """Return the times of a frame whose columns in nanoseconds were read as numbers.

    Spark has microseconds. A time with nanoseconds fails the query, or is described in the column ``BAD``.
    """
    kinds = {NANOS: "timestamp", NANOS_NTZ: "timestamp_ntz"}
    nanos = {
        str(field["name"]): kinds[field["type"]]
        for field in schema.fields
        if field["type"] in (NANOS, NANOS_NTZ)
    }
    if not nanos:
        return frame
    problems = {
        name: F.concat(
            F.lit(f"column {name!r} has a time with nanoseconds, which Spark cannot hold: '"),
            quote_column(name).cast("string"),
            F.lit("' since 1970 (write it with microseconds)"),
        )
        for name in nanos
    }
    is_exact = {name: F.coalesce(quote_column(name) % _NANOS_PER_MICRO == 0, F.lit(True)) for name in nanos}
    times = {
        name: F.timestamp_micros(F.expr(f"{quote_name(name)} div {_NANOS_PER_MICRO}")).cast(kind)
        for name, kind in nanos.items()
    }
    if is_strict:
        columns = {
            name: F.when(is_exact[name], time).otherwise(F.raise_error(problems[name]).cast(nanos[name]))
            for name, time in times.items()
        }
    else:
        bad = F.coalesce(*(F.when(~is_exact[name], problem) for name, problem in problems.items()))
        columns = {**times, BAD: bad}
    return frame.withColumns(columns)


def read_texts(
    spark: SparkSession, uris: Sequence[str], *, whole_files: bool, line_end: str = ""
) -> DataFrame:
    """Read lines, or whole files, as the column ``value``, with the columns ``PLACE``."""
    options = {"wholetext": str(whole_files).lower(), "recursiveFileLookup": "true"}
    options |= {"lineSep": line_end} if line_end else {}
    texts = _add_place(spark.read.format("text").options(**options).load([*map(escape_pattern, uris)]))
    if not whole_files:
        return texts
    # Spark leaves out a byte order mark in front of lines, and its parser of JSON one in front of a document.
    return texts.withColumn("value", _strip_mark(F.col("value")))


def _strip_mark(text: Column) -> Column:
    return F.when(text.startswith(_BOM), F.substr(text, F.lit(2))).otherwise(text)


def read_json_texts(spark: SparkSession, reader: FileFormat, uris: Sequence[str]) -> DataFrame | None:
    """Read the texts of the records of JSON files, like ``read_texts``; return None for other formats."""
    if reader.format not in _JSON_FORMATS:
        return None
    options = read_options(reader)
    encoding, line_end = find_option(options, "encoding", _UTF8), find_option(options, "lineSep")
    if encoding == _UTF8:
        return read_texts(spark, uris, whole_files=is_document(reader), line_end=line_end)
    files = spark.read.format("binaryFile").option("recursiveFileLookup", value=True)
    texts = _add_place(files.load([*map(escape_pattern, uris)]))
    text = _strip_mark(F.decode("content", encoding))
    if not is_document(reader):
        text = F.explode(F.split(text, re.escape(line_end) if line_end else r"\r?\n"))
    return texts.select(text.alias("value"), *PLACE)


def needs_plain_files(reader: FileFormat) -> bool:
    """Return whether Spark has to read decompressed copies of compressed files.

    It takes the text of a number in a compressed JSON array from a DOUBLE, and decodes only texts in UTF-8.
    """
    is_encoded = find_option(read_options(reader), "encoding", _UTF8) != _UTF8
    return reader.format in _JSON_FORMATS and (is_document(reader) or is_encoded)


def is_document(reader: FileFormat) -> bool:
    """Return whether each file of a reader is one JSON text, instead of one in each line."""
    is_whole = find_option(read_options(reader), "multiLine").lower() == "true"
    return is_whole and reader.format in _JSON_FORMATS


def with_bad(schema: StructType) -> StructType:
    """Return a struct with the additional column ``BAD``, for the text of unreadable records."""
    return StructType([*schema.fields, StructField(BAD, StringType())])


def _add_place(frame: DataFrame) -> DataFrame:
    metadata = frame.metadataColumn("_metadata")
    return frame.select(
        "*",
        metadata.getField("file_path").alias(FILE),
        metadata.getField("file_block_start").alias(BLOCK),
        # The id is compared only within one file of one scan, so it may differ between scans.
        F.monotonically_increasing_id().alias(POSITION),  # noqa: TID251
    )


def find_reserved_name(names: Iterable[str]) -> str | None:
    """Return the first name that is reserved for internal columns or for Spark's metadata, or None."""
    return next((name for name in names if name.lower().startswith((_OURS, "_metadata"))), None)


def spark_file(uri: str) -> str:
    """Return a location in the notation of Spark's ``_metadata.file_path``.

    >>> spark_file("/in/a b%20[1].json")
    'file:/in/a%20b%2520%5B1%5D.json'
    """
    text = f"file:{uri}" if uri.startswith("/") else uri
    return "".join(char if _is_legal(char) else _escape_character(char) for char in text)


def read_options(reader: FileFormat) -> dict[str, str]:
    """Return the options of a reader with defaults; CSV files have a header."""
    return build_reader_options(
        reader.format, complete_options(_DEFAULTS.get(reader.format, {}), reader.options)
    )


def set_line_end(reader: FileFormat, line_end: str) -> FileFormat:
    """Return the reader of files whose lines end in this way; unchanged if this is unknown.

    If Spark has to find out, it changes line breaks in values.
    """
    if not line_end:
        return reader
    return replace(reader, options=complete_options({"lineSep": line_end}, reader.options))


def write_options(writer: FileFormat) -> dict[str, str]:
    """Return the options of a writer with defaults, as for a reader."""
    return build_writer_options(
        writer.format, complete_options(_DEFAULTS.get(writer.format, {}), writer.options)
    )


def _load_files(
    spark: SparkSession,
    reader: FileFormat,
    options: Mapping[str, str],
    schema: StructType,
    uris: Sequence[str],
) -> DataFrame:
    all_options = {**read_options(reader), **options, "recursiveFileLookup": "true"}
    frame_reader = spark.read.format(spark_format(spark, reader.format)).options(**all_options)
    return _add_place(frame_reader.schema(schema).load([*map(escape_pattern, uris)]))


def _is_legal(char: str) -> bool:
    return char in _LEGAL or (ord(char) >= _ASCII and char.isprintable() and not char.isspace())


def _escape_character(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode())
