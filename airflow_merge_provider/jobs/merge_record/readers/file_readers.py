"""Readers that inspect files by format: their schema, their number of records, and their errors.

Source: docs/semantics/merge_record.md, Schema identity; Record counts and sizes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol, runtime_checkable

from pyspark.sql import Column, DataFrame, SparkSession, functions as F, types as T
from pyspark.sql.types import FloatType, StringType, StructField, StructType, VariantType

from airflow_merge_provider.core.change_plan.shown_rows import mask_problem
from airflow_merge_provider.core.merge_record.config import FileFormat
from airflow_merge_provider.core.merge_record.schema import VOID, Schema
from airflow_merge_provider.jobs.merge_record.readers import formats
from airflow_merge_provider.jobs.merge_record.readers.formats import BAD, BLOCK, FILE, PLACE, POSITION
from airflow_merge_provider.jobs.merge_record.readers.json_numbers import find_long_number
from airflow_merge_provider.jobs.merge_record.readers.json_texts import (
    describe_json_text,
    describe_unread_values,
)
from airflow_merge_provider.jobs.merge_record.readers.spark_types import (
    TOO_DEEP,
    build_inferred_schema,
    file_schema,
    has_fractions,
    is_too_deep,
    spark_schema,
    spark_type,
)
from airflow_merge_provider.jobs.spark.files.file_problem import WRITE_AGAIN
from airflow_merge_provider.jobs.spark.files.json_texts import (
    describe_bare_word,
    describe_repeated_field,
    parse_variant_type,
    select_parser_options,
)
from airflow_merge_provider.jobs.spark.files.value_problems import describe_invalid_text
from airflow_merge_provider.jobs.spark.sql import quote_column
from airflow_merge_provider.jobs.spark.text_values import TextValues, has_type

EMPTY_SCHEMA = Schema()
_PROBLEM = "__merge_problem"
_EXAMPLE_MAX_LENGTH = 100
_NUMBER_TEXT = "^-?[0-9]"
# The types of columns of CSV by the kinds of their texts.
_CSV_TYPES: tuple[tuple[set[str], str], ...] = (
    (set(), VOID),
    ({"int"}, "int"),
    ({"int", "long"}, "long"),
    ({"double"}, "double"),
    ({"boolean"}, "boolean"),
)
# Precedes the schema of a file with numbers that no DOUBLE equals.
_DOUBT = "doubtful:"
# The schemas of files by what Spark has inferred, with the struct if it may not hold each number.
Inferred = dict[str, tuple[Schema, T.StructType | None]]


@dataclass(frozen=True, slots=True)
class FileFacts:
    """The facts about the content of one file; ``size`` is its uncompressed size in bytes."""

    schema: Schema = EMPTY_SCHEMA
    records: int = 0
    unreadable: str | None = None
    malformed: str | None = None
    unchecked: bool | None = None
    size: int | None = None
    # The struct that Spark has inferred, if it may not hold each number.
    inferred: T.StructType | None = None


@dataclass(frozen=True, slots=True)
class FileSummary:
    """The summary of one file from Spark: the numbers of its records and of its invalid records.

    ``detail`` is a string whose content depends on the reader.
    """

    records: int = 0
    wrong: int = 0
    detail: str | None = None

    def find_problem(self, records: int | None = None) -> str | None:
        """Return why records of the file cannot be read, or None.

        :param records: the number of its records, if it is known.
        """
        if self.wrong:
            example = f": {mask_problem(' '.join(self.detail.split()))}" if self.detail else ""
            # A record may have two problems.
            return f"{min(self.wrong, self.records) or 1} of {self.records} records cannot be read{example}"
        if records is None or self.records == records:
            return None
        return f"{self.records} of {records} records can be read ({WRITE_AGAIN})"


class FileReader(Protocol):
    """A reader that inspects files in one way."""

    def read_raw(self, spark: SparkSession, locations: Sequence[str]) -> DataFrame:
        """Read the frame to inspect; this frame may be cached."""

    def aggregate_by_file(self, raw: DataFrame) -> DataFrame:
        """Aggregate the frame by file, to the columns ``FILE``, records, wrong and detail."""

    def build_fact(self, uri: str, summary: FileSummary) -> FileFacts:
        """Build the facts of a file from its summary."""


@runtime_checkable
class CachedReader(FileReader, Protocol):
    """A reader whose frame is worth caching until the records are written."""

    # Whether one frame holds files of several schemas.
    is_shared: bool

    def parse_records(self, raw: DataFrame, schema: Schema) -> DataFrame:
        """Return the records of valid files of one schema from the cached frame."""


class SchemaReader:
    """A reader of files whose schema is known before their records are read.

    ``record_counts`` are the numbers of records by URI, as far as they are known without reading the records.
    """

    is_shared = False

    def __init__(
        self,
        reader: FileFormat,
        schema: Schema,
        record_counts: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.schema = schema
        self.record_counts = record_counts
        self._reader = reader

    def read_raw(self, spark: SparkSession, locations: Sequence[str]) -> DataFrame:
        frame = formats.read_leniently(spark, self._reader, file_schema(self.schema), locations)
        return formats.convert_nanos(frame, self.schema, is_strict=False)

    def parse_records(self, raw: DataFrame, schema: Schema) -> DataFrame:
        return raw

    def build_late_fact(self, records: int) -> FileFacts:
        """Return the facts of a file that is validated when its bin is merged."""
        return FileFacts(self.schema, records, unchecked=True)


class TypedReader(SchemaReader):
    """A reader of text files with an explicit schema, by which every record is parsed."""

    def read_raw(self, spark: SparkSession, locations: Sequence[str]) -> DataFrame:
        schema, values = spark_schema(self.schema), self._values
        reader = replace(self._reader, options=values.build_options(schema, self._reader.options))
        texts = formats.read_leniently(spark, reader, values.build_schema(schema), locations)
        records = self._convert_texts(texts, values)
        problems = formats.read_json_texts(spark, self._reader, locations)
        if problems is None:
            return records
        # A problem is no record of its own, so it has no position.
        position = F.lit(None).cast("long").alias(POSITION)
        problems = problems.select(FILE, BLOCK, position, self._describe_text().alias(BAD))
        return records.unionByName(problems.where(F.col(BAD).isNotNull()), allowMissingColumns=True)

    def of_lines(self, lines: DataFrame) -> DataFrame:
        """Parse gathered lines of JSON, whose numbers equal a DOUBLE if they are of this type.

        Therefore, Spark's parser may read them. A line that it refuses may be valid: see ``read_raw``.
        """
        values = self._values
        if not has_type(spark_schema(self.schema), (FloatType,)):
            values = replace(values, leaves_floats=True)
        schema = formats.with_bad(values.build_schema(spark_schema(self.schema)))
        options = {**self._reader.options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": BAD}
        record = F.from_json("value", schema, options).alias("record")
        problem = self._describe_text().alias(_PROBLEM)
        texts = lines.select(record, problem, *PLACE).select("record.*", _PROBLEM, *PLACE)
        records = self._convert_texts(texts, values)
        return records.withColumn(BAD, F.coalesce(_PROBLEM, BAD)).drop(_PROBLEM)

    def aggregate_by_file(self, raw: DataFrame) -> DataFrame:
        return _aggregate_by_file(raw, F.col(BAD), _hash_columns(self.schema))

    def _describe_text(self) -> Column:
        """Return what Spark's parser would leave out or change in the text of a record of JSON."""
        return describe_json_text(F.col("value"), spark_schema(self.schema), self._reader.options)

    @property
    def _values(self) -> TextValues:
        return TextValues(self._reader.format, self._reader.options)

    def _convert_texts(self, texts: DataFrame, values: TextValues) -> DataFrame:
        """Return records with the values of their texts; ``BAD`` then describes what cannot be read."""
        schema = spark_schema(self.schema)
        bad = F.coalesce(self._describe_bad(), *values.describe_columns(schema).values())
        records = texts.withColumns({**values.convert_columns(schema), BAD: bad})
        return records.drop(*map(quote_column, values.list_attributes(schema)))

    def _describe_bad(self) -> Column:
        """Return which value of a record Spark cannot parse; NULL for a valid record."""
        bad = F.col(BAD)
        if self._reader.format not in ("json", "json-array"):
            return _quote_record(bad)
        problems = describe_unread_values(spark_schema(self.schema), is_array=self._reader.format != "json")
        return F.when(bad.isNotNull(), F.coalesce(*problems, describe_bare_word(bad), _quote_record(bad)))

    def build_fact(self, uri: str, summary: FileSummary) -> FileFacts:
        return FileFacts(
            self.schema, summary.records, malformed=summary.find_problem(self.record_counts.get(uri))
        )

    def read_rows(self, spark: SparkSession, locations: Sequence[str]) -> DataFrame:
        """Read one row for each record, with as little parsing as possible."""
        if self._reader.format == "json":
            return formats.read_texts(spark, locations, whole_files=False).where(F.trim("value") != "")
        return self.read_raw(spark, locations)


