"""Inspection of files of all formats in one Spark job; the records are parsed once and cached for writing."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

import pyarrow as pa
from pyspark.errors import AnalysisException, IllegalArgumentException, NumberFormatException
from pyspark.sql import DataFrame, SparkSession, functions as F

from airflow_merge_provider.core.merge_record.config import FileFormat, MergeRecordConfig
from airflow_merge_provider.core.merge_record.schema import Schema
from airflow_merge_provider.jobs.merge_record.files.local_copies import LocalCopies
from airflow_merge_provider.jobs.merge_record.files.storage import Storage
from airflow_merge_provider.jobs.merge_record.readers import formats
from airflow_merge_provider.jobs.merge_record.readers.containers import ask_files, is_packed
from airflow_merge_provider.jobs.merge_record.readers.file_readers import (
    CachedReader,
    FileFacts,
    FileReader,
    FileSummary,
    JsonLinesReader,
    TypedReader,
)
from airflow_merge_provider.jobs.merge_record.readers.formats import FILE, PLACE
from airflow_merge_provider.jobs.merge_record.readers.gather import GatheredLines
from airflow_merge_provider.jobs.spark.causes import OF_A_FILE, list_causes
from airflow_merge_provider.jobs.spark.errors import describe_unknown_error
from airflow_merge_provider.jobs.spark.files.csv_structure import CsvFile, CsvScanner
from airflow_merge_provider.jobs.spark.files.file_problem import UnreadableError, describe_spark_error
from airflow_merge_provider.jobs.spark.sql import quote_column
from airflow_merge_provider.jobs.spark.staging import create_dataframe

# A frame is cached up to this size of its files, in bytes; larger ones are parsed again.
_MOST_KEPT = 1 << 30
_ONCE = "__merge_once"
Parse = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True)
class _CachedFrame:
    """The files of one schema in a cached frame; ``is_shared`` if it also holds files of other schemas."""

    uris: frozenset[str]
    raw: DataFrame
    parse: Parse
    is_shared: bool


class Records:
    """The records of the files that a run reads; ``close`` releases the cached frames.

    ``log_line`` prints a line to the log of the run.
    """

    def __init__(self, spark: SparkSession, log_line: Callable[[str], object] = str) -> None:
        self.spark = spark
        self._log_line = log_line
        self.spool = LocalCopies(spark)
        self._kept: dict[str, list[_CachedFrame]] = {}
        self._cached: list[DataFrame] = []
        self._gathered: dict[str, str] = {}
        self._line_ends: dict[str, str] = {}
        self._released: set[str] = set()

    def cache_frame(self, raw: DataFrame, size: int) -> tuple[DataFrame, bool]:
        """Cache a frame unless its files are too large.

        :param size: the size of the files, in bytes.
        :return: the frame to use, and whether it is cached.
        """
        if size > _MOST_KEPT:
            return raw, False
        # Spark uses cached data for every frame with the same plan, even if files of these names changed.
        # A unique column gives each cached frame a plan of its own.
        cached_frame = raw.withColumn(_ONCE, F.lit(uuid.uuid4().hex)).persist()
        self._cached.append(cached_frame)
        return cached_frame, True

    def keep_records(
        self, key: str, uris: Iterable[str], raw: DataFrame, parse: Parse, *, is_shared: bool
    ) -> None:
        """Register a cached frame as the source of the records of files of one schema."""
        self._kept.setdefault(key, []).append(_CachedFrame(frozenset(uris), raw, parse, is_shared))

    def read_records(self, key: str, schema: Schema, reader: FileFormat, uris: Iterable[str]) -> DataFrame:
        """Return the records of files of one schema, with ``PLACE``; may include records of other files."""
        remaining_uris = dict.fromkeys(uris)
        frames = []
        for cached_frame in self._kept.get(key, ()):
            uris_in_cache = cached_frame.uris - self._released
            cached_uris = [uri for uri in remaining_uris if uri in uris_in_cache]
            if cached_uris:
                is_shared = cached_frame.is_shared or len(uris_in_cache) < len(cached_frame.uris)
                raw = self.select_rows(cached_frame.raw, cached_uris) if is_shared else cached_frame.raw
                frames.append(cached_frame.parse(raw))
                remaining_uris = {uri: None for uri in remaining_uris if uri not in uris_in_cache}
        for line_end, group in self.group_by_line_end(remaining_uris).items():
            described = formats.set_line_end(reader, line_end)
            locations = self.spool.find_locations(group)
            frames.append(formats.read_strictly(self.spark, described, schema, locations))
        names = [quote_column(name) for name in (*schema.names, *PLACE)]
        return reduce(DataFrame.unionByName, (frame.select(*names) for frame in frames))

    def release_files(self, uris: Iterable[str]) -> None:
        """Read files from their locations from now on, whose parsed records do not have each text as it is.

        The files must have been copied.
        """
        for uri in uris:
            self._gathered.pop(uri, None)
            self._released.add(uri)

    def group_by_line_end(self, uris: Iterable[str]) -> dict[str, list[str]]:
        """Return URIs by how the lines of the files end: an empty string for files that are no CSV files."""
        groups: dict[str, list[str]] = {}
        for uri in uris:
            groups.setdefault(self._line_ends.get(uri, ""), []).append(uri)
        return groups

    def scan_csv(
        self, source: Storage, uris: Iterable[str], reader: FileFormat, *, is_whole: bool = False
    ) -> dict[str, CsvFile | UnreadableError]:
        """Return the structure of CSV files by URI: of the first record, or of all records of each file.

        How their lines end is kept for reading them.
        """
        scanner = CsvScanner(formats.read_options(reader))
        scan = scanner.scan_records if is_whole else scanner.scan_header
        names = {uri.removeprefix(f"{source.location}/"): uri for uri in uris}
        files = {names[name]: file for name, file in ask_files(source, list(names), scan).items()}
        self._line_ends |= {uri: file.line_end for uri, file in files.items() if isinstance(file, CsvFile)}
        return files

    def copy_files(self, source: Storage, uris: Sequence[str], reader: FileFormat) -> None:
        """Copy files that Spark cannot read where they are, or whose texts it would change there."""
        self.spool.copy_files(source, uris)
        if formats.needs_plain_files(reader) and self.spool.is_near():
            self.spool.unpack_files(source, [uri for uri in uris if is_packed(uri)])

    def prepare_files(self, source: Storage, uris: Sequence[str], reader: FileFormat) -> None:
        """Make it possible to read the records of files that earlier runs have inspected."""
        self.copy_files(source, uris, reader)
        if reader.format == "csv":
            # A file that has become unreadable fails when Spark reads it.
            self.scan_csv(source, [uri for uri in uris if uri not in self._line_ends], reader)

    def select_rows(self, frame: DataFrame, uris: Iterable[str]) -> DataFrame:
        """Return the rows that come from the given files."""
        names = pa.array([self.format_file(uri) for uri in uris], pa.string())
        return frame.join(
            F.broadcast(create_dataframe(self.spark, pa.table({FILE: names}))), FILE, "left_semi"
        )

    def format_file(self, uri: str) -> str:
        """Return the value of the column ``FILE`` for a file."""
        return self._gathered.get(uri) or formats.spark_file(self.spool.find_location(uri))

    def create_frame(self, lines: GatheredLines) -> DataFrame:
        """Create a DataFrame from gathered lines, and register the names that they use for their files."""
        self._gathered |= lines.names
        return create_dataframe(self.spark, lines.table)

    def describe_broken(self, uri: str, error: Exception) -> FileFacts:
        """Return the facts of a file that Spark cannot read, and print its error to the log."""
        self._log_line(f"{uri}: {describe_unknown_error(error)}")
        return FileFacts(unreadable=describe_spark_error(error))

    def unpersist_frames(self) -> None:
        """Unpersist all cached frames."""
        for frame in self._cached:
            frame.unpersist()
        self._cached.clear()
        self._kept.clear()

    def close(self) -> None:
        """Release all cached frames, names and local copies."""
        self.unpersist_frames()
        self._gathered.clear()
        self._released.clear()
        self.spool.remove_copies()


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Files that are inspected together: Spark reads ``locations``, or ``lines`` holds their lines."""

    kind: FileReader
    uris: tuple[str, ...]
    locations: Sequence[str]
    size: int
    lines: DataFrame | None = None

    def read_raw(self, records: Records) -> DataFrame:
        """Return the frame to inspect."""
        if self.lines is not None and isinstance(self.kind, JsonLinesReader | TypedReader):
            return self.kind.of_lines(self.lines)
        return self.kind.read_raw(records.spark, self.locations)


