"""The Spark operations of a run: inspect files, check their content, write merged ones; and its plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.expectations.result import require_success
from airflow_merge_provider.core.merge_record.config import FAILED_FILES, MergeRecordConfig
from airflow_merge_provider.core.merge_record.flowfile import FlowFile
from airflow_merge_provider.core.merge_record.plan import NewFiles, Plan, PlannedMerge, plan_merges
from airflow_merge_provider.core.merge_record.schema import Schema
from airflow_merge_provider.core.merge_record.state import State
from airflow_merge_provider.core.run.reporter import RunReporter
from airflow_merge_provider.jobs.merge_record import expectations, facts
from airflow_merge_provider.jobs.merge_record.expectations import RecordCheck, combine_checks
from airflow_merge_provider.jobs.merge_record.files.listing import FileQueue
from airflow_merge_provider.jobs.merge_record.files.storage import Storage
from airflow_merge_provider.jobs.merge_record.placements import (
    find_lost_values,
    list_narrowing_merges,
    split_files,
)
from airflow_merge_provider.jobs.merge_record.readers.formats import session_settings
from airflow_merge_provider.jobs.merge_record.readers.scan import Records
from airflow_merge_provider.jobs.merge_record.writing import StagedFile, stage_merges

Schemas = Mapping[str, Schema]


class SparkEngine:
    """An engine that uses Spark; records that were parsed for counting are cached for writing."""

    def __init__(self, spark: SparkSession, log_line: Callable[[str], object] = str) -> None:
        self._spark = spark
        self._records = Records(spark, log_line)

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


_FAILED_FILES_MAX = 10


@dataclass(frozen=True, slots=True)
class Planner:
    """What a plan is made with: the engine that reads files, their folder, and the configuration."""

    engine: SparkEngine
    source: Storage
    config: MergeRecordConfig
    reporter: RunReporter

    def build_plan(self, state: State, arrivals: NewFiles, lost: Sequence[str]) -> Plan:
        """Build the plan, and check the files of planned merges that have not been checked yet.

        Planning is repeated without the invalid and the rejected files until every file of the planned merges
        is valid and meets the expectations.

        :raises DataError: if records do not meet an expectation with the action ``fail``.
        """
        broken: dict[str, str] = {}
        lost_values: dict[str, str] = {}
        validated: set[str] = set()
        projected: set[str] = set()
        check, checked_uris = RecordCheck(), set[str]()
        progress = self.reporter.progress
        while True:
            with progress.time_step("plan"):
                plan = plan_merges(
                    state,
                    arrivals,
                    self.reporter.request.started_at,
                    self.config,
                    lost=lost,
                    broken=broken,
                    lost_values=lost_values,
                    rejected=_list_by_uuid(check.rejected, (*state.sources, *arrivals.flowfiles)),
                )
            sources = [source for merge in plan.merges for source in merge.sources]
            if files := [file for file in sources if file.unchecked and file.uuid not in validated]:
                validated |= {file.uuid for file in files}
                with progress.time_step("validate"):
                    broken |= self.engine.check_files(self.source, files, plan.schemas, self.config)
                continue
            merges = [merge for merge in plan.merges if merge.id not in projected]
            if merges := list_narrowing_merges(merges, plan.schemas, self.config):
                projected |= {merge.id for merge in merges}
                with progress.time_step("compare values"):
                    lost_values |= self.engine.find_lost_values(
                        self.source, merges, plan.schemas, self.config
                    )
                continue
            files = [file for file in sources if file.records and file.uri not in checked_uris]
            if not self.config.expect or not files:
                break
            checked_uris |= {file.uri for file in files}
            (name,) = self.reporter.sources
            with progress.time_step("check expectations"):
                further = self.engine.check_records(self.source, files, plan.schemas, self.config, name)
            check = combine_checks(check, further)
        self.reporter.add_warnings(check.warnings)
        self.reporter.add_expectations(check.results)
        require_success(check.results)
        if FAILED_FILES in self.config.fail_on:
            _require_readable_files(plan)
        return plan


def _require_readable_files(plan: Plan) -> None:
    """Stop a run before it moves the files that fail.

    :raises DataError: with the first files and their reasons.
    """
    hint = f"correct the file, or remove {FAILED_FILES!r} from fail_on"
    problems = []
    for failure in plan.failures:
        culprits = [source for source in failure.sources if source.uuid == failure.culprit]
        uri = (culprits or failure.sources)[0].uri
        problems.append(Problem(uri, "failed-file", failure.reason.text, hint))
    if problems:
        raise DataError.from_problems(problems[:_FAILED_FILES_MAX])


def _list_by_uuid(reasons: Mapping[str, str], flowfiles: Iterable[FlowFile]) -> dict[str, str]:
    """Return why FlowFiles are rejected; a file is rejected with all of its parts."""
    return {flowfile.uuid: reasons[flowfile.uri] for flowfile in flowfiles if flowfile.uri in reasons}
