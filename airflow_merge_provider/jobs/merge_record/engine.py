"""The Spark operations of a run: inspect source files and write merged files; planning is done elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from pyspark.sql import SparkSession

from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.flowfile import FlowFile
from airflow_merge_provider.core.merge_record.plan import NewFiles, PlannedMerge
from airflow_merge_provider.core.merge_record.schema import Schema
from airflow_merge_provider.jobs.merge_record import expectations, facts
from airflow_merge_provider.jobs.merge_record.expectations import RecordCheck
from airflow_merge_provider.jobs.merge_record.files.listing import FileQueue
from airflow_merge_provider.jobs.merge_record.files.storage import Storage
from airflow_merge_provider.jobs.merge_record.partitions import split_files
from airflow_merge_provider.jobs.merge_record.placements import find_lost_values
from airflow_merge_provider.jobs.merge_record.readers.formats import session_settings
from airflow_merge_provider.jobs.merge_record.readers.records import Records
from airflow_merge_provider.jobs.merge_record.writing import StagedFile, stage_merges

Schemas = Mapping[str, Schema]


class Engine(Protocol):
    """The interface of an engine that counts records and writes merged files."""

    def find_arrivals(
        self, source: Storage, queue: FileQueue, config: MergeRecordConfig, now: int
    ) -> NewFiles: ...

    def check_files(
        self, source: Storage, files: Sequence[FlowFile], schemas: Schemas, config: MergeRecordConfig
    ) -> dict[str, str]: ...

    def check_records(
        self,
        source: Storage,
        files: Sequence[FlowFile],
        schemas: Schemas,
        config: MergeRecordConfig,
        name: str,
    ) -> RecordCheck: ...

    def find_lost_values(
        self,
        source: Storage,
        merges: Sequence[PlannedMerge],
        schemas: Schemas,
        config: MergeRecordConfig,
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
    """An engine that uses Spark; records that were parsed for counting are cached for writing."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._records = Records(spark)

    def find_arrivals(
        self, source: Storage, queue: FileQueue, config: MergeRecordConfig, now: int
    ) -> NewFiles:
        """Inspect new files and return them as FlowFiles, split by ``partition_by``."""
        with session_settings(self._spark):
            return split_files(
                self._records, facts.find_arrivals(self._records, source, queue, config, now), config
            )

    def check_files(
        self, source: Storage, files: Sequence[FlowFile], schemas: Schemas, config: MergeRecordConfig
    ) -> dict[str, str]:
        """Validate files that were not validated on arrival; return the errors by FlowFile UUID."""
        with session_settings(self._spark):
            self._records.prepare_files(source, [file.uri for file in files], config.reader)
            return facts.check_files(self._records, source, files, schemas, config)

    def check_records(
        self,
        source: Storage,
        files: Sequence[FlowFile],
        schemas: Schemas,
        config: MergeRecordConfig,
        name: str,
    ) -> RecordCheck:
        """Check the records of files against the expectations; ``name`` is that of the source in reports."""
        with session_settings(self._spark):
            self._records.prepare_files(
                source, list(dict.fromkeys(file.uri for file in files)), config.reader
            )
            return expectations.check_records(self._records, files, schemas, config, name)

    def find_lost_values(
        self,
        source: Storage,
        merges: Sequence[PlannedMerge],
        schemas: Schemas,
        config: MergeRecordConfig,
    ) -> dict[str, str]:
        """Return a value of each FlowFile that its merged file cannot hold, by UUID."""
        with session_settings(self._spark):
            self._prepare_merges(source, merges, config)
            return find_lost_values(self._records, merges, schemas, config)

    def stage_merges(
        self,
        source: Storage,
        merges: Sequence[PlannedMerge],
        schemas: Schemas,
        config: MergeRecordConfig,
        staging: Storage,
    ) -> dict[str, StagedFile]:
        """Write merged files to the staging folder, and return them by the ID of their merge."""
        with session_settings(self._spark):
            spool = self._records.spool
            self._prepare_merges(source, merges, config)
            spark_staging = spool.open_staging(staging)
            staged = stage_merges(self._records, merges, schemas, config, spark_staging)
            spool.take_back(spark_staging, staging, [file.name for file in staged.values()])
            return staged

    def _prepare_merges(
        self, source: Storage, merges: Sequence[PlannedMerge], config: MergeRecordConfig
    ) -> None:
        uris = dict.fromkeys(flowfile.uri for merge in merges for flowfile in merge.sources)
        self._records.prepare_files(source, list(uris), config.reader)

    def close(self) -> None:
        """Release all cached data and local copies."""
        self._records.close()
