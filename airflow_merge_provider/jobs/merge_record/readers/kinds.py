"""What has to be seen of files of one kind to know their schema, their records, and what is wrong with them.

Source: merge_record spec §10, §11.1 and §11.6.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from pyspark.sql import Column, DataFrame, SparkSession, functions as F
from pyspark.sql.types import StringType, StructField, StructType

from airflow_merge_provider.core.merge_record.schema import Schema
from airflow_merge_provider.jobs.merge_record.readers import formats
from airflow_merge_provider.jobs.merge_record.readers.formats import BAD, FILE, PLACE
from airflow_merge_provider.jobs.merge_record.readers.spark_types import inferred, spark_schema, spark_type
from airflow_merge_provider.jobs.spark.expressions import cast_to
from airflow_merge_provider.jobs.spark.sql import column

NOTHING = Schema()
# What a text in a CSV file can be without changing when it is written again.
_INTEGER = "^-?(0|[1-9][0-9]{0,8})$"
_LONG = "^-?(0|[1-9][0-9]{0,17})$"
_DOUBLE = "^-?(0|[1-9][0-9]*)([.][0-9]+)?([eE][+-]?[0-9]+)?$"
_DIGITS = 17
_TYPES = (
    ({"int"}, "int"),
    ({"int", "long"}, "long"),
    ({"int", "long", "double"}, "double"),
    ({"boolean"}, "boolean"),
)


@dataclass(frozen=True, slots=True)
class Fact:
    """What is known about the content of one file; ``size`` is that of its content, unpacked."""

    schema: Schema = NOTHING
    records: int = 0
    unreadable: str | None = None
    malformed: str | None = None
    unchecked: bool | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """What Spark has seen of one file: its records, the wrong ones, and a text that its kind understands."""

    records: int = 0
    wrong: int = 0
    told: str | None = None

    @property
    def complaint(self) -> str:
        """Say what is wrong with the file."""
        return f"{self.wrong} of {self.records} cannot be parsed"


class Kind(Protocol):
    """Files that are looked into in one way."""

    def raw(self, spark: SparkSession, places: Sequence[str]) -> DataFrame:
        """Read what is looked into; this is what may be kept."""

    def seen(self, raw: DataFrame) -> DataFrame:
        """Sum up by file: ``FILE``, records, wrong, told."""

    def fact(self, uri: str, seen: Seen) -> Fact:
        """Understand what was seen of a file."""


@runtime_checkable
class Lasting(Kind, Protocol):
    """Files whose frame is worth keeping until their records are written."""

    # Whether one frame holds files of several schemas.
    is_shared: bool

    def parsed(self, raw: DataFrame, schema: Schema) -> DataFrame:
        """Give the records of sound files with one schema out of what was kept."""


class Known:
    """Files with a schema that is known before their records are looked at."""

    is_shared = False

    def __init__(self, reader: Mapping[str, Any], schema: Schema) -> None:
        self.schema = schema
        self._reader = reader

    def raw(self, spark: SparkSession, places: Sequence[str]) -> DataFrame:
        return formats.read_leniently(spark, self._reader, spark_schema(self.schema), places)

    def parsed(self, raw: DataFrame, schema: Schema) -> DataFrame:
        return raw

    def late(self, records: int) -> Fact:
        """Tell of a file that is looked into when its bin is merged."""
        return Fact(self.schema, records, unchecked=True)


class Typed(Known):
    """Texts with a schema that is given: every record is parsed by it."""

    def of_lines(self, lines: DataFrame) -> DataFrame:
        """Parse lines of JSON that have been gathered as ``raw`` does those that it reads."""
        options = {**self._reader["options"], "mode": "PERMISSIVE", "columnNameOfCorruptRecord": BAD}
        record = F.from_json("value", formats.with_bad(spark_schema(self.schema)), options).alias("record")
        return lines.select(record, *PLACE).select("record.*", *PLACE)

    def seen(self, raw: DataFrame) -> DataFrame:
        return _summed(raw, F.col(BAD).isNotNull(), _touched(self.schema))

    def fact(self, uri: str, seen: Seen) -> Fact:
        return Fact(self.schema, seen.records, malformed=seen.complaint if seen.wrong else None)

    def rows(self, spark: SparkSession, places: Sequence[str]) -> DataFrame:
        """Read a row for each record, parsed as little as can be."""
        if self._reader["format"] == "json":
            return formats.read_texts(spark, places, whole=False).where(F.trim("value") != "")
        return self.raw(spark, places)


class Footed(Known):
    """Parquet, ORC and Avro: every page has to give the records that the file's own account tells."""

    def __init__(self, reader: Mapping[str, Any], schema: Schema, told: Mapping[str, int]) -> None:
        super().__init__(reader, schema)
        self.told = told

    def seen(self, raw: DataFrame) -> DataFrame:
        return _summed(raw, F.lit(False), _touched(self.schema))

    def fact(self, uri: str, seen: Seen) -> Fact:
        records = self.told[uri]
        wrong = None if seen.records == records else f"it is damaged after {seen.records} of {records}"
        return Fact(self.schema, records, malformed=wrong)


class JsonLines:
    """Lines of JSON without a schema: one is inferred for each file from its own records."""

    is_shared = True

    def __init__(self, reader: Mapping[str, Any]) -> None:
        self._options = reader["options"]
        self._schemas: dict[str, Schema] = {}

    def raw(self, spark: SparkSession, places: Sequence[str]) -> DataFrame:
        return formats.read_texts(spark, places, whole=False).where(F.trim("value") != "")

    def of_lines(self, lines: DataFrame) -> DataFrame:
        """Take lines that have been gathered."""
        return lines

    def seen(self, raw: DataFrame) -> DataFrame:
        record = F.try_parse_json("value")
        is_object = record.isNotNull() & F.ltrim("value").startswith("{") & ~_goes_on(F.col("value"))
        return _inferring(raw.select(FILE, record.alias("record"), is_object.alias("is_object")))

    def fact(self, uri: str, seen: Seen) -> Fact:
        return _inferred(seen, self._schemas)

    def parsed(self, raw: DataFrame, schema: Schema) -> DataFrame:
        record = F.from_json("value", spark_schema(schema), dict(self._options) or None).alias("record")
        return raw.select(record, *PLACE).select("record.*", *PLACE)


