"""Inspection of files: their number of records, their schema, and whether every record can be read.

One Spark job inspects all files, so that unreadable files are identified before anything is planned.
Source: docs/semantics/merge_record.md, Record counts and sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from pyspark.sql import functions as F
from pyspark.sql.types import StructType, VariantType

from airflow_merge_provider.core.file_options import find_option
from airflow_merge_provider.core.merge_record.config import FileFormat, MergeRecordConfig
from airflow_merge_provider.core.merge_record.flowfile import FlowFile
from airflow_merge_provider.core.merge_record.plan import NewFiles
from airflow_merge_provider.core.merge_record.schema import Schema, find_unwritable_field, replace_void
from airflow_merge_provider.jobs.merge_record.files.listing import FileQueue, QueuedFile
from airflow_merge_provider.jobs.merge_record.files.storage import Storage
from airflow_merge_provider.jobs.merge_record.readers import containers, formats, gather
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
from airflow_merge_provider.jobs.merge_record.readers.json_numbers import (
    build_lossy_finder,
    build_mixture_finder,
    has_fraction,
)
from airflow_merge_provider.jobs.merge_record.readers.scan import FileGroup, Records, inspect_files
from airflow_merge_provider.jobs.merge_record.readers.spark_types import (
    TOO_DEEP,
    build_inferred_schema,
    describe_fieldless_record,
    find_fieldless_record,
    find_repeated_name,
    is_too_deep,
    spark_schema,
)
from airflow_merge_provider.jobs.spark.files import csv_structure
from airflow_merge_provider.jobs.spark.files.file_problem import UnreadableError, describe_damage
from airflow_merge_provider.jobs.spark.files.raw_texts import build_row_finder, find_cut_end
from airflow_merge_provider.jobs.spark.text_values import has_type

SortedFiles = tuple[list[tuple[FileReader, list[str]]], dict[str, FileFacts]]
_COLON = "its path contains a colon, which Hadoop does not support (rename it)"
_COUNT = "record.count"
_RESERVED = "the field name {!r} is reserved (rename the field)"
_PACKED = "Spark rounds numbers of JSON arrays that are compressed so (decompress it, or write JSON lines)"
# Compressions that Spark reads and Python does not.
_SPARK_ONLY_CODECS = (".deflate", ".snappy", ".lz4", ".zst")
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
            fact = FileFacts(unreadable=fact.unreadable or _RESERVED.format(reserved_name))
        if (fact.records or fact.schema.fields) and config.output.schema is None:
            unwritable = find_unwritable_field(fact.schema, config.output.format)
            fact = replace(fact, unreadable=fact.unreadable or unwritable)
        key = fact.schema.build_key(config.schema_identity)
        schemas[key] = fact.schema
        entry = file.entry
        flowfiles.append(
            FlowFile(
                uri=file.uri,
                uuid=file.uuid,
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
    records: Records,
    source: Storage,
    files: Sequence[FlowFile],
    schemas: Mapping[str, Schema],
    config: MergeRecordConfig,
) -> dict[str, str]:
    """Validate files that were not validated on arrival; return the errors by FlowFile UUID."""
    groups: list[FileGroup] = []
    facts: dict[str, FileFacts] = {}
    for key in dict.fromkeys(file.schema for file in files):
        schema_files = [file for file in files if file.schema == key]
        key_groups, key_facts = _group_late_files(records, source, schema_files, schemas[key], config)
        groups += key_groups
        facts |= key_facts
    facts |= inspect_files(records, groups, config)
    facts |= _refuse_row_tags(source, facts, config)
    broken = {}
    for file in files:
        fact = facts[file.uri]
        count_problem = (
            f"it has {fact.records} records, but {file.records} are expected "
            f"(correct the attribute {_COUNT}, or the file)"
        )
        problem = (
            fact.unreadable or fact.malformed or (count_problem if fact.records != file.records else None)
        )
        if problem:
            broken[file.uuid] = problem
    return broken


def _group_late_files(
    records: Records,
    source: Storage,
    files: Sequence[FlowFile],
    schema: Schema,
    config: MergeRecordConfig,
) -> tuple[list[FileGroup], dict[str, FileFacts]]:
    """Return files of one schema in groups that are validated together, and the facts of other files."""
    reader, sizes = config.reader, {file.uri: file.size for file in files}
    readers: list[tuple[FileReader, list[str]]] = [(TypedReader(reader, schema), list(sizes))]
    if reader.format in _FOOTERS:
        counts = {file.uri: file.records for file in files}
        readers = [(ContainerReader(reader, schema, counts), list(sizes))]
    facts: dict[str, FileFacts] = {}
    if reader.format == "csv":
        readers, facts = _sort_csv_files(records, source, sizes, reader, schema)
    return [
        FileGroup(kind, tuple(uris), records.spool.find_locations(uris), sum(sizes[uri] for uri in uris))
        for kind, uris in readers
    ], facts


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
    facts |= _refuse_packed_documents(records, source, files, config)
    remaining_files = [file for file in files if file.uri not in facts]
    readers, driver_facts = _sort_files(records, source, remaining_files, config)
    facts |= driver_facts
    trusted = _read_trusted_counts(remaining_files, config)
    is_late = config.validate == "on_merge" and config.knows_schema
    groups: list[FileGroup] = []
    if config.reader.format == "json" and not is_late:
        remaining_files = [file for file in remaining_files if file.uri not in trusted]
        groups, readers = _gather_lines(records, source, remaining_files, readers, config)
    for file_reader, uris in readers:
        pending_uris = tuple(uri for uri in uris if uri not in trusted)
        if isinstance(file_reader, SchemaReader):
            facts |= {uri: file_reader.build_late_fact(trusted[uri]) for uri in uris if uri in trusted}
            counts = file_reader.record_counts if is_late else {}
            facts |= {uri: file_reader.build_late_fact(counts[uri]) for uri in pending_uris if uri in counts}
            pending_uris = tuple(uri for uri in pending_uris if uri not in counts)
        records.copy_files(source, pending_uris, config.reader)
        if is_late and isinstance(file_reader, TypedReader):
            facts |= _count_records(records, file_reader, pending_uris)
        elif pending_uris:
            reads_folder = is_whole and len(pending_uris) == len(files) and not records.spool.has_unpacked
            locations = (
                [records.spool.find_folder(source)]
                if reads_folder
                else records.spool.find_locations(pending_uris)
            )
            groups.append(
                FileGroup(file_reader, pending_uris, locations, sum(sizes[uri] for uri in pending_uris))
            )
    facts |= inspect_files(records, groups, config, partial(_settle_schemas, records, source, config))
    facts |= _inspect_refused(records, source, groups, facts, config)
    facts |= _refuse_row_tags(source, facts, config)
    facts |= _refuse_cut_files(source, facts, config)
    if config.size_basis != "uncompressed":
        return facts
    return {uri: replace(fact, size=sizes[uri]) for uri, fact in facts.items()}


def _settle_schemas(
    records: Records, source: Storage, config: MergeRecordConfig, facts: dict[str, FileFacts]
) -> dict[str, FileFacts]:
    """Return the facts of files, with decimals instead of doubles for the numbers of JSON that need them.

    A file with numbers, lists or records beside texts is read again, because its parsed records have other
    texts of them.
    """
    settled = dict(facts) | _refuse_mixtures(source, config, facts)
    doubtful = {
        uri.removeprefix(f"{source.location}/"): uri
        for uri, fact in settled.items()
        if fact.inferred is not None
    }
    find_lossy = build_lossy_finder(is_array=config.reader.format == "json-array")
    for name, lossy in containers.ask_files(source, list(doubtful), find_lossy).items():
        uri = doubtful[name]
        fact = facts[uri]
        struct = fact.inferred or StructType()
        try:
            if isinstance(lossy, UnreadableError):
                raise lossy
            schema = build_inferred_schema(struct, lossy)
            settled[uri] = replace(fact, schema=schema, inferred=None)
            if has_type(struct, (VariantType,)):
                records.copy_files(source, [uri], config.reader)
                records.release_files([uri])
        except UnreadableError as error:
            settled[uri] = FileFacts(records=fact.records, unreadable=str(error))
    return {uri: replace(fact, schema=_name_void(fact.schema, config)) for uri, fact in settled.items()}


def _refuse_mixtures(
    source: Storage, config: MergeRecordConfig, facts: Mapping[str, FileFacts]
) -> dict[str, FileFacts]:
    """Return the facts of JSON files with a field of several types, unless the user asks for its text."""
    if config.schema_merge == "union" or config.output.schema is not None:
        return {}
    mixed = {
        uri.removeprefix(f"{source.location}/"): uri
        for uri, fact in facts.items()
        if fact.inferred is not None and has_type(fact.inferred, (VariantType,))
    }
    find_mixture = build_mixture_finder(is_array=config.reader.format == "json-array")
    problems = containers.ask_files(source, list(mixed), find_mixture)
    return {
        mixed[name]: FileFacts(records=facts[mixed[name]].records, unreadable=str(problem))
        for name, problem in problems.items()
        if problem is not None
    }


def _name_void(schema: Schema, config: MergeRecordConfig) -> Schema:
    """Return a schema in which fields without values have a type, unless it comes from other files."""
    if config.reader.schema is not None or config.defragment or config.schema_merge == "union":
        return schema
    # The metadata of Parquet says int.
    return replace_void(schema, "int" if config.reader.format == "parquet" else "string")


def _gather_lines(
    records: Records,
    source: Storage,
    files: Sequence[QueuedFile],
    readers: list[tuple[FileReader, list[str]]],
    config: MergeRecordConfig,
) -> tuple[list[FileGroup], list[tuple[FileReader, list[str]]]]:
    """Read the files of JSON lines that the driver reads faster than Spark does.

    :return: the groups of the gathered files, and the readers of the remaining files with their URIs.
    """
    options, is_near = list(config.reader.options), records.spool.is_near()
    fields = config.reader.fields
    schema = None if fields is None else spark_schema(fields)
    worth = gather.is_worth_it(files, options, is_near=is_near, has_schema=schema is not None)
    lines = gather.gather_objects(source, files, schema) if worth else None
    if lines is None:
        return [], readers
    ((file_reader, uris),) = readers
    size = sum(file.entry.size for file in files)
    group = FileGroup(file_reader, tuple(lines.names), (), size, records.create_frame(lines))
    return [group], [(file_reader, [uri for uri in uris if uri not in lines.names])]


def _inspect_refused(
    records: Records,
    source: Storage,
    groups: Sequence[FileGroup],
    facts: Mapping[str, FileFacts],
    config: MergeRecordConfig,
) -> dict[str, FileFacts]:
    """Inspect gathered files with a line that Spark refuses again, as files, of which each text is exact."""
    refused = []
    for group in groups:
        uris = tuple(uri for uri in group.uris if facts[uri].malformed)
        if group.lines is not None and uris:
            records.copy_files(source, uris, config.reader)
            records.release_files(uris)
            refused.append(FileGroup(group.kind, uris, records.spool.find_locations(uris), group.size))
    return inspect_files(records, refused, config)


def _refuse_cut_files(
    source: Storage, facts: Mapping[str, FileFacts], config: MergeRecordConfig
) -> dict[str, FileFacts]:
    """Return the facts of XML files without their ends, of which Spark reads the records before."""
    if config.reader.format != "xml":
        return {}
    names = {
        uri.removeprefix(f"{source.location}/"): uri for uri, fact in facts.items() if not fact.unreadable
    }
    problems = containers.ask_files(source, list(names), find_cut_end)
    return {
        names[name]: FileFacts(unreadable=str(text)) for name, text in problems.items() if text is not None
    }


def _refuse_row_tags(
    source: Storage, facts: Mapping[str, FileFacts], config: MergeRecordConfig
) -> dict[str, FileFacts]:
    """Return the facts of XML files in which Spark finds no record because no element has this name."""
    if config.reader.format != "xml":
        return {}
    empty = {
        uri.removeprefix(f"{source.location}/"): uri
        for uri, fact in facts.items()
        if not fact.records and not fact.unreadable and not fact.malformed
    }
    find_rows = build_row_finder(config.reader.options)
    problems = containers.ask_files(source, list(empty), find_rows)
    return {
        empty[name]: FileFacts(unreadable=str(problem))
        for name, problem in problems.items()
        if problem is not None
    }


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


def _refuse_packed_documents(
    records: Records, source: Storage, files: Sequence[QueuedFile], config: MergeRecordConfig
) -> dict[str, FileFacts]:
    """Return the facts of compressed JSON arrays whose numbers Spark does not keep.

    A Spark on this machine reads decompressed copies, if Python can decompress the files.
    """
    if not formats.needs_plain_files(config.reader):
        return {}
    names = {file.entry.name: file.uri for file in files}
    refused = [name for name in names if name.endswith(_SPARK_ONLY_CODECS)]
    if not records.spool.is_near():
        packed = [name for name in names if containers.is_packed(name)]
        answers = containers.ask_files(source, packed, has_fraction)
        refused += [name for name, answer in answers.items() if answer is True]
    return {names[name]: FileFacts(unreadable=_PACKED) for name in refused}


def _sort_files(
    records: Records, source: Storage, files: Sequence[QueuedFile], config: MergeRecordConfig
) -> SortedFiles:
    """Group files by the reader that inspects them.

    :return: the readers with the URIs of their files, and the facts of files that Spark need not inspect.
    """
    reader, word = config.reader, config.reader.format
    explicit = reader.fields
    if word in _FOOTERS:
        return _by_footer(source, files, config, explicit)
    uris = [file.uri for file in files]
    if word == "csv":
        return _sort_csv_files(records, source, uris, reader, explicit)
    if explicit is not None:
        return [(TypedReader(reader, explicit), uris)], {}
    return [(JsonArraysReader() if word == "json-array" else JsonLinesReader(reader), uris)], {}


def _sort_csv_files(
    records: Records, source: Storage, uris: Iterable[str], reader: FileFormat, schema: Schema | None
) -> SortedFiles:
    """Group CSV files by header and line end, because Spark binds columns by position.

    :param schema: the schema of the reader; None if it is inferred.
    :return: the readers with the URIs of their files, and the facts of files that Spark need not inspect.
    """
    has_header = find_option(formats.read_options(reader), "header").lower() == "true"
    facts: dict[str, FileFacts] = {}
    groups: dict[tuple[tuple[str, ...], str], dict[str, int | None]] = {}
    for uri, file in records.scan_csv(source, uris, reader, is_whole=True).items():
        if isinstance(file, UnreadableError):
            facts[uri] = FileFacts(unreadable=str(file))
            continue
        columns = file.cells if has_header else tuple(f"_c{index}" for index in range(len(file.cells)))
        if fact := _find_csv_fact(file, columns, schema, has_header=has_header):
            facts[uri] = fact
            continue
        count = file.records if has_header or file.records is None else file.records + 1
        # Files without a header that share a schema are read in the same way, whatever their number of cells.
        groups.setdefault((columns if schema is None else (), file.line_end), {})[uri] = count
    return [
        (_build_csv_reader(formats.set_line_end(reader, line_end), columns, schema, counts), list(counts))
        for (columns, line_end), counts in groups.items()
    ], facts


def _build_csv_reader(
    reader: FileFormat,
    columns: tuple[str, ...],
    schema: Schema | None,
    counts: Mapping[str, int | None],
) -> FileReader:
    known_counts = {uri: count for uri, count in counts.items() if count is not None}
    if schema is None:
        return CsvColumnsReader(reader, columns, known_counts)
    return TypedReader(reader, schema, known_counts)


def _find_csv_fact(
    file: csv_structure.CsvFile, columns: tuple[str, ...], schema: Schema | None, *, has_header: bool
) -> FileFacts | None:
    """Return the facts of a file whose records need not or cannot be read, or None."""
    if problem := _find_wrong_header(columns, schema, has_header=has_header):
        return FileFacts(unreadable=problem)
    if file.problem:
        return (
            FileFacts(unreadable=file.problem)
            if schema is None
            else FileFacts(schema, malformed=file.problem)
        )
    return None if columns else FileFacts(schema or Schema())


def _find_wrong_header(columns: tuple[str, ...], schema: Schema | None, *, has_header: bool) -> str | None:
    """Return why a file's columns cannot be bound to names, or None."""
    if problem := csv_structure.find_repeated_name(columns, is_case_sensitive=True):
        return problem
    if reserved_name := find_reserved_name(columns):
        return _RESERVED.format(reserved_name)
    if has_header and not columns:
        return "it has no header (write the names of its columns in its first line, or set header to false)"
    if has_header and schema is not None and columns != schema.names:
        return (
            f"its header is {', '.join(columns)}, but the schema columns are {', '.join(schema.names)} "
            "(write these, or correct the schema of the reader)"
        )
    return None


def _by_footer(
    source: Storage, files: Sequence[QueuedFile], config: MergeRecordConfig, explicit: Schema | None
) -> SortedFiles:
    reader = config.reader
    footers = containers.ask_files(source, [file.entry.name for file in files], _FOOTERS[reader.format])
    facts: dict[str, FileFacts] = {}
    schemas: dict[str, Schema] = {}
    counts: dict[str, dict[str, int]] = {}
    for file in files:
        answer = footers[file.entry.name]
        if isinstance(answer, UnreadableError):
            facts[file.uri] = FileFacts(unreadable=str(answer))
            continue
        schema, records = explicit or _name_void(answer[0], config), answer[1]
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
        return _RESERVED.format(reserved_name)
    try:
        struct = spark_schema(schema)
    except Exception as error:  # noqa: BLE001 - any error in a file's own schema affects only this file
        return describe_damage("Spark cannot read its schema", error)
    if (repeated := find_repeated_name(struct)) is not None:
        return f"it has the field {repeated!r} more than once (write it under two names)"
    if (path := find_fieldless_record(struct)) is not None:
        return describe_fieldless_record(path)
    return TOO_DEEP if is_too_deep(struct.simpleString()) else None
