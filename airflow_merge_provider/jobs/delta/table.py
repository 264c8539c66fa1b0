"""Read datasets: find the version that a run reads, and read the rows of that version."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.change_plan.shown_rows import mask_value
from airflow_merge_provider.core.dataset import Dataset, escape_pattern, parse_hadoop_path
from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.run import table_log
from airflow_merge_provider.core.run.table_log import (
    CountRows,
    Fields,
    PinnedDataset,
    TableVersion,
    refuse_missing_dataset,
)
from airflow_merge_provider.core.table_history import HistoryEntry
from airflow_merge_provider.core.value_text import format_value
from airflow_merge_provider.jobs.delta.log import (
    History,
    count_rows_of_version,
    find_newest_version,
    find_restored_version,
    is_nowhere,
    read_commit_id,
    read_fields_of_version,
    read_history,
    read_non_null_columns,
    read_properties,
    read_transaction,
)
from airflow_merge_provider.jobs.spark import sql
from airflow_merge_provider.jobs.spark.causes import error_condition
from airflow_merge_provider.jobs.spark.errors import NOT_FOUND_CONDITIONS
from airflow_merge_provider.jobs.spark.exact_text import shown_row
from airflow_merge_provider.jobs.spark.plain_files import read_catalog_table, read_files

# A run reports all other problems of a table itself.
_ABSENT = (*NOT_FOUND_CONDITIONS, "DELTA_")
_VERSION_MASK = (1 << 48) - 1
# The option of Spark's readers that chooses files by name, in lower case.
_FILE_FILTER = "pathglobfilter"
# Hadoop derives the name of a checksum file from the name of a file on a disk, and takes the part before a
# colon as a scheme.
_UNREADABLE_PATHS = "path LIKE 'file:%' AND element_at(split(path, '/'), -1) LIKE '%:%'"


@dataclass(frozen=True, slots=True)
class MemoryDataset(PinnedDataset):
    """A dataset whose rows are in memory."""

    rows: DataFrame | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class SparkLog:
    """The logs of Delta tables as a Spark session reads them, wherever the tables are."""

    spark: SparkSession

    def find_newest_version(self, dataset: Dataset) -> TableVersion | None:
        return find_newest_version(self.spark, dataset)

    def read_history(self, dataset: Dataset, limit: int | None) -> History:
        return read_history(self.spark, dataset, limit)

    def find_restored_version(self, dataset: Dataset, entry: HistoryEntry) -> int | None:
        return find_restored_version(self.spark, dataset, entry)

    def read_commit_id(self, location: str, version: int) -> str | None:
        return read_commit_id(self.spark, location, version)

    def read_properties(self, dataset: Dataset) -> Mapping[str, str]:
        return read_properties(self.spark, dataset)

    def read_transaction(self, dataset: Dataset, app_id: str) -> int | None:
        return read_transaction(self.spark, dataset, app_id)

    def count_rows(self, dataset: Dataset, version: int) -> int | None:
        return count_rows_of_version(self.spark, dataset, version, live=True)

    def find_properties(self, dataset: Dataset) -> Mapping[str, str] | None:
        if is_nowhere(self.spark, dataset):
            return None
        try:
            return read_properties(self.spark, dataset)
        except AnalysisException as error:
            if error_condition(error).startswith(_ABSENT):
                return None
            raise

    def read_fields(self, pinned: PinnedDataset) -> Fields:
        return read_fields(self.spark, pinned)

    def read_example(self, pinned: PinnedDataset, name: str) -> str | None:
        return read_example(read_dataset(self.spark, pinned), name)

    def has_rows(self, dataset: Dataset) -> bool:
        row_count = count_records(self.spark, pin_dataset(self.spark, dataset))
        if row_count is not None:
            return row_count > 0
        return bool(self.spark.sql(f"SELECT 1 FROM {sql.quote_table(dataset)} LIMIT 1").collect())

    def find_files_version(self, dataset: Dataset) -> int | None:
        return _find_files_version(self.spark, dataset)


def pin_dataset(spark: SparkSession, dataset: Dataset) -> PinnedDataset:
    """Find the version of a dataset that a whole run reads.

    :raises DataError: if the dataset does not have the format that it was declared with.
    """
    return table_log.pin_dataset(SparkLog(spark), dataset)


def read_dataset(spark: SparkSession, pinned: PinnedDataset) -> DataFrame:
    """Return the rows of a dataset at its pinned version.

    :raises DataError: if it does not exist.
    """
    if isinstance(pinned, MemoryDataset) and pinned.rows is not None:
        return pinned.rows
    dataset = pinned.dataset
    if pinned.version is None:
        raise refuse_missing_dataset(dataset)
    if dataset.format == "delta":
        return spark.sql(f"SELECT * FROM {sql.quote_table(dataset)} VERSION AS OF {pinned.version}")
    if dataset.table is not None:
        return read_catalog_table(spark, dataset)
    return read_files(spark, dataset)


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
    if pinned.version is None or isinstance(pinned, MemoryDataset) or pinned.dataset.format != "delta":
        return None
    return count_rows_of_version(spark, pinned.dataset, pinned.version, live=live)


def build_row_counter(spark: SparkSession) -> CountRows:
    """Return the function that counts the rows of a dataset from its log, without deleted ones."""
    return partial(count_records, spark, live=True)


def read_example(rows: DataFrame, name: str) -> str | None:
    """Return a value of a column as text; None if it has none but NULL."""
    value = shown_row(rows, [name])
    for row in rows.where(sql.quote_column(name).isNotNull()).select(value).limit(1).collect():
        return mask_value(format_value(json.loads(row[0], parse_float=Decimal)[name]), [name])
    return None


def read_fields(spark: SparkSession, pinned: PinnedDataset) -> Fields:
    """Return the columns of a dataset at its version, in Spark's JSON form: from its log if possible."""
    fields = None
    if pinned.version is not None and pinned.dataset.format == "delta":
        fields = read_fields_of_version(spark, pinned.dataset, pinned.version)
    if fields is None:
        fields = read_dataset(spark, pinned).schema.jsonValue()["fields"]
    return fields