Settle = Callable[[dict[str, FileFacts]], dict[str, FileFacts]]


def inspect_files(
    records: Records, groups: Sequence[FileGroup], config: MergeRecordConfig, settle: Settle = dict
) -> dict[str, FileFacts]:
    """Inspect all groups in one job, and cache the parsed records; return the facts by URI.

    If an error of Spark names an unreadable file, the job is repeated without this file. If the error names
    no file, the files are split in halves, and each half is inspected separately, down to single files.

    :param settle: completes the facts of the files that were inspected together.
    :raises Exception: what Spark says of all files alike, or what a wrong option of the reader leads to.
    """
    facts: dict[str, FileFacts] = {}
    remaining_groups = [group for group in groups if group.uris]
    while remaining_groups:
        raws = [records.cache_frame(group.read_raw(records), group.size) for group in remaining_groups]
        frames = [
            group.kind.aggregate_by_file(raw) for group, (raw, _) in zip(remaining_groups, raws, strict=True)
        ]
        try:
            summaries = _collect_summaries(frames)
        except Exception as error:  # noqa: BLE001 - raised again unless one file causes it
            # The error is not always from pyspark: failures while rows are fetched come from py4j.
            broken = find_named_file(remaining_groups, records, error)
            records.unpersist_frames()
            if broken is None:
                return facts | _isolate_broken(records, remaining_groups, config, error, settle)
            facts[broken] = records.describe_broken(broken, error)
            remaining_groups = [
                _select_files(group, {*group.uris} - {broken}, records) for group in remaining_groups
            ]
            remaining_groups = [group for group in remaining_groups if group.uris]
            continue
        for group, (raw, is_kept) in zip(remaining_groups, raws, strict=True):
            group_facts = {
                uri: group.kind.build_fact(uri, summaries.get(records.format_file(uri), FileSummary()))
                for uri in group.uris
            }
            group_facts = settle(group_facts)
            facts |= group_facts
            if is_kept:
                _keep_parsed(records, group.kind, raw, group_facts, config)
        break
    return facts


