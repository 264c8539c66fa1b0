"""How many records do the new files have, of which schema, and can every one of them be read.

All files of a kind are looked at in one Spark job; what cannot be read is known before anything is planned.
Source: merge_record spec §11.6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, functions as F
from pyspark.sql.types import StringType, StructField, StructType

from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.flowfile import FlowFile, flowfile_uuid
from airflow_merge_provider.core.merge_record.plan import Arrivals
from airflow_merge_provider.core.merge_record.schema import Schema
from airflow_merge_provider.jobs.merge_record import containers, formats
from airflow_merge_provider.jobs.merge_record.containers import UnreadableError
from airflow_merge_provider.jobs.merge_record.formats import BAD, FILE
from airflow_merge_provider.jobs.merge_record.listing import SIDECAR, Waiting
from airflow_merge_provider.jobs.merge_record.spark_types import inferred, spark_schema
from airflow_merge_provider.jobs.merge_record.storage import Storage
from airflow_merge_provider.jobs.sql import column

NOTHING = Schema()
_COLON = "Hadoop cannot read names with a colon"
_FOOTERS = {
    "parquet": containers.parquet_footer,
    "orc": containers.orc_footer,
    "avro": containers.avro_header,
}
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
SchemaOf = Callable[[Mapping[str, Any]], Schema]


@dataclass(frozen=True, slots=True)
class Fact:
    """What is known about the content of one file."""

    schema: Schema = NOTHING
    records: int = 0
    unreadable: str | None = None
    malformed: str | None = None


def arrivals(
    spark: SparkSession, source: Storage, files: Sequence[Waiting], config: MergeRecordConfig, now: int
) -> Arrivals:
    """Look into the files and give them as FlowFiles, in the order they are given in."""
    readable = [file for file in files if file.wrong is None and ":" not in file.entry.name]
    facts = _facts(spark, source, readable, config)
    flowfiles = []
    schemas = {}
    for file in files:
        fact = facts.get(file.uri) or Fact(unreadable=file.wrong or _COLON)
        key = fact.schema.key(config.schema_identity)
        schemas[key] = fact.schema
        entry = file.entry
        flowfiles.append(
            FlowFile(
                uri=file.uri,
                uuid=flowfile_uuid(file.uri, entry.version),
                arrival=now if config.bin_age_from == "first_seen" else entry.modified,
                records=fact.records,
                bytes=entry.size,
                schema=key,
                version=entry.version,
                size=entry.size,
                attributes=file.attributes,
                unreadable=fact.unreadable,
                malformed=fact.malformed,
            )
        )
    return Arrivals(tuple(flowfiles), schemas)


def _facts(
    spark: SparkSession, source: Storage, files: Sequence[Waiting], config: MergeRecordConfig
) -> dict[str, Fact]:
    if not files:
        return {}
    kind = config.reader["format"]
    explicit = None if config.reader["schema"] is None else Schema.of(config.reader["schema"])
    if kind in _FOOTERS:
        return _of_footers(source, files, kind, explicit)
    if kind == "csv":
        return _of_csv(spark, source, files, config.reader, explicit)
    uris = [file.uri for file in files]

    def counted(some: Sequence[str]) -> dict[str, Fact]:
        places = _texts_of(source, some)
        if explicit is not None:
            return _of_explicit(spark, config.reader, some, explicit, places)
        return _of_json(spark, some, places, is_array=kind == "json-array")

    return _without_broken(uris, counted)


def _texts_of(source: Storage, uris: Sequence[str]) -> Sequence[str]:
    """Give the folder when all of its files are asked for: Spark lists it faster than many names."""
    asked = set(uris)
    seen = (entry.name for entry in source.files() if not _is_skipped_by_spark(entry.name))
    others = (name for name in seen if not name.endswith(SIDECAR) and source.uri(name) not in asked)
    return uris if next(others, None) else [source.location]


def _is_skipped_by_spark(name: str) -> bool:
    return any(part.startswith((".", "_")) and "=" not in part for part in name.split("/"))


def _without_broken(
    uris: Sequence[str], count: Callable[[Sequence[str]], dict[str, Fact]]
) -> dict[str, Fact]:
    """Count again without each file of which Spark says that it cannot read it, such as a cut gz file."""
    rest = list(uris)
    facts: dict[str, Fact] = {}
    while rest:
        try:
            return facts | count(rest)
        except Exception as error:
            # Not always an error of pyspark's own: what fails while rows are fetched comes from py4j.
            broken = next((uri for uri in rest if _is_named(uri, str(error))), None)
            if broken is None:
                raise
            facts[broken] = Fact(unreadable="Spark cannot read it to its end")
            rest.remove(broken)
    return facts


def _is_named(uri: str, message: str) -> bool:
    names = {uri, formats.spark_file(uri)}
    names |= {name.replace("file:/", "file:///", 1) for name in names} | {f"file://{uri}"}
    return any(f"reading file {name}." in message for name in names)


def _of_footers(
    source: Storage, files: Sequence[Waiting], kind: str, explicit: Schema | None
) -> dict[str, Fact]:
    told = containers.told_by(source, [file.entry.name for file in files], _FOOTERS[kind])
    facts = {}
    for file in files:
        answer = told[file.entry.name]
        if isinstance(answer, UnreadableError):
            facts[file.uri] = Fact(unreadable=str(answer))
        else:
            schema, records = answer
            facts[file.uri] = Fact(explicit or schema, records)
    return facts


def _of_explicit(
    spark: SparkSession,
    reader: Mapping[str, Any],
    uris: Sequence[str],
    schema: Schema,
    texts: Sequence[str] = (),
) -> dict[str, Fact]:
    """Parse every record by the schema that is given, and count those that cannot be parsed.

    ``texts`` is where lines are read from, if not from the files one by one.
    """
    struct = spark_schema(schema)
    if reader["format"] == "json":
        # The reader itself would only look at the columns that are asked for.
        options = {**reader["options"], "mode": "PERMISSIVE", "columnNameOfCorruptRecord": BAD}
        parsed = F.from_json("value", formats.with_bad(struct), options)
        lines = formats.read_texts(spark, texts or uris, whole=False).where(F.trim("value") != "")
        wrong = parsed.getField(BAD).isNotNull()
        frame = lines.select(FILE, wrong.alias("wrong"), F.lit(0).alias("touched"))
    else:
        records = formats.read_leniently(spark, reader, struct, uris)
        wrong, touched = F.col(BAD).isNotNull(), _touched(struct)
        frame = records.select(FILE, wrong.alias("wrong"), touched.alias("touched"))
    return _counted(frame, uris, lambda _: schema, schema, F.max("touched").alias("touched"))


def _touched(struct: StructType) -> Column:
    """Look at every column, or a record with a bad one would count as good; maps have no hash."""
    columns = [column(name) for name in struct.names]
    has_map = "map<" in struct.simpleString()
    return F.length(F.to_json(F.struct(*columns))) if has_map else F.xxhash64(*columns)


def _of_json(
    spark: SparkSession, uris: Sequence[str], places: Sequence[str], *, is_array: bool
) -> dict[str, Fact]:
    """Parse every record, and infer a schema for each file from its own records."""
    texts = formats.read_texts(spark, places, whole=is_array).where(F.trim("value") != "")
    parsed = texts.select(FILE, "value", F.try_parse_json("value").alias("record"))
    if is_array:
        # A file may also hold a single object.
        members = F.coalesce(F.try_variant_get("record", "$", "array<variant>"), F.array("record"))
        parsed = parsed.select(FILE, F.explode(members).alias("record"))
        is_object = F.schema_of_variant("record").startswith("OBJECT")
    else:
        is_object = F.col("record").isNotNull() & F.ltrim("value").startswith("{")
    wrong = ~F.coalesce(is_object, F.lit(False))
    frame = parsed.select(FILE, wrong.alias("wrong"), F.when(~wrong, F.col("record")).alias("record"))
    return _counted(frame, uris, _from_variant(), Schema(), F.schema_of_variant_agg("record").alias("schema"))


def _counted(
    frame: DataFrame, uris: Sequence[str], schema_of: SchemaOf, empty: Schema, *more: Column
) -> dict[str, Fact]:
    """Count records and wrong ones by file, in one job; a file without records has the schema ``empty``."""
    counts = [F.count(F.lit(1)).alias("records"), F.count_if("wrong").alias("wrong")]
    rows = frame.groupBy(FILE).agg(*counts, *more).toArrow().to_pylist()
    found = {row[FILE]: row for row in rows}
    facts = {}
    for uri in uris:
        row = found.get(formats.spark_file(uri))
        if row is None:
            facts[uri] = Fact(empty)
        elif row["wrong"]:
            why = f"{row['wrong']} of {row['records']} cannot be parsed"
            # Whose schema has to be inferred from its records has none when one of them is no record.
            known = "touched" in row
            facts[uri] = Fact(empty, row["records"], *((None, why) if known else (why, None)))
        else:
            facts[uri] = Fact(schema_of(row), row["records"])
    return facts


def _from_variant() -> SchemaOf:
    """Give a reader of the types that Spark found, which parses each different text once."""
    known: dict[str, Schema] = {}

    def schema(row: Mapping[str, Any]) -> Schema:
        text = row["schema"]
        if text not in known:
            ddl = text.replace("OBJECT<", "STRUCT<")
            row_type = StructType.fromDDL(f"record {ddl}")
            struct = row_type["record"].dataType if isinstance(row_type, StructType) else None
            known[text] = inferred(struct) if isinstance(struct, StructType) else NOTHING
        return known[text]

    return schema


def _of_csv(
    spark: SparkSession,
    source: Storage,
    files: Sequence[Waiting],
    reader: Mapping[str, Any],
    explicit: Schema | None,
) -> dict[str, Fact]:
    """Look at the files of each header together: Spark binds columns by their position."""
    options = formats.options_of(reader)
    has_header = options["header"].lower() == "true"
    names = [file.entry.name for file in files]
    lines = containers.told_by(source, names, containers.first_line(options), unpacked=True)
    facts: dict[str, Fact] = {}
    groups: dict[tuple[str, ...], list[str]] = {}
    for file in files:
        line = lines[file.entry.name]
        columns = line if has_header or isinstance(line, UnreadableError) else _numbered(line)
        if wrong := _wrong_header(columns, explicit, has_header=has_header):
            facts[file.uri] = Fact(unreadable=wrong)
        elif not columns:
            facts[file.uri] = Fact(explicit or Schema())
        else:
            groups.setdefault(columns, []).append(file.uri)
    for columns, uris in groups.items():
        facts |= _without_broken(uris, partial(_of_header, spark, reader, columns, explicit))
    return facts


def _of_header(
    spark: SparkSession,
    reader: Mapping[str, Any],
    columns: tuple[str, ...],
    explicit: Schema | None,
    uris: Sequence[str],
) -> dict[str, Fact]:
    if explicit is not None:
        return _of_explicit(spark, reader, uris, explicit)
    places = [f"c{place}" for place in range(len(columns))]
    texts = StructType([StructField(name, StringType()) for name in columns])
    records = formats.read_leniently(spark, reader, texts, uris)
    pairs = list(zip(columns, places, strict=True))
    kinds = [F.collect_set(_kind(column(name))).alias(place) for name, place in pairs]
    frame = records.select("*", F.col(BAD).isNotNull().alias("wrong"))

    def schema(row: Mapping[str, Any]) -> Schema:
        return Schema(
            tuple({"name": name, "type": _type(row[place]), "nullable": True} for name, place in pairs)
        )

    nothing = schema(dict.fromkeys(places, ()))
    return _counted(frame, uris, schema, nothing, *kinds)


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


def _numbered(line: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"_c{place}" for place in range(len(line)))


def _wrong_header(columns: Any, explicit: Schema | None, *, has_header: bool) -> str | None:
    """Say why a file's columns cannot be bound to names, or None."""
    if isinstance(columns, UnreadableError):
        return str(columns)
    if len(set(columns)) < len(columns):
        return "its header names a column twice"
    if has_header and not columns:
        return "it has no header"
    if has_header and explicit is not None and columns != explicit.names:
        return f"its header is {', '.join(columns)}; the schema wants {', '.join(explicit.names)}"
    return None
