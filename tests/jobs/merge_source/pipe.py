"""A merge source in a folder of its own: inputs are written without Spark, runs match the operator's."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.report import Report
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.merge_source.job import run
from tests.conformance.merge_source import SCHEMA, TARGET, MemoryLake, iterate_written
from tests.reports import check_report

REQUESTED = ("until", "full_refresh", "max_change_ratio")
JSON = {"entity_column": "entity"}


class Pipe:
    """Datasets below one folder, and the target that runs over them write."""

    def __init__(self, spark: SparkSession, folder: Path, **settings: Any) -> None:
        self.spark, self.folder = spark, folder
        self.settings = {"version": 2, "target": TARGET, **settings}
        self.keeps_feeds = settings.get("change_detection") == "change_feed"
        self.log_lines: list[str] = []
        self._runs = 0
        self._last_updated = -1
        self._versions: dict[str, int] = {}

    @property
    def target(self) -> Path:
        return self.folder / TARGET

    def write_rows(self, dataset: str, rows: pa.Table, mode: str = "append") -> None:
        """Write a typed table."""
        feed = {"delta.enableChangeDataFeed": "true"} if self.keeps_feeds else None
        write_deltalake(str(self.folder / dataset), rows, mode=mode, configuration=feed)

    def write_json(self, dataset: str, entities: Iterable[Any], mode: str = "append") -> None:
        """Write entities as JSON strings, numbered in their order."""
        texts = [entity if isinstance(entity, str) else json.dumps(entity) for entity in entities]
        written = self._versions.get(dataset, 0)
        numbers = list(range(written + 1, written + len(texts) + 1))
        self._versions[dataset] = written + len(texts)
        self.write_rows(dataset, pa.table({"_updated": numbers, "entity": texts}, SCHEMA), mode)

    def run_job(self, run_id: str | None = None, **more: Any) -> dict[str, Any]:
        """Run the job once; arguments of the request go there, all others are configuration."""
        self._runs += 1
        request_fields = {name: more.pop(name) for name in REQUESTED if name in more}
        request = JobRequest(
            job="merge_source",
            config={**self.settings, **more},
            run=RunToken(dag_id="tests", run_id=run_id or str(self._runs), task_id="merge"),
            warehouse=str(self.folder),
            started_at=self._runs,
            **request_fields,
        )
        return check_report(self._run_request(request))

    def read_rows(self) -> list[dict[str, Any]]:
        """Return the rows of the target as entities, in its order."""
        return list(iterate_written(self.target_rows(), -1))

    def read_new_rows(self) -> list[dict[str, Any]]:
        """Return the rows written since the last call, in their order."""
        rows = list(iterate_written(self.target_rows(), self._last_updated))
        self._last_updated = max([self._last_updated, *(row["_updated"] for row in rows)])
        return rows

    def _run_request(self, request: JobRequest) -> Report:
        return run(self.spark, request, Progress(out=self.log_lines.append))

    def target_rows(self) -> DataFrame:
        """Return the rows of the target with all its columns."""
        return self.spark.read.format("delta").load(str(self.target))

    def read_version(self) -> int | None:
        """Return the target's version, None if there is no target."""
        return DeltaTable(str(self.target)).version() if (self.target / "_delta_log").exists() else None

    def read_clusters(self) -> list[list[str]]:
        """Return the original ids of every output, in their order."""
        return [row["$ids"] for row in self.read_rows()]


class MemoryPipe(Pipe):
    """The same with datasets and target in memory."""

    def __init__(self, spark: SparkSession, folder: Path, **settings: Any) -> None:
        super().__init__(spark, folder, **settings)
        self._lake = MemoryLake(spark, folder)

    def write_rows(self, dataset: str, rows: pa.Table, mode: str = "append") -> None:
        """Write a typed table."""
        (self._lake.append_rows if mode == "append" else self._lake.write_rows)(dataset, rows)

    def read_version(self) -> int | None:
        """Return the number of commits after the first one, None if there is none."""
        last = self._lake.target.last
        return None if last is None else last.version

    def _run_request(self, request: JobRequest) -> Report:
        return self._lake.run_job(request)

    def target_rows(self) -> DataFrame:
        """Return the rows of the target with all its columns."""
        return self._lake.target.read_rows()


class FeedPipe(MemoryPipe):
    """The same with datasets on Delta, the only storage with change data feeds."""

    def write_rows(self, dataset: str, rows: pa.Table, mode: str = "append") -> None:
        """Write a typed table."""
        Pipe.write_rows(self, dataset, rows, mode)


def build_column(values: Iterable[Any], kind: pa.DataType | None = None) -> pa.Array:
    return pa.array(list(values), kind)


def build_table(columns: Mapping[str, Any]) -> pa.Table:
    """Build a table of columns given as lists or as arrays."""
    return pa.table(
        {name: pa.array(values) if isinstance(values, list) else values for name, values in columns.items()}
    )
