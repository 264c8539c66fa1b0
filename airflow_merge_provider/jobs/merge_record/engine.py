"""What of a run needs Spark: looking into new files, and writing merged ones; nothing is decided here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from pyspark.sql import SparkSession

from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.plan import Arrivals, Merge
from airflow_merge_provider.core.merge_record.schema import Schema
from airflow_merge_provider.jobs.merge_record.facts import arrivals
from airflow_merge_provider.jobs.merge_record.formats import session_settings
from airflow_merge_provider.jobs.merge_record.listing import Waiting
from airflow_merge_provider.jobs.merge_record.partitions import split
from airflow_merge_provider.jobs.merge_record.storage import Storage
from airflow_merge_provider.jobs.merge_record.writing import Staged, stage


class Engine(Protocol):
    """What can count records and move them."""

    def arrivals(
        self, source: Storage, files: Sequence[Waiting], config: MergeRecordConfig, now: int
    ) -> Arrivals: ...

    def stage(
        self,
        merges: Sequence[Merge],
        schemas: Mapping[str, Schema],
        config: MergeRecordConfig,
        staging: Storage,
    ) -> dict[str, Staged]: ...


class SparkEngine:
    """Count and move records with Spark."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def arrivals(
        self, source: Storage, files: Sequence[Waiting], config: MergeRecordConfig, now: int
    ) -> Arrivals:
        """Look into files and give them as FlowFiles, split by ``partition_by``."""
        with session_settings(self._spark):
            return split(self._spark, arrivals(self._spark, source, files, config, now), config)

    def stage(
        self,
        merges: Sequence[Merge],
        schemas: Mapping[str, Schema],
        config: MergeRecordConfig,
        staging: Storage,
    ) -> dict[str, Staged]:
        """Write merged files where nobody looks for them."""
        with session_settings(self._spark):
            return stage(self._spark, merges, schemas, config, staging)
