"""Find rows of a dataset that were committed late: with a sequence value that an earlier run had passed.

The log names the files that hold all rows committed since the earlier run, with the lowest sequence value of
each. So rows are read twice only if such a file has a value that is not above the position.
Source: docs/semantics/merge_source.md, Change detection.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession, functions as F

from airflow_merge_provider.core.run.table_log import PinnedDataset
from airflow_merge_provider.core.value_text import EPOCH
from airflow_merge_provider.jobs.delta.commit_log import GainedFile, open_commit_log
from airflow_merge_provider.jobs.delta.table import MemoryDataset, read_dataset
from airflow_merge_provider.jobs.merge_source.model import HASH
from airflow_merge_provider.jobs.merge_source.scan.sources import Source

# Up to this many rows, their entities are looked up among all rows; comparing all rows is as fast beyond it.
LATE_MAX_ROWS = 1_000_000


def find_late_entities(
    pinned: PinnedDataset, since: int, position: int, source: Source, open_rows: Callable[[DataFrame], Source]
) -> DataFrame | None:
    """Return the hashes of the entities that have a row committed after ``since`` and not above a position.

    None if there are none. ``open_rows`` opens rows like those of the source.

    :raises TooManyLateRowsError: if there may be so many that all rows have to be compared.
    :raises Exception: Spark's error, or FileNotFoundError, if the log lacks commits after ``since``.
    """
    spark = source.frame.sparkSession
    if isinstance(pinned, MemoryDataset):
        # Without a log, only a row that has no place may be late.
        return source.frame.where(source.is_after(position).isNull()).select(HASH).distinct()
    files = _list_late_files(spark, pinned, since, position, source)
    if not files:
        return None
    if sum(_read_stats(file).get("numRecords", math.inf) for file in files) > LATE_MAX_ROWS:
        raise TooManyLateRowsError
    names = [file.name for file in files]
    late = open_rows(read_dataset(spark, pinned).where(F.col("_metadata.file_name").isin(*names)))
    return late.frame.where(~F.coalesce(late.is_after(position), F.lit(False))).select(HASH).distinct()


class TooManyLateRowsError(Exception):
    """Raised if late rows may be so many that all rows of their dataset have to be compared."""


def _list_late_files(
    spark: SparkSession, pinned: PinnedDataset, since: int, position: int, source: Source
) -> Sequence[GainedFile]:
    """Return the files gained after a version that may have a row whose sequence is not above a position."""
    log = open_commit_log(spark, pinned)
    files = log.list_gained_files(since, pinned.version or since)
    # With column mapping, the statistics use physical column names.
    name = "" if log.is_mapped else source.sequence or ""
    return [file for file in files if not _is_after(_read_stats(file), name, position)]


def _is_after(stats: dict[str, Any], name: str, position: int) -> bool:
    """Return whether the statistics of a file show that all of its sequence values are above a position."""
    lowest = _read_number((stats.get("minValues") or {}).get(name))
    nulls = (stats.get("nullCount") or {}).get(name)
    return nulls == 0 and lowest is not None and lowest > position


def _read_stats(file: GainedFile) -> dict[str, Any]:
    stats: dict[str, Any] = json.loads(file.stats) if file.stats else {}
    return stats


def _read_number(value: Any) -> int | None:
    """Return a lowest value as a position: an integer, or microseconds of a timestamp; None if unknown."""
    if isinstance(value, int):
        return value
    try:
        moment = dt.datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return (moment - EPOCH) // dt.timedelta(microseconds=1) if moment.tzinfo else None
