"""What of a run needs Spark: looking into files, and writing merged ones; nothing is decided here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from pyspark.sql import SparkSession

from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.flowfile import FlowFile
from airflow_merge_provider.core.merge_record.plan import NewFiles, PlannedMerge
from airflow_merge_provider.core.merge_record.schema import Schema
from airflow_merge_provider.jobs.merge_record import facts
from airflow_merge_provider.jobs.merge_record.files.listing import FileQueue
from airflow_merge_provider.jobs.merge_record.files.storage import Storage
from airflow_merge_provider.jobs.merge_record.partitions import split_files
from airflow_merge_provider.jobs.merge_record.readers.formats import session_settings
from airflow_merge_provider.jobs.merge_record.readers.records import Records
from airflow_merge_provider.jobs.merge_record.writing import StagedFile, stage_merges

Schemas = Mapping[str, Schema]


class Engine(Protocol):
    """What can count records and move them."""

    def find_arrivals(
        self, source: Storage, queue: FileQueue, config: MergeRecordConfig, now: int
    ) -> NewFiles: ...

    def check_files(
        self, source: Storage, files: Sequence[FlowFile], schemas: Schemas, config: MergeRecordConfig
    ) -> dict[str, str]: ...

    def stage_merges(
        self,
        source: Storage,
        merges: Sequence[PlannedMerge],
        schemas: Schemas,
        config: MergeRecordConfig,
        staging: Storage,
    ) -> dict[str, StagedFile]: ...

    def close(self) -> None: ...


class SparkEngine:
    """Count and move records with Spark; what was parsed to be counted is kept to be written."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._records = Records(spark)

    def find_arrivals(
        self, source: Storage, queue: FileQueue, config: MergeRecordConfig, now: int
    ) -> NewFiles:
        """Look into files and give them as FlowFiles, split by ``partition_by``."""
        with session_settings(self._spark):
            return split_files(
                self._records, facts.find_arrivals(self._records, source, queue, config, now), config
            )

    def check_files(
        self, source: Storage, files: Sequence[FlowFile], schemas: Schemas, config: MergeRecordConfig
    ) -> dict[str, str]:
        """Look into files that were not looked into on arrival: what is wrong, by their uuid."""
        with session_settings(self._spark):
            self._records.spool.copy_files(source, [file.uri for file in files])
            return facts.check_files(self._records, files, schemas, config)

    def stage_merges(
        self,
        source: Storage,
        merges: Sequence[PlannedMerge],
        schemas: Schemas,
        config: MergeRecordConfig,
        staging: Storage,
    ) -> dict[str, StagedFile]:
        """Write merged files where nobody looks for them."""
        with session_settings(self._spark):
            spool = self._records.spool
            spool.copy_files(source, [each.uri for merge in merges for each in merge.sources])
            near = spool.open_staging(staging)
            staged = stage_merges(self._records, merges, schemas, config, near)
            spool.take_back(near, staging, [each.name for each in staged.values()])
            return staged

    def close(self) -> None:
        """Forget what was kept."""
        self._records.close()
