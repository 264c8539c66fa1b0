"""Access to the records of files: parsed once and cached for the run, or read again.

Source: docs/semantics/merge_record.md, Writing.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions as F

from airflow_merge_provider.core.merge_record.schema import Schema
from airflow_merge_provider.jobs.merge_record.files.local_copies import LocalCopies
from airflow_merge_provider.jobs.merge_record.files.storage import Storage
from airflow_merge_provider.jobs.merge_record.readers import formats
from airflow_merge_provider.jobs.merge_record.readers.containers import ask_files, is_packed
from airflow_merge_provider.jobs.merge_record.readers.formats import FILE, PLACE
from airflow_merge_provider.jobs.merge_record.readers.gather import GatheredLines
from airflow_merge_provider.jobs.spark.files.csv_structure import CsvFile, CsvScanner
from airflow_merge_provider.jobs.spark.files.file_problem import UnreadableError
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
    """The records of the files that a run reads; ``close`` releases the cached frames."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
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

    def read_records(
        self, key: str, schema: Schema, reader: Mapping[str, Any], uris: Iterable[str]
    ) -> DataFrame:
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
        self, source: Storage, uris: Iterable[str], reader: Mapping[str, Any], *, is_whole: bool = False
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

    def copy_files(self, source: Storage, uris: Sequence[str], reader: Mapping[str, Any]) -> None:
        """Copy files that Spark cannot read where they are, or whose texts it would change there."""
        self.spool.copy_files(source, uris)
        if formats.needs_plain_files(reader) and self.spool.is_near():
            self.spool.unpack_files(source, [uri for uri in uris if is_packed(uri)])

    def prepare_files(self, source: Storage, uris: Sequence[str], reader: Mapping[str, Any]) -> None:
        """Make it possible to read the records of files that earlier runs have inspected."""
        self.copy_files(source, uris, reader)
        if reader["format"] == "csv":
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
