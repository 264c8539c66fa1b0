"""Writing of many bins with few Spark jobs: one output file for each bin, with its records in order.

Source: docs/semantics/merge_record.md, Writing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation, SparkSession, Window, functions as F

from airflow_merge_provider.core.errors import DataError, JobError, Problem
from airflow_merge_provider.core.file_options import find_option
from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.landing import FileEntry
from airflow_merge_provider.core.merge_record.plan import PlannedMerge
from airflow_merge_provider.core.merge_record.schema import Schema
from airflow_merge_provider.core.spark_conf import count_cores
from airflow_merge_provider.jobs.merge_record.files.storage import Storage
from airflow_merge_provider.jobs.merge_record.placements import (
    SEQ,
    SLOT,
    choose_read_schema,
    group_placements,
    read_placements,
)
from airflow_merge_provider.jobs.merge_record.projection.fields import describe_lost_value, project_fields
from airflow_merge_provider.jobs.merge_record.readers import formats
from airflow_merge_provider.jobs.merge_record.readers.formats import BLOCK, POSITION
from airflow_merge_provider.jobs.merge_record.readers.scan import Records
from airflow_merge_provider.jobs.merge_record.readers.spark_types import spark_schema
from airflow_merge_provider.jobs.spark.formats import spark_format
from airflow_merge_provider.jobs.spark.sql import quote_column
from airflow_merge_provider.jobs.spark.staging import create_dataframe

_LAST, _LINE = "__merge_last", "value"
# Spark names a part part-00000-<uuid>.c000.json, or <uuid>-c000.json; the UUID itself may end in c123.
_CODEC_SUFFIX = re.compile(r"[.-]c\d{3}(\.[^/]+)\Z")
_EMPTY_FILES = {"json": b"", "json-array": b"[]\n"}
_ORDER = (SEQ, BLOCK, POSITION)
# No reader uses the staging folder, so tasks may move their files into it before the job ends.
_COMMIT = {"mapreduce.fileoutputcommitter.algorithm.version": "2"}


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A merged file: the name that Spark gave it, the suffix of its final name, and its size in bytes."""

    name: str
    suffix: str
    size: int


def stage_merges(
    records: Records,
    merges: Sequence[PlannedMerge],
    schemas: Mapping[str, Schema],
    config: MergeRecordConfig,
    staging: Storage,
) -> dict[str, StagedFile]:
    """Write every merge to the staging folder, with one job for each output schema.

    :raises JobError: when other records came out than were counted; nothing has been published then.
    :raises DataError: when the format cannot hold a value.
    """
    groups: dict[str, list[PlannedMerge]] = {}
    for merge in merges:
        groups.setdefault(merge.schema.build_key(), []).append(merge)
    staged: dict[str, StagedFile] = {}
    for number, group in enumerate(groups.values()):
        full = [merge for merge in group if merge.records]
        empty = [merge for merge in group if not merge.records]
        if full:
            staged |= _write_merges(records, full, schemas, config, staging, f"write-{number}")
        if empty:
            staged |= _write_empty(records.spark, empty, config, staging, f"empty-{number}")
    return staged


def get_suffix(part: str) -> str:
    """Return the suffix of a part file, which denotes format and compression; ``.json`` for text files."""
    match = _CODEC_SUFFIX.search(part)
    return match[1].replace(".txt", ".json") if match else ""


def _write_merges(
    records: Records,
    merges: Sequence[PlannedMerge],
    schemas: Mapping[str, Schema],
    config: MergeRecordConfig,
    staging: Storage,
    folder: str,
) -> dict[str, StagedFile]:
    spark, schema = records.spark, merges[0].schema
    parts = []
    for key, placements in group_placements(merges).items():
        read_schema = choose_read_schema(records, placements, schemas[key], schema, config)
        frame = read_placements(records, placements, read_schema, config)
        # No record with such a value is planned: the counts differ if a file with one has changed.
        lost = describe_lost_value(read_schema, schema)
        fitting = frame if lost is None else frame.where(lost.isNull())
        parts.append(fitting.select(SLOT, *_ORDER, *project_fields(read_schema, schema)))
    frame = reduce(DataFrame.unionByName, parts)
    observed = Observation("merge_record")
    losses = _list_losses(schema, config)
    counts = (F.count_if(condition).alias(f"loss{number}") for number, (condition, _) in enumerate(losses))
    frame = frame.observe(observed, F.count(F.lit(1)).alias("records"), *counts)
    tasks = min(len(merges), 2 * count_cores())
    frame = frame.repartition(tasks, SLOT)
    if config.output.format == "json-array":
        frame = _as_arrays(spark, frame, schema, merges, config)
    elif not schema.fields:
        frame = frame.withColumn(_LINE, _build_json_text(schema, config))
    ordered = frame.sortWithinPartitions(SLOT, *_ORDER).drop(*_ORDER)
    is_text = config.output.format == "json-array" or not schema.fields
    _save_frame(ordered, spark, config, staging.build_uri(folder), is_text=is_text)
    metrics = observed.get
    problems = [problem for number, (_, problem) in enumerate(losses) if metrics[f"loss{number}"]]
    if problems:
        raise DataError.from_problems(problems)
    planned, written = sum(merge.records for merge in merges), metrics["records"]
    if written != planned:
        raise JobError(
            f"{planned} records were planned, but {written} were written: a source file changed meanwhile"
        )
    return _find_outputs(staging, folder, merges)


