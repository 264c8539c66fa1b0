"""Split of files by the values of fields before binning, as in NiFi's PartitionRecord.

Source: docs/semantics/merge_record.md, Partitions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import Column, functions as F
from pyspark.sql.types import StructType

from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.flowfile import FlowFile, flowfile_uuid
from airflow_merge_provider.core.merge_record.plan import NewFiles
from airflow_merge_provider.core.merge_record.schema import Schema
from airflow_merge_provider.jobs.merge_record.readers.formats import BLOCK, FILE, POSITION
from airflow_merge_provider.jobs.merge_record.readers.records import Records
from airflow_merge_provider.jobs.merge_record.readers.spark_types import spark_schema
from airflow_merge_provider.jobs.spark.exact_text import JSON_OPTIONS
from airflow_merge_provider.jobs.spark.sql import quote_column

PART = "__merge_part"
# The prefix of values that separate parts but do not become attributes: records, lists and maps.
_VALUE_MARK = "\0"
_NESTED_NAMES = {"struct", "array", "map", "variant"}


def part_key(struct: StructType, partition_by: Mapping[str, str]) -> Column:
    """Return the partition values of a record as JSON: equal for records of one part, NULL stays distinct."""
    values = [_read_value(struct, path) for path in partition_by.values()]
    return F.to_json(F.array(*values), {"ignoreNullFields": "false"})


def split_files(records: Records, arrivals: NewFiles, config: MergeRecordConfig) -> NewFiles:
    """Replace each file by its parts, in the order of their first records, with one Spark job per schema.

    An unreadable file is not split, because its parts are unknown; it fails on its own.
    """
    if not config.partition_by:
        return arrivals
    valid_files = [
        flowfile
        for flowfile in arrivals.flowfiles
        if not flowfile.unreadable and not flowfile.malformed and flowfile.records
    ]
    parts: dict[str, list[FlowFile]] = {}
    for key in dict.fromkeys(flowfile.schema for flowfile in valid_files):
        schema_files = {
            records.format_file(flowfile.uri): flowfile for flowfile in valid_files if flowfile.schema == key
        }
        for file_name, part_counts in _count_parts(
            records, schema_files, key, arrivals.schemas[key], config
        ).items():
            parts[schema_files[file_name].uuid] = list(
                _build_parts(schema_files[file_name], part_counts, config.partition_by)
            )
    flowfiles = [
        part
        for flowfile in arrivals.flowfiles
        for part in parts.get(
            flowfile.uuid,
            [replace(flowfile, unreadable=flowfile.unreadable or flowfile.malformed, malformed=None)],
        )
    ]
    return NewFiles(tuple(flowfiles), arrivals.schemas)


def _count_parts(
    records: Records, files: Mapping[str, FlowFile], key: str, schema: Schema, config: MergeRecordConfig
) -> dict[str, list[tuple[str, int]]]:
    """Return the key and record count of every part by file, in the order of their first records."""
    struct = spark_schema(schema)
    frame = records.read_records(key, schema, config.reader, [file.uri for file in files.values()])
    keyed = frame.withColumn(PART, part_key(struct, config.partition_by or {}))
    first_position = F.min(F.struct(BLOCK, POSITION)).alias("first")
    rows = keyed.groupBy(FILE, PART).agg(F.count(F.lit(1)).alias("records"), first_position)
    part_counts: dict[str, list[tuple[str, int]]] = {}
    for row in rows.orderBy(FILE, "first").toArrow().to_pylist():
        if row[FILE] in files:
            part_counts.setdefault(row[FILE], []).append((row[PART], row["records"]))
    return part_counts


def _build_parts(
    file: FlowFile, part_counts: list[tuple[str, int]], partition_by: Mapping[str, str]
) -> Iterator[FlowFile]:
    """Build a FlowFile for each part; its bytes are those of the file in proportion to its records."""
    for index, (key, records) in enumerate(part_counts):
        pairs = zip(partition_by, json.loads(key), strict=True)
        values = {name: text for name, text in pairs if text is not None and not text.startswith(_VALUE_MARK)}
        fragment = {
            "fragment.identifier": file.uuid,
            "fragment.index": str(index),
            "fragment.count": str(len(part_counts)),
        }
        yield replace(
            file,
            uuid=flowfile_uuid(file.uri, file.uuid, key),
            part=key,
            records=records,
            bytes=file.bytes * records // file.records,
            attributes={**file.attributes, **fragment, **values},
        )


def _read_value(struct: StructType, path: str) -> Column:
    """Return the value of a field as text, by its name or dotted path; NULL if the field does not exist."""
    value, kind = _find_field(struct, path)
    if kind is None:
        return F.lit(None).cast("string")
    if kind.typeName() in _NESTED_NAMES:
        return F.concat(F.lit(_VALUE_MARK), F.to_json(value, JSON_OPTIONS))
    return value.cast("string")


def _find_field(struct: StructType, path: str) -> tuple[Column, Any]:
    if path in struct.names:
        return quote_column(path), struct[path].dataType
    first, _, nested_path = path.partition(".")
    value, kind = (
        (quote_column(first), struct[first].dataType) if first in struct.names else (F.lit(None), None)
    )
    for name in nested_path.split(".") if nested_path else ():
        if not isinstance(kind, StructType) or name not in kind.names:
            return F.lit(None), None
        value, kind = value.getField(name), kind[name].dataType
    return value, kind
