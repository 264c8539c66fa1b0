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
from airflow_merge_provider.jobs.spark.sql import quote_column

PART = "__merge_part"
# The prefix of values that separate parts but do not become attributes: records, lists and maps.
_MARK = "\0"
_NESTED = {"struct", "array", "map", "variant"}


def part_key(struct: StructType, partition_by: Mapping[str, str]) -> Column:
    """Return the partition values of a record as JSON: equal for records of one part, NULL stays distinct."""
    values = [_read_value(struct, path) for path in partition_by.values()]
    return F.to_json(F.array(*values), {"ignoreNullFields": "false"})


def split_files(records: Records, whole: NewFiles, config: MergeRecordConfig) -> NewFiles:
    """Replace each file by its parts, in the order of their first records, with one Spark job per schema.

    An unreadable file is not split, because its parts are unknown; it fails on its own.
    """
    if not config.partition_by:
        return whole
    sound = [each for each in whole.flowfiles if not each.unreadable and not each.malformed and each.records]
    parts: dict[str, list[FlowFile]] = {}
    for key in dict.fromkeys(flowfile.schema for flowfile in sound):
        alike = {records.format_file(each.uri): each for each in sound if each.schema == key}
        for file, counted in _count_parts(records, alike, key, whole.schemas[key], config).items():
            parts[alike[file].uuid] = list(_build_parts(alike[file], counted, config.partition_by))
    flowfiles = [
        part
        for each in whole.flowfiles
        for part in parts.get(
            each.uuid, [replace(each, unreadable=each.unreadable or each.malformed, malformed=None)]
        )
    ]
    return NewFiles(tuple(flowfiles), whole.schemas)


def _count_parts(
    records: Records, files: Mapping[str, FlowFile], key: str, schema: Schema, config: MergeRecordConfig
) -> dict[str, list[tuple[str, int]]]:
    """Return the key and record count of every part by file, in the order of their first records."""
    struct = spark_schema(schema)
    frame = records.read_records(key, schema, config.reader, [each.uri for each in files.values()])
    keyed = frame.withColumn(PART, part_key(struct, config.partition_by or {}))
    place = F.min(F.struct(BLOCK, POSITION)).alias("first")
    rows = keyed.groupBy(FILE, PART).agg(F.count(F.lit(1)).alias("records"), place)
    found: dict[str, list[tuple[str, int]]] = {}
    for row in rows.orderBy(FILE, "first").toArrow().to_pylist():
        if row[FILE] in files:
            found.setdefault(row[FILE], []).append((row[PART], row["records"]))
    return found


def _build_parts(
    file: FlowFile, counted: list[tuple[str, int]], partition_by: Mapping[str, str]
) -> Iterator[FlowFile]:
    """Build a FlowFile for each part; its bytes are those of the file in proportion to its records."""
    for index, (key, records) in enumerate(counted):
        pairs = zip(partition_by, json.loads(key), strict=True)
        values = {name: text for name, text in pairs if text is not None and not text.startswith(_MARK)}
        fragment = {
            "fragment.identifier": file.uuid,
            "fragment.index": str(index),
            "fragment.count": str(len(counted)),
        }
        yield replace(
            file,
            uuid=flowfile_uuid(file.uri, file.version, key),
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
    if kind.typeName() in _NESTED:
        return F.concat(F.lit(_MARK), F.to_json(value))
    return value.cast("string")


def _find_field(struct: StructType, path: str) -> tuple[Column, Any]:
    if path in struct.names:
        return quote_column(path), struct[path].dataType
    first, _, rest = path.partition(".")
    value, kind = (
        (quote_column(first), struct[first].dataType) if first in struct.names else (F.lit(None), None)
    )
    for name in rest.split(".") if rest else ():
        if not isinstance(kind, StructType) or name not in kind.names:
            return F.lit(None), None
        value, kind = value.getField(name), kind[name].dataType
    return value, kind
