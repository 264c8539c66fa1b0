"""List the rows that a merge writes to its side tables: quarantined entities and ID lineage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.jobs.merge_source.cluster.clustering import ClusteringResult
from airflow_merge_provider.jobs.merge_source.cluster.quarantine import QUARANTINE, build_quarantine_rows
from airflow_merge_provider.jobs.merge_source.diff.id_lineage import LINEAGE, LineageEvent, build_lineage_rows
from airflow_merge_provider.jobs.run.change_set import ChangeSet
from airflow_merge_provider.jobs.spark.staging import create_dataframe


def list_recorded_rows(
    spark: SparkSession,
    clustering: ClusteringResult,
    number: int,
    events: Sequence[LineageEvent],
    *,
    has_quarantine: bool,
) -> dict[str, DataFrame]:
    """Return the rows that run ``number`` writes, by the names of the side tables.

    :param has_quarantine: whether the quarantine has rows, which are replaced.
    """
    rows = {}
    if clustering.quarantined or has_quarantine:
        rows[QUARANTINE] = build_quarantine_rows(clustering.quarantined)
    if events:
        rows[LINEAGE] = build_lineage_rows(number, events)
    return {name: create_dataframe(spark, table) for name, table in rows.items()}


def add_recorded_rows(
    changes: ChangeSet, recorded: Mapping[str, DataFrame], clustering: ClusteringResult
) -> ChangeSet:
    """Return the changes of a run with those of its side tables."""
    is_emptied = QUARANTINE in recorded and not clustering.quarantined
    other_changes = [f"removes all rows from {QUARANTINE}"] if is_emptied else []
    return replace(changes, recorded=recorded, other_changes=other_changes)
