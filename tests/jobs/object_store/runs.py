"""Run jobs over tables on S3, as a Spark process does, and read and write these tables without Spark."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from airflow_merge_provider.core.protocol import Job, JobRequest, RunToken
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.run.population import run_with_population
from airflow_merge_provider.jobs.run.retry import run_attempt
from tests.reports import check_report
from tests.s3_server import S3Server


class Lake:
    """A warehouse on S3 and the runs over its tables."""

    def __init__(self, spark: SparkSession, server: S3Server, location: str) -> None:
        self.spark, self.server, self.location = spark, server, location
        self.options = server.settings.as_delta_rs()
        self._runs = 0

    def write_rows(self, name: str, rows: Sequence[Mapping[str, Any]], mode: Any = "overwrite") -> None:
        """Write a table without Spark."""
        table = pa.Table.from_pylist([dict(row) for row in rows])
        write_deltalake(f"{self.location}/{name}", table, mode=mode, storage_options=self.options)

    def open_table(self, name: str) -> DeltaTable:
        """Open a table without Spark."""
        return DeltaTable(f"{self.location}/{name}", storage_options=self.options)

    def open_files(self) -> Any:
        """Return the file system of the bucket, without Spark."""
        import s3fs

        settings = self.server.settings.as_fsspec()
        return s3fs.S3FileSystem(**settings, skip_instance_cache=True, use_listings_cache=False)

    def build_request(self, job: Job, config: Mapping[str, Any], **more: Any) -> JobRequest:
        """Return the request of a new run."""
        self._runs += 1
        return JobRequest(
            job=job,
            config=dict(config),
            run=RunToken(dag_id="tests", run_id=f"run {self._runs}", task_id="merge"),
            warehouse=self.location,
            started_at=self._runs * 1_000_000,
            **more,
        )

    def run_job(self, job: Job, config: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        """Run a job once, and return its report."""
        run = importlib.import_module(f"airflow_merge_provider.jobs.{job}.job").run
        request = self.build_request(job, config, **more)
        progress = Progress(out=str)
        return check_report(run_with_population(self.spark, request, progress, partial(run_attempt, run=run)))

    def read_rows(self, name: str) -> list[str]:
        """Return the rows of a table as JSON, sorted."""
        frame = self.spark.read.format("delta").load(f"{self.location}/{name}")
        return sorted(row[0] for row in frame.selectExpr("to_json(struct(*))").collect())
