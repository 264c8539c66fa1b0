"""List the rows that a merge writes to its side tables: quarantined entities and ID lineage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.jobs.delta.side_table import SideTable
from airflow_merge_provider.jobs.merge_source.cluster.clustering import ClusteringResult
from airflow_merge_provider.jobs.merge_source.cluster.quarantine import QUARANTINE, build_quarantine_rows
from airflow_merge_provider.jobs.merge_source.diff.id_lineage import LINEAGE, LineageEvent, build_lineage_rows
from airflow_merge_provider.jobs.spark.staging import create_dataframe


@dataclass(frozen=True, slots=True)
class RecordedRows:
    """The rows that a run writes to its side tables, by the names of these, and which tables it replaces."""

    rows: Mapping[str, DataFrame]
    tables: Mapping[str, SideTable]
    replaced: Mapping[str, SideTable]

    def write_rows(self) -> dict[str, int | None]:
        """Write the rows, and return the versions of the side tables that the target's commit records."""
        for name, rows in self.rows.items():
            table = self.tables[name]
            save_rows = table.replace_rows if name in self.replaced else table.append_rows
            save_rows(rows)
        return {name: self.tables[name].version for name in self.rows}


def list_recorded_rows(
    spark: SparkSession,
    clustering: ClusteringResult,
    number: int,
    events: Sequence[LineageEvent],
    tables: Mapping[str, SideTable],
    *,
    is_overwrite: bool,
    started_at: int,
) -> RecordedRows:
    """Return the rows that run ``number`` writes to its side tables.

    The quarantine always has the rows of one run, the lineage those of all runs since the last overwrite.

    :param tables: the side tables that the target names, or that the run may write.
    """
    replaced = {
        name: table
        for name, table in tables.items()
        if name == QUARANTINE or is_overwrite or table.version is None
    }
    emptied = {name for name, table in replaced.items() if table.has_rows(started_at)}
    rows = {}
    if clustering.quarantined or QUARANTINE in emptied:
        rows[QUARANTINE] = build_quarantine_rows(clustering.quarantined)
    if events or LINEAGE in emptied:
        rows[LINEAGE] = build_lineage_rows(number, events)
    frames = {name: create_dataframe(spark, table) for name, table in rows.items()}
    return RecordedRows(frames, tables, replaced)