class ContainerReader(SchemaReader):
    """A reader of Parquet, ORC and Avro files, which contain the number of their records."""

    def aggregate_by_file(self, raw: DataFrame) -> DataFrame:
        bad = describe_invalid_text(spark_schema(self.schema))
        bad = F.coalesce(BAD, bad) if BAD in raw.columns else bad
        return _aggregate_by_file(raw, bad, _hash_columns(self.schema))

    def build_fact(self, uri: str, summary: FileSummary) -> FileFacts:
        records = self.record_counts[uri]
        return FileFacts(self.schema, records, malformed=summary.find_problem(records))


class JsonLinesReader:
    """A reader of JSON lines without a schema: a schema is inferred for each file from its records."""

    is_shared = True

    def __init__(self, reader: FileFormat) -> None:
        self._options = reader.options
        self._schemas: Inferred = {}

    def read_raw(self, spark: SparkSession, locations: Sequence[str]) -> DataFrame:
        return formats.read_texts(spark, locations, whole_files=False).where(F.trim("value") != "")

    def of_lines(self, lines: DataFrame) -> DataFrame:
        """Return gathered lines as they are."""
        return lines

    def aggregate_by_file(self, raw: DataFrame) -> DataFrame:
        text, record = F.col("value"), F.try_parse_json("value")
        is_object = record.isNotNull() & F.ltrim(text).startswith("{")
        problem = F.coalesce(describe_json_text(text), F.when(~is_object, _describe_text(text)))
        number = find_long_number(text)
        return _aggregate_variants(
            raw.select(
                FILE, POSITION, record.alias("record"), problem.alias(_PROBLEM), number.alias("number")
            )
        )

    def build_fact(self, uri: str, summary: FileSummary) -> FileFacts:
        return _build_inferred_fact(summary, self._schemas)

    def parse_records(self, raw: DataFrame, schema: Schema) -> DataFrame:
        options = {"columnNameOfCorruptRecord": BAD, **self._options}
        record = F.from_json("value", spark_schema(schema), options).alias("record")
        return raw.select(record, *PLACE).select("record.*", *PLACE)