class JsonArrays:
    """Files of one JSON array each without a schema: one is inferred as for lines.

    They are read again to be written: nothing is kept of them.
    """

    def __init__(self) -> None:
        self._schemas: dict[str, Schema] = {}

    def raw(self, spark: SparkSession, places: Sequence[str]) -> DataFrame:
        return formats.read_texts(spark, places, whole=True).where(F.trim("value") != "")

    def seen(self, raw: DataFrame) -> DataFrame:
        # A text with bytes that are none is taken here, and refused where it is read to be written.
        text = F.when(F.is_valid_utf8("value"), F.col("value"))
        whole = raw.select(FILE, F.try_parse_json(text).alias("record"))
        # A file may also hold a single object.
        members = F.coalesce(F.try_variant_get("record", "$", "array<variant>"), F.array("record"))
        records = whole.select(FILE, F.explode(members).alias("record"))
        is_object = F.schema_of_variant("record").startswith("OBJECT")
        return _inferring(records.select(FILE, "record", is_object.alias("is_object")))

    def fact(self, uri: str, seen: Seen) -> Fact:
        return _inferred(seen, self._schemas)


class Columns:
    """CSV files of one header without a schema: a type is inferred for each file and column."""

    is_shared = True

    def __init__(self, reader: Mapping[str, Any], names: Sequence[str]) -> None:
        self._reader = reader
        self._names = names

    def raw(self, spark: SparkSession, places: Sequence[str]) -> DataFrame:
        texts = StructType([StructField(name, StringType()) for name in self._names])
        return formats.read_leniently(spark, self._reader, texts, places)

    def seen(self, raw: DataFrame) -> DataFrame:
        kinds = F.array(*[F.collect_set(_kind(column(name))) for name in self._names])
        return _summed(raw, F.col(BAD).isNotNull(), F.to_json(kinds))

    def fact(self, uri: str, seen: Seen) -> Fact:
        if seen.wrong:
            return Fact(records=seen.records, unreadable=seen.complaint)
        found = json.loads(seen.told) if seen.told else [()] * len(self._names)
        pairs = zip(self._names, found, strict=True)
        fields = ({"name": name, "type": _type(kinds), "nullable": True} for name, kinds in pairs)
        return Fact(Schema(tuple(fields)), seen.records)

    def parsed(self, raw: DataFrame, schema: Schema) -> DataFrame:
        fields = (cast_to(column(field["name"]), spark_type(field["type"])) for field in schema.fields)
        return raw.select(
            *[each.alias(name) for each, name in zip(fields, schema.names, strict=True)], *PLACE
        )


def _summed(frame: DataFrame, wrong: Column, told: Column) -> DataFrame:
    counts = F.count(F.lit(1)).alias("records"), F.count_if(wrong).alias("wrong")
    return frame.groupBy(FILE).agg(*counts, told.cast("string").alias("told"))


def _touched(schema: Schema) -> Column:
    """Look at every column, or a record with a bad one would count as good; maps have no hash."""
    struct = spark_schema(schema)
    columns = [column(name) for name in struct.names]
    hashless = any(word in struct.simpleString() for word in ("map<", "variant"))
    return F.max(F.length(F.to_json(F.struct(*columns))) if hashless else F.xxhash64(*columns))


def _goes_on(line: Column) -> Column:
    """Tell whether a line goes on after its object, which Spark's parser does not say."""
    # Parsed once more only where the first closing brace is not the end of the line.
    within = F.json_array_length(F.concat(F.lit("["), line, F.lit("]")))
    return F.when(line.rlike(r"^[^}]*\}\s*$"), F.lit(False)).otherwise(~within.eqNullSafe(F.lit(1)))


def _inferring(records: DataFrame) -> DataFrame:
    """Sum up records, each a VARIANT that ought to be an object."""
    wrong = ~F.coalesce("is_object", F.lit(False))
    schema = F.schema_of_variant_agg(F.when(~wrong, F.col("record")))
    return _summed(records, wrong, schema)


def _inferred(seen: Seen, known: dict[str, Schema]) -> Fact:
    """Read the schema that Spark found, parsing each different text once."""
    if seen.wrong:
        # Whose schema has to be inferred from its records has none when one of them is no record.
        return Fact(records=seen.records, unreadable=seen.complaint)
    if seen.told is None:
        return Fact()
    if seen.told not in known:
        row = StructType.fromDDL(f"record {seen.told.replace('OBJECT<', 'STRUCT<')}")
        struct = row["record"].dataType if isinstance(row, StructType) else None
        known[seen.told] = inferred(struct) if isinstance(struct, StructType) else NOTHING
    return Fact(known[seen.told], seen.records)


def _kind(text: Column) -> Column:
    return (
        F.when(text.rlike(_INTEGER), "int")
        .when(text.rlike(_LONG), "long")
        .when(text.rlike(_DOUBLE) & (F.length(text) <= _DIGITS), "double")
        .when(F.lower(text).isin("true", "false"), "boolean")
        .when(text.isNotNull(), "string")
    )


def _type(kinds: Iterable[str]) -> str:
    found = set(kinds)
    return next((word for words, word in _TYPES if found and found <= words), "string")
