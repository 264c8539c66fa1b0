"""Access to the records of files: parsed once and cached for the run, or read again.

Source: docs/semantics/merge_record.md, Writing.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions as F

from airflow_merge_provider.core.merge_record.schema import Schema
from airflow_merge_provider.jobs.merge_record.files.local_copies import LocalCopies
from airflow_merge_provider.jobs.merge_record.readers import formats
from airflow_merge_provider.jobs.merge_record.readers.formats import FILE, PLACE
from airflow_merge_provider.jobs.merge_record.readers.gather import GatheredLines
from airflow_merge_provider.jobs.merge_record.readers.spark_types import spark_schema
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
            cached_uris = [uri for uri in remaining_uris if uri in cached_frame.uris]
            if cached_uris:
                raw = (
                    self.select_rows(cached_frame.raw, cached_uris)
                    if cached_frame.is_shared
                    else cached_frame.raw
                )
                frames.append(cached_frame.parse(raw))
                remaining_uris = {uri: None for uri in remaining_uris if uri not in cached_frame.uris}
        if remaining_uris:
            locations = self.spool.find_locations(remaining_uris)
            frames.append(formats.read_strictly(self.spark, reader, spark_schema(schema), locations))
        names = [quote_column(name) for name in (*schema.names, *PLACE)]
        return reduce(DataFrame.unionByName, (frame.select(*names) for frame in frames))

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
        self.spool.remove_copies()