class JsonArraysReader:
    """A reader of files with one JSON array each, without a schema: it is inferred as for JSON lines.

    Nothing is cached: the files are read again for writing.
    """

    def __init__(self) -> None:
        self._schemas: Inferred = {}

    def read_raw(self, spark: SparkSession, locations: Sequence[str]) -> DataFrame:
        return formats.read_texts(spark, locations, whole_files=True).where(F.trim("value") != "")

    def aggregate_by_file(self, raw: DataFrame) -> DataFrame:
        text = F.col("value")
        problem = describe_json_text(text)
        record = F.when(problem.isNull(), F.try_parse_json(text))
        problem = F.coalesce(problem, F.when(record.isNull(), _describe_text(text)))
        number = F.when(problem.isNull(), find_long_number(text)).alias("number")
        documents = raw.select(FILE, POSITION, record.alias("record"), number, problem.alias(_PROBLEM))
        # A file may also contain a single object.
        members = F.coalesce(F.try_variant_get("record", "$", "array<variant>"), F.array("record"))
        records = documents.select(FILE, POSITION, "number", _PROBLEM, F.explode(members).alias("record"))
        is_object = F.coalesce(F.schema_of_variant("record").startswith("OBJECT"), F.lit(False))
        member = _quote_record(F.coalesce(F.to_json("record"), F.lit("null")))
        problem = F.coalesce(_PROBLEM, F.when(~is_object, member)).alias(_PROBLEM)
        return _aggregate_variants(records.select(FILE, POSITION, "record", problem, "number"))

    def build_fact(self, uri: str, summary: FileSummary) -> FileFacts:
        return _build_inferred_fact(summary, self._schemas)


class CsvColumnsReader:
    """A reader of CSV files that share a header, without a schema: types are inferred by file and column."""

    is_shared = True

    def __init__(self, reader: FileFormat, names: Sequence[str], record_counts: Mapping[str, int]) -> None:
        self._reader = reader
        self._names = names
        self._record_counts = record_counts

    def read_raw(self, spark: SparkSession, locations: Sequence[str]) -> DataFrame:
        texts = StructType([StructField(name, StringType()) for name in self._names])
        return formats.read_leniently(spark, self._reader, texts, locations)

    def aggregate_by_file(self, raw: DataFrame) -> DataFrame:
        kinds = F.array(*[F.collect_set(_classify_csv_text(quote_column(name))) for name in self._names])
        return _aggregate_by_file(raw, _quote_record(F.col(BAD)), F.to_json(kinds))

    def build_fact(self, uri: str, summary: FileSummary) -> FileFacts:
        if problem := summary.find_problem(self._record_counts.get(uri)):
            return FileFacts(records=summary.records, unreadable=problem)
        kind_lists = json.loads(summary.detail) if summary.detail else [()] * len(self._names)
        pairs = zip(self._names, kind_lists, strict=True)
        fields = ({"name": name, "type": _choose_csv_type(kinds), "nullable": True} for name, kinds in pairs)
        return FileFacts(Schema(tuple(fields)), summary.records)

    def parse_records(self, raw: DataFrame, schema: Schema) -> DataFrame:
        # Spark may cast texts of other files, too, before it leaves out their rows.
        fields = (
            quote_column(field["name"]).try_cast(spark_type(field["type"]).simpleString())
            for field in schema.fields
        )
        return raw.select(
            *[column.alias(name) for column, name in zip(fields, schema.names, strict=True)], *PLACE
        )