def count_live_rows(spark: SparkSession, pinned: PinnedDataset) -> int:
    """Return how many rows a dataset has: from its log if possible, else by a scan."""
    row_count = count_records(spark, pinned, live=True)
    return read_dataset(spark, pinned).count() if row_count is None else row_count


def find_non_null_columns(spark: SparkSession, pinned: PinnedDataset) -> frozenset[str]:
    """Return the columns of a dataset that have no NULL, as far as this is known without a scan."""
    if pinned.version is None or isinstance(pinned, MemoryDataset) or pinned.dataset.format != "delta":
        return frozenset()
    return read_non_null_columns(spark, pinned.dataset, pinned.version)


def _find_files_version(spark: SparkSession, dataset: Dataset) -> int | None:
    if dataset.table is not None:
        if not spark.catalog.tableExists(sql.quote_table(dataset)):
            return None
        files = sorted(spark.table(sql.quote_table(dataset)).inputFiles())
        return uuid.uuid5(uuid.NAMESPACE_URL, "\n".join(files)).int & _VERSION_MASK
    reader = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    chosen = {name: value for name, value in dataset.options.items() if name.casefold() == _FILE_FILTER}
    try:
        listing = reader.options(**chosen).load(escape_pattern(str(dataset.path)))
        row = listing.selectExpr(
            "count(*) AS files",
            "bit_xor(xxhash64(path, modificationTime, length)) AS mark",
            f"min(path) FILTER (WHERE {_UNREADABLE_PATHS}) AS unreadable",
        ).collect()[0]
    except AnalysisException as error:
        if error_condition(error).startswith(NOT_FOUND_CONDITIONS):
            return None
        raise
    if row["unreadable"]:
        message = f"{parse_hadoop_path(row['unreadable'])} has a colon in its name, which Hadoop cannot read"
        hint = "rename the file, or set the option pathGlobFilter to other names"
        raise DataError.from_problems([Problem(dataset.id, "unreadable", message, hint)])
    return int(row["mark"]) & _VERSION_MASK if row["files"] else None
