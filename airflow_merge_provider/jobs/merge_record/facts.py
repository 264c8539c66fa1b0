"""Inspection of files: their number of records, their schema, and whether every record can be read.

One Spark job inspects all files, so that unreadable files are identified before anything is planned.
Source: docs/semantics/merge_record.md, Record counts and sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import functions as F

from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.flowfile import FlowFile, flowfile_uuid
from airflow_merge_provider.core.merge_record.plan import NewFiles
from airflow_merge_provider.core.merge_record.schema import Schema
from airflow_merge_provider.jobs.merge_record.files.listing import FileQueue, QueuedFile
from airflow_merge_provider.jobs.merge_record.files.storage import Storage
from airflow_merge_provider.jobs.merge_record.readers import containers, formats, gather
from airflow_merge_provider.jobs.merge_record.readers.containers import UnreadableError, describe_error
from airflow_merge_provider.jobs.merge_record.readers.file_readers import (
    ContainerReader,
    CsvColumnsReader,
    FileFacts,
    FileReader,
    JsonArraysReader,
    JsonLinesReader,
    SchemaReader,
    TypedReader,
)
from airflow_merge_provider.jobs.merge_record.readers.formats import FILE, find_reserved_name
from airflow_merge_provider.jobs.merge_record.readers.records import Records
from airflow_merge_provider.jobs.merge_record.readers.scan import FileGroup, inspect_files
from airflow_merge_provider.jobs.merge_record.readers.spark_types import spark_schema

_COLON = "its path contains a colon, which Hadoop does not support"
_COUNT = "record.count"
_OVERFULL = "a line has further text after its JSON object"
_NO_FIELDS = "its records have no fields, which only JSON formats support"
_FIELDLESS = ("json", "json-array")
_FOOTERS = {
    "parquet": containers.parquet_footer,
    "orc": containers.orc_footer,
    "avro": containers.avro_header,
}


def find_arrivals(
    records: Records, source: Storage, queue: FileQueue, config: MergeRecordConfig, now: int
) -> NewFiles:
    """Inspect the files of the queue and return them as FlowFiles in queue order, with their schemas.

    :param now: the start of the run, in microseconds; the arrival time if ``bin_age_from`` is ``first_seen``.
    """
    readable = [file for file in queue.files if file.wrong is None and ":" not in file.entry.name]
    is_whole = queue.is_whole and len(readable) == len(queue.files)
    facts = _find_facts(records, source, readable, config, is_whole=is_whole)
    flowfiles = []
    schemas = {}
    for file in queue.files:
        fact = facts.get(file.uri) or FileFacts(unreadable=file.wrong or _COLON)
        if reserved_name := find_reserved_name(fact.schema.names):
            fact = FileFacts(unreadable=fact.unreadable or f"the field name {reserved_name!r} is reserved")
        if fact.records and not fact.schema.fields and config.output["format"] not in _FIELDLESS:
            fact = replace(fact, unreadable=fact.unreadable or _NO_FIELDS)
        key = fact.schema.build_key(config.schema_identity)
        schemas[key] = fact.schema
        entry = file.entry
        flowfiles.append(
            FlowFile(
                uri=file.uri,
                uuid=flowfile_uuid(file.uri, entry.version),
                arrival=now if config.bin_age_from == "first_seen" else entry.modified,
                records=fact.records,
                bytes=entry.size if fact.size is None else fact.size,
                schema=key,
                version=entry.version,
                size=entry.size,
                attributes=file.attributes,
                unreadable=fact.unreadable,
                malformed=fact.malformed,
                unchecked=fact.unchecked,
                sidecar=file.sidecar,
            )
        )
    return NewFiles(tuple(flowfiles), schemas)


def check_files(
    records: Records, files: Sequence[FlowFile], schemas: Mapping[str, Schema], config: MergeRecordConfig
) -> dict[str, str]:
    """Validate files that were not validated on arrival; return the errors by FlowFile UUID."""
    groups = []
    for key in dict.fromkeys(file.schema for file in files):
        schema_files = [file for file in files if file.schema == key]
        uris = tuple(file.uri for file in schema_files)
        if config.reader["format"] in _FOOTERS:
            record_counts = {file.uri: file.records for file in schema_files}
            file_reader: FileReader = ContainerReader(config.reader, schemas[key], record_counts)
        else:
            file_reader = TypedReader(config.reader, schemas[key])
        groups.append(
            FileGroup(
                file_reader, uris, records.spool.find_locations(uris), sum(file.size for file in schema_files)
            )
        )
    facts = inspect_files(records, groups, config)
    broken = {}
    for file in files:
        fact = facts[file.uri]
        count_problem = f"it has {fact.records} records, but {file.records} are expected"
        problem = (
            fact.unreadable or fact.malformed or (count_problem if fact.records != file.records else None)
        )
        if problem:
            broken[file.uuid] = problem
    return broken


def _find_facts(
    records: Records,
    source: Storage,
    files: Sequence[QueuedFile],
    config: MergeRecordConfig,
    *,
    is_whole: bool,
) -> dict[str, FileFacts]:
    if not files:
        return {}
    facts, sizes = _check_packed(source, files, config)
    remaining_files = [file for file in files if file.uri not in facts]
    readers, driver_facts = _sort_files(source, remaining_files, config)
    facts |= driver_facts
    trusted = _read_trusted_counts(remaining_files, config)
    is_late = config.validate == "on_merge" and config.knows_schema
    groups: list[FileGroup] = []
    overfull: frozenset[str] = frozenset()
    if config.reader["format"] == "json" and not is_late:
        remaining_files = [file for file in remaining_files if file.uri not in trusted]
        groups, readers, overfull = _gather_lines(records, source, remaining_files, readers, config)
    for file_reader, uris in readers:
        pending_uris = tuple(uri for uri in uris if uri not in trusted)
        if isinstance(file_reader, SchemaReader):
            facts |= {uri: file_reader.build_late_fact(trusted[uri]) for uri in uris if uri in trusted}
        if is_late and isinstance(file_reader, ContainerReader):
            counts = file_reader.record_counts
            facts |= {uri: file_reader.build_late_fact(counts[uri]) for uri in pending_uris}
            continue
        records.spool.copy_files(source, pending_uris)
        if is_late and isinstance(file_reader, TypedReader):
            facts |= _count_records(records, file_reader, pending_uris)
        elif pending_uris:
            reads_folder = is_whole and len(pending_uris) == len(files)
            locations = (
                [records.spool.find_folder(source)]
                if reads_folder
                else records.spool.find_locations(pending_uris)
            )
            groups.append(
                FileGroup(file_reader, pending_uris, locations, sum(sizes[uri] for uri in pending_uris))
            )
    facts |= inspect_files(records, groups, config)
    facts |= {uri: _refuse_overfull(facts[uri], config) for uri in overfull}
    if config.size_basis != "uncompressed":
        return facts
    return {uri: replace(fact, size=sizes[uri]) for uri, fact in facts.items()}


def _gather_lines(
    records: Records,
    source: Storage,
    files: Sequence[QueuedFile],
    readers: list[tuple[FileReader, list[str]]],
    config: MergeRecordConfig,
) -> tuple[list[FileGroup], list[tuple[FileReader, list[str]]], frozenset[str]]:
    """Read the files of JSON lines that the driver reads faster than Spark does.

    :return: the groups of the gathered files, the readers of the remaining files with their URIs, and the
        URIs of files that have a line with further text after its object.
    """
    options, is_near = list(config.reader["options"]), records.spool.is_near()
    has_schema = config.reader["schema"] is not None
    worth = gather.is_worth_it(files, options, is_near=is_near, has_schema=has_schema)
    lines = gather.gather_objects(source, files) if worth else None
    if lines is None:
        return [], readers, frozenset()
    ((file_reader, uris),) = readers
    size = sum(file.entry.size for file in files)
    group = FileGroup(file_reader, tuple(lines.names), (), size, records.create_frame(lines))
    return [group], [(file_reader, [uri for uri in uris if uri not in lines.names])], lines.overfull


def _refuse_overfull(fact: FileFacts, config: MergeRecordConfig) -> FileFacts:
    """Mark a file that has a line with further text after its object, like one with an unparsable record."""
    if config.reader["schema"] is None:
        return replace(fact, unreadable=fact.unreadable or _OVERFULL)
    return replace(fact, malformed=fact.malformed or _OVERFULL)


def _check_packed(
    source: Storage, files: Sequence[QueuedFile], config: MergeRecordConfig
) -> tuple[dict[str, FileFacts], dict[str, int]]:
    """Read compressed files to their end, because a Spark job fails at the first truncated one.

    :return: the facts of unreadable files, and the size of every file in bytes, uncompressed if it was read.
    """
    sizes = {file.uri: file.entry.size for file in files}
    packed = {file.entry.name: file.uri for file in files if containers.is_packed(file.entry.name)}
    is_late = config.validate == "on_merge" and config.knows_schema
    if is_late and config.size_basis != "uncompressed":
        return {}, sizes
    facts = {}
    for name, length in containers.ask_files(source, list(packed), containers.measure_length).items():
        if isinstance(length, UnreadableError):
            facts[packed[name]] = FileFacts(unreadable=str(length))
        else:
            sizes[packed[name]] = length
    return facts, sizes


def _sort_files(
    source: Storage, files: Sequence[QueuedFile], config: MergeRecordConfig
) -> tuple[list[tuple[FileReader, list[str]]], dict[str, FileFacts]]:
    """Group files by the reader that inspects them.

    :return: the readers with the URIs of their files, and the facts of files that Spark need not inspect.
    """
    reader, word = config.reader, config.reader["format"]
    explicit = None if reader["schema"] is None else Schema.from_json(reader["schema"])
    if word in _FOOTERS:
        return _by_footer(source, files, reader, explicit)
    if word == "csv":
        return _by_header(source, files, reader, explicit)
    uris = [file.uri for file in files]
    if explicit is not None:
        return [(TypedReader(reader, explicit), uris)], {}
    return [(JsonArraysReader() if word == "json-array" else JsonLinesReader(reader), uris)], {}


def _by_footer(
    source: Storage, files: Sequence[QueuedFile], reader: Mapping[str, Any], explicit: Schema | None
) -> tuple[list[tuple[FileReader, list[str]]], dict[str, FileFacts]]:
    footers = containers.ask_files(source, [file.entry.name for file in files], _FOOTERS[reader["format"]])
    facts: dict[str, FileFacts] = {}
    schemas: dict[str, Schema] = {}
    counts: dict[str, dict[str, int]] = {}
    for file in files:
        answer = footers[file.entry.name]
        if isinstance(answer, UnreadableError):
            facts[file.uri] = FileFacts(unreadable=str(answer))
            continue
        schema, records = explicit or answer[0], answer[1]
        if problem := _find_wrong_fields(schema):
            facts[file.uri] = FileFacts(unreadable=problem)
            continue
        if not records:
            facts[file.uri] = FileFacts(schema)
            continue
        # The key includes the text of the schema: files with different texts stay in different groups, even
        # if they could be read together.
        key = schema.build_key("text")
        schemas[key] = schema
        counts.setdefault(key, {})[file.uri] = records
    return [
        (ContainerReader(reader, schemas[key], file_counts), list(file_counts))
        for key, file_counts in counts.items()
    ], facts


def _by_header(
    source: Storage, files: Sequence[QueuedFile], reader: Mapping[str, Any], explicit: Schema | None
) -> tuple[list[tuple[FileReader, list[str]]], dict[str, FileFacts]]:
    """Group CSV files by their header, because Spark binds columns by position."""
    options = formats.resolve_options(reader)
    has_header = options["header"].lower() == "true"
    names = [file.entry.name for file in files]
    lines = containers.ask_files(source, names, containers.first_line(options))
    facts: dict[str, FileFacts] = {}
    groups: dict[tuple[str, ...], list[str]] = {}
    for file in files:
        line = lines[file.entry.name]
        columns = line if has_header or isinstance(line, UnreadableError) else _number_columns(line)
        if problem := _wrong_header(columns, explicit, has_header=has_header):
            facts[file.uri] = FileFacts(unreadable=problem)
        elif not columns:
            facts[file.uri] = FileFacts(explicit or Schema())
        else:
            # Files without a header that share an explicit schema are read in the same way, whatever their
            # number of cells.
            groups.setdefault(columns if explicit is None else (), []).append(file.uri)
    return [
        (CsvColumnsReader(reader, columns) if explicit is None else TypedReader(reader, explicit), uris)
        for columns, uris in groups.items()
    ], facts


def _read_trusted_counts(files: Sequence[QueuedFile], config: MergeRecordConfig) -> dict[str, int]:
    """Return the record counts from the sidecars, by URI, if the configuration trusts them."""
    if not config.trust_record_count or not config.knows_schema:
        return {}
    texts = {file.uri: file.attributes.get(_COUNT, "") for file in files}
    return {uri: int(text) for uri, text in texts.items() if text.isascii() and text.isdigit()}


def _count_records(records: Records, file_reader: TypedReader, uris: Sequence[str]) -> dict[str, FileFacts]:
    """Count the records of files that are validated later, with as little parsing as possible."""
    if not uris:
        return {}
    frame = file_reader.read_rows(records.spark, records.spool.find_locations(uris))
    rows = frame.groupBy(FILE).agg(F.count(F.lit(1)).alias("records")).toArrow().to_pylist()
    record_counts = {row[FILE]: row["records"] for row in rows}
    return {uri: file_reader.build_late_fact(record_counts.get(records.format_file(uri), 0)) for uri in uris}


def _find_wrong_fields(schema: Schema) -> str | None:
    """Return why Spark cannot read records with these fields, or None."""
    if reserved_name := find_reserved_name(schema.names):
        return f"the field name {reserved_name!r} is reserved"
    try:
        spark_schema(schema)
    except Exception as error:  # noqa: BLE001 - any error in a file's own schema affects only this file
        return describe_error(error)
    return None


def _number_columns(line: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"_c{index}" for index in range(len(line)))


def _wrong_header(columns: Any, explicit: Schema | None, *, has_header: bool) -> str | None:
    """Return why a file's columns cannot be bound to names, or None."""
    if isinstance(columns, UnreadableError):
        return str(columns)
    if len(set(columns)) < len(columns):
        return "its header contains a column more than once"
    if reserved_name := find_reserved_name(columns):
        return f"the field name {reserved_name!r} is reserved"
    if has_header and not columns:
        return "it has no header"
    if has_header and explicit is not None and columns != explicit.names:
        return f"its header is {', '.join(columns)}, but the schema columns are {', '.join(explicit.names)}"
    return None