def _aggregate_by_file(frame: DataFrame, bad: Column, detail: Column) -> DataFrame:
    """Aggregate records by file; ``bad`` describes a record that cannot be read, and is the detail then."""
    counts = F.count(POSITION).alias("records"), F.count(bad).alias("wrong")
    return frame.groupBy(FILE).agg(*counts, F.coalesce(F.min(bad), detail.cast("string")).alias("detail"))


def _describe_text(text: Column) -> Column:
    """Return why a text of JSON has no value."""
    repeated = describe_repeated_field(text, select_parser_options({}))
    return F.coalesce(repeated, describe_bare_word(text), _quote_record(text))


def _quote_record(text: Column) -> Column:
    """Return a record as an example for people; NULL for NULL."""
    return F.concat(
        F.lit("such as '"),
        F.left(F.make_valid_utf8(text), F.lit(_EXAMPLE_MAX_LENGTH)),
        F.lit("' (correct it, or the options of the reader)"),
    )


def _hash_columns(schema: Schema) -> Column:
    """Build an aggregate that makes Spark parse every column.

    Otherwise, a record with an invalid value in a pruned column would count as valid. JSON text replaces the
    hash for maps and variants, which Spark cannot hash.
    """
    struct = spark_schema(schema)
    columns = [quote_column(name) for name in struct.names] or [F.lit(0)]
    hashless = any(word in struct.simpleString() for word in ("map<", "variant"))
    return F.max(F.length(F.to_json(F.struct(*columns))) if hashless else F.xxhash64(*columns))


def _aggregate_variants(records: DataFrame) -> DataFrame:
    """Aggregate records by file.

    :param records: each record as a VARIANT, what is wrong with it, and a number in it that no DOUBLE equals.
    """
    bad = F.col(_PROBLEM)
    schema = F.schema_of_variant_agg(F.when(bad.isNull(), F.col("record")))
    doubt = F.when(F.count("number") > 0, F.lit(_DOUBT)).otherwise("")
    return _aggregate_by_file(records, bad, F.concat(doubt, schema))


def _build_inferred_fact(summary: FileSummary, schemas: Inferred) -> FileFacts:
    """Build the facts of a file from the schema that Spark inferred; each distinct text is parsed once."""
    if summary.wrong:
        # A schema cannot be inferred for a file if one of its records is invalid.
        return FileFacts(records=summary.records, unreadable=summary.find_problem())
    if summary.detail is None:
        return FileFacts()
    if summary.detail not in schemas:
        ddl = summary.detail.removeprefix(_DOUBT)
        if is_too_deep(ddl):
            return FileFacts(records=summary.records, unreadable=TOO_DEEP)
        kind = parse_variant_type(ddl)
        struct = kind if isinstance(kind, StructType) else StructType()
        is_doubtful = summary.detail.startswith(_DOUBT) and has_fractions(struct)
        is_doubtful = is_doubtful or has_type(struct, (VariantType,))
        schemas[summary.detail] = build_inferred_schema(struct), struct if is_doubtful else None
    schema, inferred = schemas[summary.detail]
    return FileFacts(schema, summary.records, inferred=inferred)


def _classify_csv_text(text: Column) -> Column:
    """Return the kind of a text; NULL for NULL."""

    def is_kept(kind: str) -> Column:
        return text.rlike(_NUMBER_TEXT) & text.try_cast(kind).cast("string").eqNullSafe(text)

    return (
        F.when(is_kept("int"), "int")
        .when(is_kept("long"), "long")
        .when(is_kept("double"), "double")
        .when(text.isin("true", "false"), "boolean")
        .when(text.isNotNull(), "string")
    )


def _choose_csv_type(kinds: Iterable[str]) -> str:
    """Return the type of a column from the kinds of its texts."""
    present_kinds = set(kinds)
    return next(
        (type_name for type_kinds, type_name in _CSV_TYPES if present_kinds <= type_kinds),
        "string",
    )
