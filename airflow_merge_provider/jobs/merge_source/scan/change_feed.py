"""Read the change data feed of a dataset: the entities that its commits changed, and their current rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from pyspark.sql import DataFrame, SparkSession, Window, functions as F

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.run.table_log import PinnedDataset
from airflow_merge_provider.jobs.delta.table import has_change_feed, read_change_feed
from airflow_merge_provider.jobs.merge_source.model import HASH, Flags, Numbers
from airflow_merge_provider.jobs.merge_source.scan.sources import SCAN_ID, Source
from airflow_merge_provider.jobs.spark import sql
from airflow_merge_provider.jobs.spark.errors import CHANGES_GONE_CONDITIONS, has_condition

_KIND, _COMMIT_VERSION = "_change_type", "_commit_version"
_IS, _NET_CHANGE = "__merge_is", "net"


@dataclass(frozen=True)
class FeedChanges:
    """The entities that commits changed: ``rows`` are their current rows, ``hashes`` cover all of them.

    ``net`` is the net change of the number of rows of each entity.
    """

    rows: Source
    hashes: Numbers
    net: Numbers

    def find_deleted(self, present: Numbers) -> Numbers:
        """Return the entities that no longer exist, given those that do."""
        return np.setdiff1d(self.hashes, present)

    def is_plain(self, previous_hashes: Numbers) -> bool:
        """Return whether every entity had at most one row, before (``previous_hashes``) and after."""
        if self.rows.sequence is not None:
            return True
        existed: Flags = np.isin(self.hashes, previous_hashes)
        after = existed.astype(np.int64) + self.net
        return bool(((after == 0) | (after == 1)).all())


def require_feeds(spark: SparkSession, pinned: Sequence[PinnedDataset]) -> None:
    """Refuse datasets that have no change data feed.

    :raises DataError: with every such dataset.
    """
    problems = [
        _refuse_missing_feed(source.dataset) for source in pinned if not _keeps_feed(spark, source.dataset)
    ]
    if problems:
        raise DataError.from_problems(problems)


def read_feed_changes(
    spark: SparkSession,
    pinned: PinnedDataset,
    since: int,
    source: Source,
    open_rows: Callable[[DataFrame], Source],
) -> FeedChanges | None:
    """Read what a dataset's commits after ``since`` changed; None if the feed does not reach back that far.

    ``source`` has all rows, and ``open_rows`` maps rows of the feed to entities.
    """
    if pinned.version is None or pinned.version <= since:
        return None
    try:
        feed = read_change_feed(spark, pinned.dataset, since + 1, pinned.version)
        is_now = F.col(_KIND).isin("insert", "update_postimage")
        rows = open_rows(feed.withColumn(_IS, is_now))
        counted = rows.frame.groupBy(HASH).agg(F.sum(F.when(F.col(_IS), 1).otherwise(-1)).alias(_NET_CHANGE))
        touched = counted.toArrow()
    except Exception as error:
        if has_condition(error, CHANGES_GONE_CONDITIONS):
            return None
        raise
    hashes = touched.column(HASH).to_numpy().astype(np.int64)
    net = touched.column(_NET_CHANGE).to_numpy().astype(np.int64)
    if source.sequence is not None:
        # The version that counts may be one that no commit has changed.
        touched_ids = rows.frame.select(SCAN_ID).distinct()
        frame = source.frame.join(F.broadcast(touched_ids), SCAN_ID, "left_semi")
        return FeedChanges(replace(source, frame=frame, several=True), hashes, net)
    return FeedChanges(replace(rows, frame=_select_newest(rows.frame)), hashes, net)


def _select_newest(rows: DataFrame) -> DataFrame:
    """Keep the row of each entity after the last commit that changed it, if the entity still exists."""
    rank = "__merge_rank"
    newest = Window.partitionBy(SCAN_ID).orderBy(
        sql.quote_column(_COMMIT_VERSION).desc(), sql.quote_column(_IS).desc()
    )
    return rows.withColumn(rank, F.rank().over(newest)).where((F.col(rank) == 1) & F.col(_IS)).drop(rank)


def _keeps_feed(spark: SparkSession, dataset: Dataset) -> bool:
    return dataset.format == "delta" and has_change_feed(spark, dataset)


def _refuse_missing_feed(dataset: Dataset) -> Problem:
    hint = "set its table property delta.enableChangeDataFeed to true, or set change_detection to 'auto'"
    return Problem(f"dataset {dataset.id!r}", "feed", "has no change data feed", hint)
