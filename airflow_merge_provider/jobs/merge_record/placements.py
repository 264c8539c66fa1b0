"""The records of planned merges with their bins, and the split of files by the values of fields before.

Source: docs/semantics/merge_record.md, Writing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, functions as F
from pyspark.sql.types import StructType

from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.flowfile import FlowFile, flowfile_uuid
from airflow_merge_provider.core.merge_record.plan import NewFiles, PlannedMerge
from airflow_merge_provider.core.merge_record.schema import Schema
from airflow_merge_provider.jobs.merge_record.projection.fields import (
    describe_lost_value,
    project_fields,
    read_as_texts,
)
from airflow_merge_provider.jobs.merge_record.projection.format_limits import (
    describe_unwritable_value,
)
from airflow_merge_provider.jobs.merge_record.readers.formats import BLOCK, FILE, POSITION
from airflow_merge_provider.jobs.merge_record.readers.scan import Records
from airflow_merge_provider.jobs.merge_record.readers.spark_types import spark_schema
from airflow_merge_provider.jobs.spark.exact_text import JSON_OPTIONS
from airflow_merge_provider.jobs.spark.files.value_problems import or_null
from airflow_merge_provider.jobs.spark.sql import quote_column
from airflow_merge_provider.jobs.spark.staging import create_dataframe

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


SLOT, SEQ = "__merge_slot", "__merge_seq"
_LOST_RECORD = "__merge_lost"
# A source, the number of its bin in this job, and its position in the bin.
Placement = tuple[FlowFile, int, int]


def group_placements(merges: Sequence[PlannedMerge]) -> dict[str, list[Placement]]:
    """Return the placements of the sources that have records, by the keys of their schemas."""
    placements: dict[str, list[Placement]] = {}
    for slot, merge in enumerate(merges):
        for seq, source in enumerate(merge.sources):
            if source.records:
                placements.setdefault(source.schema, []).append((source, slot, seq))
    return placements


def choose_read_schema(
    records: Records,
    placements: Sequence[Placement],
    schema: Schema,
    target: Schema,
    config: MergeRecordConfig,
) -> Schema:
    """Return the schema by which sources are read for a merged file.

    It is another one than that of the sources if values of JSON become texts.
    """
    if config.reader.schema is not None or config.reader.format not in ("json", "json-array"):
        return schema
    read_schema = read_as_texts(schema, target)
    if read_schema != schema:
        records.release_files(source.uri for source, _, _ in placements)
    return read_schema


def read_placements(
    records: Records, placements: Sequence[Placement], schema: Schema, config: MergeRecordConfig
) -> DataFrame:
    """Read all sources of one schema at once, and add to each record its bin and its position there."""
    rows = [(records.format_file(source.uri), source.part, slot, seq) for source, slot, seq in placements]
    uris = list(dict.fromkeys(source.uri for source, _, _ in placements))
    names = (FILE, PART, SLOT, SEQ)
    kinds = (pa.string(), pa.string(), pa.int32(), pa.int32())
    columns = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
    positions = create_dataframe(records.spark, pa.table(columns, names=list(names)))
    frame = records.read_records(placements[0][0].schema, schema, config.reader, uris)
    on = [FILE]
    if config.partition_by:
        frame = frame.withColumn(PART, part_key(spark_schema(schema), config.partition_by))
        on.append(PART)
    else:
        positions = positions.drop(PART)
    return frame.join(F.broadcast(positions), on)


def find_lost_values(
    records: Records,
    merges: Sequence[PlannedMerge],
    schemas: Mapping[str, Schema],
    config: MergeRecordConfig,
) -> dict[str, str]:
    """Return a value of each FlowFile that its merged file cannot hold, by UUID, with one Spark job.

    :param merges: those of ``list_narrowing_merges``.
    """
    targets = {merge.schema.build_key(): merge.schema for merge in merges}
    placed: dict[tuple[str, str], list[Placement]] = {}
    for key, placements in group_placements(merges).items():
        for placement in placements:
            placed.setdefault((key, merges[placement[1]].schema.build_key()), []).append(placement)
    frames = []
    for (key, target), placements in placed.items():
        schema = choose_read_schema(records, placements, schemas[key], targets[target], config)
        frame = read_placements(records, placements, schema, config)
        lost = or_null(describe_lost_value(schema, targets[target]))
        fields = project_fields(schema, targets[target])
        unwritable = describe_unwritable_value(targets[target], config)
        frame = frame.select(SLOT, SEQ, lost.alias(_LOST_RECORD), *fields)
        problem = F.coalesce(_LOST_RECORD, or_null(unwritable))
        frames.append(
            frame.groupBy(SLOT, SEQ)
            .agg(F.min(problem).alias(_LOST_RECORD))
            .where(f"{_LOST_RECORD} IS NOT NULL")
        )
    rows = reduce(DataFrame.unionAll, frames).toArrow().to_pylist()
    return {merges[row[SLOT]].sources[row[SEQ]].uuid: row[_LOST_RECORD] for row in rows}


def list_narrowing_merges(
    merges: Sequence[PlannedMerge], schemas: Mapping[str, Schema], config: MergeRecordConfig
) -> list[PlannedMerge]:
    """Return the merges whose files do not hold every value of their sources."""

    @cache
    def is_narrowing(key: str, target_key: str) -> bool:
        schema, target = schemas[key], targets[target_key]
        is_same = schema.fields == target.fields
        problems = (
            None if is_same else describe_lost_value(schema, target),
            describe_unwritable_value(target, config),
        )
        return any(problem is not None for problem in problems)

    targets = {merge.schema.build_key(): merge.schema for merge in merges}
    return [
        merge
        for merge in merges
        if any(is_narrowing(key, merge.schema.build_key()) for key in group_placements([merge]))
    ]