def _list_losses(schema: Schema, config: MergeRecordConfig) -> list[tuple[Column, Problem]]:
    """Return when readers of the written file would find another value, with the problem to report."""
    kind, options = config.output.format, config.output.options
    if kind != "csv" or len(schema.names) != 1 or find_option(options, "nullValue"):
        return []
    (name,) = schema.names
    message = "a record is NULL, which is an empty line in a CSV file of one column"
    hint = "set the option nullValue of the writer, such as 'NULL', or another format"
    return [(quote_column(name).isNull(), Problem(f"column {name}", "csv-null", message, hint))]


def _as_arrays(
    spark: SparkSession,
    frame: DataFrame,
    schema: Schema,
    merges: Sequence[PlannedMerge],
    config: MergeRecordConfig,
) -> DataFrame:
    """Convert the records of each bin to the lines of one JSON array."""
    slots = pa.array(range(len(merges)), pa.int32())
    last = create_dataframe(spark, pa.table({SLOT: slots, _LAST: [merge.records for merge in merges]}))
    position = F.row_number().over(Window.partitionBy(SLOT).orderBy(*_ORDER))
    text = _build_json_text(schema, config)
    prefix = F.when(position == 1, "[").otherwise("")
    suffix = F.when(position == F.col(_LAST), "]").otherwise(",")
    line = F.concat(prefix, text, suffix).alias(_LINE)
    return frame.join(F.broadcast(last), SLOT).select(SLOT, *_ORDER, line)


def _build_json_text(schema: Schema, config: MergeRecordConfig) -> Column:
    """Build the JSON text of a record, also for a schema without fields, which Spark cannot write."""
    if not schema.fields:
        return F.lit("{}")
    record = F.struct(*[quote_column(name) for name in schema.names])
    return F.to_json(record, formats.write_options(config.output))


def _save_frame(
    frame: DataFrame, spark: SparkSession, config: MergeRecordConfig, location: str, *, is_text: bool = False
) -> None:
    output = config.output
    # These options override session settings that could split the file of a bin.
    options = {**formats.write_options(output), "maxRecordsPerFile": "0", **_COMMIT}
    kind = "text" if is_text else spark_format(spark, output.format)
    writer = frame.write.format(kind).options(**options).mode("overwrite")
    (writer.partitionBy(SLOT) if SLOT in frame.columns else writer).save(location)


def _write_empty(
    spark: SparkSession,
    merges: Sequence[PlannedMerge],
    config: MergeRecordConfig,
    staging: Storage,
    folder: str,
) -> dict[str, StagedFile]:
    """Write a file without records for each merge: only the fields, an empty array, or an empty file."""
    kind = config.output.format
    staged_files: dict[str, StagedFile] = {}
    content = _EMPTY_FILES.get(kind)
    suffix = f".{kind.removesuffix('-array')}"
    if content is None:
        frame = spark.createDataFrame([], spark_schema(merges[0].schema)).coalesce(1)
        _save_frame(frame, spark, config, staging.build_uri(folder))
        (part,) = _list_parts(staging, folder)
        content, suffix = staging.read_file(part.name) or b"", get_suffix(part.name)
    for merge in merges:
        name = f"{folder}/empty-{merge.id}"
        staging.write_file(name, content)
        staged_files[merge.id] = StagedFile(name, suffix, len(content))
    return staged_files


def _find_outputs(staging: Storage, folder: str, merges: Sequence[PlannedMerge]) -> dict[str, StagedFile]:
    """Return the output file of each bin, by merge ID.

    :raises JobError: if Spark has not written exactly one file for each bin.
    """
    parts: dict[int, list[FileEntry]] = {}
    for part in _list_parts(staging, folder):
        slot = int(part.name.split(f"/{SLOT}=", 1)[1].split("/", 1)[0])
        parts.setdefault(slot, []).append(part)
    if [len(parts.get(slot, ())) for slot in range(len(merges))] != [1] * len(merges):
        raise JobError("Spark did not write exactly one file for each bin: set spark.speculation to false")
    return {
        merge.id: StagedFile(part.name, get_suffix(part.name), part.size)
        for slot, merge in enumerate(merges)
        for part in parts[slot]
    }


def _list_parts(staging: Storage, folder: str) -> Iterable[FileEntry]:
    return [
        entry
        for entry in staging.list_files()
        if entry.name.startswith(f"{folder}/") and entry.name.rpartition("/")[2].startswith("part-")
    ]
