"""Inspection of CSV files by their headers, before Spark reads their records.

Source: docs/semantics/merge_record.md, Formats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from airflow_merge_provider.core.file_options import find_option
from airflow_merge_provider.core.merge_record.config import FileFormat
from airflow_merge_provider.core.merge_record.schema import Schema
from airflow_merge_provider.jobs.merge_record.files.storage import Storage
from airflow_merge_provider.jobs.merge_record.readers import formats
from airflow_merge_provider.jobs.merge_record.readers.file_readers import (
    CsvColumnsReader,
    FileFacts,
    FileReader,
    TypedReader,
)
from airflow_merge_provider.jobs.merge_record.readers.formats import find_reserved_name
from airflow_merge_provider.jobs.merge_record.readers.scan import Records
from airflow_merge_provider.jobs.spark.files.csv_structure import CsvFile, find_repeated_name
from airflow_merge_provider.jobs.spark.files.file_problem import UnreadableError

SortedFiles = tuple[list[tuple[FileReader, list[str]]], dict[str, FileFacts]]


def sort_csv_files(
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
        if fact := _find_fact(file, columns, schema, has_header=has_header):
            facts[uri] = fact
            continue
        count = file.records if has_header or file.records is None else file.records + 1
        # Files without a header that share a schema are read in the same way, whatever their number of cells.
        groups.setdefault((columns if schema is None else (), file.line_end), {})[uri] = count
    return [
        (_build_reader(formats.set_line_end(reader, line_end), columns, schema, counts), list(counts))
        for (columns, line_end), counts in groups.items()
    ], facts


def _build_reader(
    reader: FileFormat,
    columns: tuple[str, ...],
    schema: Schema | None,
    counts: Mapping[str, int | None],
) -> FileReader:
    known_counts = {uri: count for uri, count in counts.items() if count is not None}
    if schema is None:
        return CsvColumnsReader(reader, columns, known_counts)
    return TypedReader(reader, schema, known_counts)


def _find_fact(
    file: CsvFile, columns: tuple[str, ...], schema: Schema | None, *, has_header: bool
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
    if problem := find_repeated_name(columns, is_case_sensitive=True):
        return problem
    if reserved_name := find_reserved_name(columns):
        return f"the field name {reserved_name!r} is reserved"
    if has_header and not columns:
        return "it has no header"
    if has_header and schema is not None and columns != schema.names:
        return f"its header is {', '.join(columns)}, but the schema columns are {', '.join(schema.names)}"
    return None
