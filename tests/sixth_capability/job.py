"""Copy a table, and commit once."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.report import Details, Report
from airflow_merge_provider.core.run.reporter import Progress, RunResult
from airflow_merge_provider.core.run_mode import RunMode
from airflow_merge_provider.jobs.delta.table import SparkLog, read_dataset
from airflow_merge_provider.jobs.delta.writer import create_table, overwrite_table
from airflow_merge_provider.jobs.run.change_set import ChangeSet, replace_all_rows
from airflow_merge_provider.jobs.run.job_run import JobRun
from airflow_merge_provider.jobs.run.target import TargetTable
from tests.sixth_capability.config import CopyConfig
from tests.sixth_capability.decision import JOB, CopyDecision, open_run


def run(spark: SparkSession, request: JobRequest, progress: Progress) -> Report:
    decision = open_run(SparkLog(spark), CopyConfig.parse(request.config), request, progress)
    return CopyRun(spark, decision, TargetTable(spark, JOB, decision)).run_to_end()


@dataclass(frozen=True)
class CopyRun(JobRun):
    """One copy of a source into a target, which loses its rows."""

    spark: SparkSession
    decision: CopyDecision
    target: TargetTable

    @property
    def is_overwrite(self) -> bool:
        return True

    def describe_plan(self) -> Details:
        return {"columns": read_dataset(self.spark, self.decision.source).columns}

    def count_live_rows(self) -> int:
        return self.target.count_live_rows()

    def execute(self, run_mode: RunMode, reason: str) -> Report:
        rows = self.hold_rows(read_dataset(self.spark, self.decision.source))
        copied = rows.count()
        result = RunResult(run_mode, reason, self.count_rows(copied), {"copied": copied})
        return self.commit_result(
            result, lambda: self._write_rows(rows, result), lambda: self._list_changes(rows)
        )

    def _list_changes(self, rows: DataFrame) -> ChangeSet:
        stored = None if self.last is None else self.target.read_rows()
        return replace_all_rows(stored, rows, [self.decision.config.primary_key])

    def _write_rows(self, rows: DataFrame, result: RunResult) -> Report:
        def write() -> None:
            if self.last is None:
                create_table(self.target.dataset, rows, JOB, options=self.write_options)
            else:
                overwrite_table(self.target.dataset, rows)

        state = {**self.reporter.build_state(result), "key": [self.decision.config.primary_key]}
        commit = self.target.commit_state(state, write)
        return self.reporter.build_report(result, version=commit.version, changed=True)
