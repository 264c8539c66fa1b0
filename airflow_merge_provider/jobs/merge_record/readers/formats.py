"""Spark's handling of each file format: reader and writer options, order of records, file names.

Source: docs/semantics/merge_record.md, Formats; Writing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession, functions as F
from pyspark.sql.types import StringType, StructField, StructType

from airflow_merge_provider.core.dataset import escape_pattern
from airflow_merge_provider.core.spark_conf import count_cores

FILE, BLOCK, POSITION = "__merge_file", "__merge_block", "__merge_position"
PLACE = (FILE, BLOCK, POSITION)
_OURS = "__merge_"
BAD = "__merge_bad"
_SPARK = {"json-array": "json"}
# Spark's short name first; the wheel of PySpark contains the class but does not register the short name.
_AVRO = ("avro", "org.apache.spark.sql.avro.AvroFileFormat")
_TEXTS = ("csv", "json", "json-array", "xml")
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


def read_strictly(
    spark: SparkSession, reader: Mapping[str, Any], schema: StructType, uris: Sequence[str]
) -> DataFrame:
    """Read the records of files that share one schema; an unreadable record fails the query.

    Additional columns are ``FILE`` (in the notation of ``spark_file``), and ``BLOCK`` and ``POSITION``, which
    define the order of the records within their file, even if Spark has split it.
    """
    options = {"mode": "FAILFAST"} if reader["format"] in _TEXTS else {}
    return _add_place(_build_reader(spark, reader, options).schema(schema).load([*map(escape_pattern, uris)]))


def read_leniently(
    spark: SparkSession, reader: Mapping[str, Any], schema: StructType, uris: Sequence[str]
) -> DataFrame:
    """Read records like ``read_strictly``, but without failing on unreadable records.

    For text formats, the column ``BAD`` contains the text of unreadable records. Damaged files of other
    formats end at the damaged position.
    """
    if reader["format"] in _TEXTS:
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": BAD, "columnPruning": "false"}
        schema = with_bad(schema)
    else:
        options = {"ignoreCorruptFiles": "true"}
    return _add_place(_build_reader(spark, reader, options).schema(schema).load([*map(escape_pattern, uris)]))


def read_texts(spark: SparkSession, uris: Sequence[str], *, whole_files: bool) -> DataFrame:
    """Read lines, or whole files, as the column ``value``, with the columns ``PLACE``."""
    reader = (
        spark.read.format("text").option("wholetext", whole_files).option("recursiveFileLookup", value=True)
    )
    return _add_place(reader.load([*map(escape_pattern, uris)]))


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


def spark_format(spark: SparkSession, kind: str) -> str:
    """Return the name that Spark uses for a format."""
    if kind != "avro":
        return _SPARK.get(kind, kind)
    try:
        spark.read.format(_AVRO[0]).schema("x int").load([]).schema  # noqa: B018 - Spark looks up the source
    except AnalysisException as error:
        return _AVRO[1] if "avro" in str(error).lower() else _AVRO[0]
    return _AVRO[0]


def resolve_options(described: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of a reader or a writer, with defaults of this package.

    CSV files have a header, and JSON arrays may span several lines.
    """
    kind = described["format"]
    defaults: dict[str, str] = {}
    if kind == "csv":
        defaults = {"header": "true"}
    elif kind == "json-array":
        defaults = {"multiLine": "true"}
    return {**defaults, **described["options"]}


def _build_reader(
    spark: SparkSession, reader: Mapping[str, Any], options: Mapping[str, str]
) -> DataFrameReader:
    all_options = {**resolve_options(reader), **options, "recursiveFileLookup": "true"}
    return spark.read.format(spark_format(spark, reader["format"])).options(**all_options)


def _is_legal(char: str) -> bool:
    return char in _LEGAL or (ord(char) >= _ASCII and char.isprintable() and not char.isspace())


def _escape_character(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode())
