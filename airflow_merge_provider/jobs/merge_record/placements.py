"""The records of planned merges with their bins, and the positions of their files there.

Source: docs/semantics/merge_record.md, Writing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, reduce

import pyarrow as pa
from pyspark.sql import DataFrame, functions as F

from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.flowfile import FlowFile
from airflow_merge_provider.core.merge_record.plan import PlannedMerge
from airflow_merge_provider.core.merge_record.schema import Schema
from airflow_merge_provider.jobs.merge_record.partitions import PART, part_key
from airflow_merge_provider.jobs.merge_record.projection.fields import (
    describe_lost_value,
    project_fields,
    read_as_texts,
)
from airflow_merge_provider.jobs.merge_record.projection.format_limits import (
    describe_unwritable_value,
)
from airflow_merge_provider.jobs.merge_record.readers.formats import FILE
from airflow_merge_provider.jobs.merge_record.readers.records import Records
from airflow_merge_provider.jobs.merge_record.readers.spark_types import spark_schema
from airflow_merge_provider.jobs.spark.files.value_problems import or_null
from airflow_merge_provider.jobs.spark.staging import create_dataframe

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
    if config.reader["schema"] is not None or config.reader["format"] not in ("json", "json-array"):
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
        unwritable = describe_unwritable_value(targets[target], config.output)
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
            describe_unwritable_value(target, config.output),
        )
        return any(problem is not None for problem in problems)

    targets = {merge.schema.build_key(): merge.schema for merge in merges}
    return [
        merge
        for merge in merges
        if any(is_narrowing(key, merge.schema.build_key()) for key in group_placements([merge]))
    ]
