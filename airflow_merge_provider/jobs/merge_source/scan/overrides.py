"""Read overrides from their table, and apply them to the entities that they name."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import SparkSession, functions as F

from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_source import overrides as core
from airflow_merge_provider.core.merge_source.overrides import SAME_LEFT, SAME_RIGHT, Overrides
from airflow_merge_provider.core.run.table_log import PinnedDataset
from airflow_merge_provider.jobs.delta.table import read_dataset
from airflow_merge_provider.jobs.merge_source.scan.sources import SCAN_ID, Source
from airflow_merge_provider.jobs.spark.staging import create_dataframe

_KEY_LIST = pa.list_(pa.string())
_OVERRIDE_SCHEMA = pa.schema({SCAN_ID: pa.string(), SAME_LEFT: _KEY_LIST, SAME_RIGHT: _KEY_LIST})


def read_overrides(
    spark: SparkSession, pinned: PinnedDataset, names: tuple[str, ...], started_at: int
) -> Overrides:
    """Read the overrides that are valid at the time of a run (microseconds since 1970).

    :raises DataError: if there is no such table, or its rows are not valid overrides.
    """
    dataset = pinned.dataset
    if not pinned.exists:
        raise _refuse_table("missing", f"dataset {dataset.id!r} does not exist at {dataset.uri}")
    frame = read_dataset(spark, pinned)
    if missing := [name for name in core.REQUIRED if name not in frame.columns]:
        raise _refuse_table("column", f"dataset {dataset.id!r} has no column {', '.join(missing)}")
    rows = (
        frame.select(*(name for name in core.OVERRIDE_COLUMNS if name in frame.columns)).toArrow().to_pylist()
    )
    now = dt.datetime.fromtimestamp(started_at / 1_000_000, dt.UTC)
    return core.parse_overrides(rows, names, now)


def mark_overrides(source: Source, overrides: Overrides, names: tuple[str, ...]) -> Source:
    """Add a shared key to the entities that overrides declare to be the same."""
    keys = overrides.build_keys(source.offset, names)
    if not keys:
        return source
    rows = [{SCAN_ID: id_, SAME_LEFT: left or None, SAME_RIGHT: right or None} for id_, left, right in keys]
    named = create_dataframe(source.frame.sparkSession, pa.Table.from_pylist(rows, _OVERRIDE_SCHEMA))
    return replace(source, frame=source.frame.join(F.broadcast(named), SCAN_ID, "left"))


def _refuse_table(code: str, message: str) -> DataError:
    needed = f"required columns: {', '.join(core.REQUIRED)}; optional: {', '.join(core.OVERRIDE_COLUMNS[3:])}"
    return DataError.from_problems([Problem("overrides", code, message, needed)])
