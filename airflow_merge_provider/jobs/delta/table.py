"""Read datasets: find the version that a run reads, and read the rows of that version."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.source_offset import SourceOffset
from airflow_merge_provider.jobs.delta.log import (
    count_rows_of_version,
    find_newest_version,
    read_commit_id,
    read_non_null_columns,
    read_properties,
)
from airflow_merge_provider.jobs.spark import sql
from airflow_merge_provider.jobs.spark.errors import NOT_FOUND_CONDITIONS, error_condition
from airflow_merge_provider.jobs.spark.formats import spark_format

_VERSION_MASK = (1 << 48) - 1


@dataclass(frozen=True, slots=True)
class PinnedDataset:
    """A dataset at one version; ``version`` is None if the dataset does not exist.

    ``table_id`` is the ID of a Delta table, ``location`` its folder, and ``commit_id`` the digest of the
    commit that made the version. ``rows`` are the rows of a dataset in memory.
    """

    dataset: Dataset
    version: int | None
    table_id: str | None = None
    rows: DataFrame | None = field(default=None, compare=False, repr=False)
    location: str | None = field(default=None, compare=False)
    commit_id: str | None = field(default=None, compare=False)

    @property
    def exists(self) -> bool:
        """Whether the dataset exists and can be read."""
        return self.version is not None

    @property
    def offset(self) -> SourceOffset:
        """The position from which the next run continues."""
        return SourceOffset(self.dataset.uri, self.version, self.table_id, self.commit_id)


def pin_dataset(spark: SparkSession, dataset: Dataset) -> PinnedDataset:
    """Find the version of a dataset that a whole run reads.

    Plain files have no versions: a number computed from their names, times and sizes is used instead.

    :raises DataError: if the dataset does not have the format that it was declared with.
    """
    if dataset.format != "delta":
        return PinnedDataset(dataset, _files_version(spark, dataset))
    table_version = find_newest_version(spark, dataset)
    if table_version is None:
        return PinnedDataset(dataset, None)
    version, table_id, location = table_version
    commit_id = read_commit_id(spark, location, version)
    return PinnedDataset(dataset, version, table_id, None, location, commit_id)


def is_continued(spark: SparkSession, pinned: PinnedDataset, offset: SourceOffset) -> bool:
    """Return whether a source continues from an offset: the same table with the same commit at that version.

    If the log does not reach back to the offset any more, the offset is accepted.
    """
    if pinned.table_id != offset.table_id or pinned.version is None or offset.version is None:
        return False
    if pinned.version < offset.version:
        return False
    if offset.commit_id is None or pinned.location is None:
        return True
    return read_commit_id(spark, pinned.location, offset.version) in (None, offset.commit_id)


def read_dataset(spark: SparkSession, pinned: PinnedDataset) -> DataFrame:
    """Return the rows of a dataset at its pinned version.

    :raises DataError: if it does not exist.
    """
    if pinned.rows is not None:
        return pinned.rows
    dataset = pinned.dataset
    if pinned.version is None:
        raise _refuse_dataset(
            dataset, "missing", f"{dataset.uri} does not exist", "check the dataset's name and the warehouse"
        )
    if dataset.format == "delta":
        return spark.sql(f"SELECT * FROM {sql.quote_table(dataset)} VERSION AS OF {pinned.version}")
    if dataset.table is not None:
        return spark.table(sql.quote_table(dataset))
    reader = spark.read.format(spark_format(spark, dataset.format))
    return reader.options(**dataset.options).load(dataset.path)


def read_change_feed(spark: SparkSession, dataset: Dataset, first: int, last: int) -> DataFrame:
    """Return the rows that commits changed, from the change data feed, which must have been enabled."""
    reader = spark.read.option("readChangeFeed", "true")
    reader = reader.option("startingVersion", first).option("endingVersion", last)
    if dataset.table is not None:
        return reader.table(sql.quote_table(dataset))
    return reader.format("delta").load(dataset.path)


def has_change_feed(spark: SparkSession, dataset: Dataset) -> bool:
    """Return whether the change data feed of a table is enabled."""
    return read_properties(spark, dataset).get("delta.enableChangeDataFeed", "false").lower() == "true"


def count_records(spark: SparkSession, pinned: PinnedDataset, *, live: bool = False) -> int | None:
    """Return how many rows a dataset has; None if that needs a scan.

    Without ``live``, rows that are marked as deleted may be counted.
    """
    if pinned.version is None or pinned.rows is not None or pinned.dataset.format != "delta":
        return None
    return count_rows_of_version(spark, pinned.dataset, pinned.version, live=live)


def count_live_rows(spark: SparkSession, pinned: PinnedDataset) -> int:
    """Return how many rows a dataset has: from its log if possible, else by a scan."""
    row_count = count_records(spark, pinned, live=True)
    return read_dataset(spark, pinned).count() if row_count is None else row_count


def find_non_null_columns(spark: SparkSession, pinned: PinnedDataset) -> frozenset[str]:
    """Return the columns of a dataset that have no NULL, as far as this is known without a scan."""
    if pinned.version is None or pinned.rows is not None or pinned.dataset.format != "delta":
        return frozenset()
    return read_non_null_columns(spark, pinned.dataset, pinned.version)


def _files_version(spark: SparkSession, dataset: Dataset) -> int | None:
    if dataset.table is not None:
        if not spark.catalog.tableExists(sql.quote_table(dataset)):
            return None
        files = sorted(spark.table(sql.quote_table(dataset)).inputFiles())
        return uuid.uuid5(uuid.NAMESPACE_URL, "\n".join(files)).int & _VERSION_MASK
    reader = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    try:
        row = (
            reader.load(dataset.path)
            .selectExpr("count(*) AS files", "bit_xor(xxhash64(path, modificationTime, length)) AS mark")
            .collect()[0]
        )
    except AnalysisException as error:
        if error_condition(error).startswith(NOT_FOUND_CONDITIONS):
            return None
        raise
    return int(row["mark"]) & _VERSION_MASK if row["files"] else None


def _refuse_dataset(dataset: Dataset, code: str, message: str, hint: str) -> DataError:
    return DataError.from_problems([Problem(dataset.id, code, message, hint)])