def _isolate_broken(
    records: Records,
    groups: Sequence[FileGroup],
    config: MergeRecordConfig,
    error: Exception,
    settle: Settle,
) -> dict[str, FileFacts]:
    """Inspect the files of a failed job in halves until each unreadable file is isolated.

    :raises Exception: the error of the job if every file fails, or if it is not caused by a file.
    """
    uris = [uri for group in groups for uri in group.uris]
    if len(uris) == 1:
        is_of_value = isinstance(error, NumberFormatException)
        if isinstance(error, AnalysisException | IllegalArgumentException) and not is_of_value:
            raise error
        # This raises if the Spark session itself has failed; then the file is not the cause.
        records.spark.range(1).count()
        return {uris[0]: records.describe_broken(uris[0], error)}
    facts: dict[str, FileFacts] = {}
    for part in (uris[: len(uris) // 2], uris[len(uris) // 2 :]):
        selected = [_select_files(group, part, records) for group in groups]
        facts |= inspect_files(records, [group for group in selected if group.uris], config, settle)
    if all(facts[uri].unreadable for uri in uris):
        raise error
    return facts


def _collect_summaries(frames: Sequence[DataFrame]) -> dict[str, FileSummary]:
    rows = reduce(DataFrame.unionAll, frames).toArrow().to_pylist()
    return {row[FILE]: FileSummary(row["records"], row["wrong"], row["detail"]) for row in rows}


def _keep_parsed(
    records: Records,
    kind: FileReader,
    raw: DataFrame,
    facts: Mapping[str, FileFacts],
    config: MergeRecordConfig,
) -> None:
    """Register the parsed records for writing, by the schemas that were found in the files."""
    if not isinstance(kind, CachedReader):
        return
    by_key: dict[str, dict[str, Schema]] = {}
    for uri, fact in facts.items():
        if not fact.unreadable and not fact.malformed:
            by_key.setdefault(fact.schema.build_key(config.schema_identity), {})[uri] = fact.schema
    for key, schemas in by_key.items():
        parse = partial(kind.parse_records, schema=next(iter(schemas.values())))
        records.keep_records(key, schemas, raw, parse, is_shared=kind.is_shared and len(schemas) < len(facts))


def find_named_file(groups: Sequence[FileGroup], records: Records, error: Exception) -> str | None:
    """Return the URI of the file that Spark cannot read according to an error, or None."""
    causes = [cause for cause in list_causes(error) if cause.condition.startswith(OF_A_FILE)]
    uris = (uri for group in groups for uri in group.uris)
    locations = ((uri, records.spool.find_location(uri)) for uri in uris)
    return next(
        (uri for uri, location in locations if any(_is_named(location, cause.message) for cause in causes)),
        None,
    )


def _is_named(location: str, message: str) -> bool:
    names = {location, formats.spark_file(location)}
    names |= {name.replace("file:/", "file:///", 1) for name in names} | {f"file://{location}"}
    return message.startswith(tuple(f"Encountered error while reading file {name}." for name in names))


def _select_files(group: FileGroup, uris: Collection[str], records: Records) -> FileGroup:
    selected_uris = tuple(uri for uri in group.uris if uri in uris)
    if len(selected_uris) == len(group.uris):
        return group
    lines = None if group.lines is None else records.select_rows(group.lines, selected_uris)
    return replace(
        group, uris=selected_uris, locations=records.spool.find_locations(selected_uris), lines=lines
    )
