"""Loads into one target: sources are written without Spark, runs match those of the operators."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from airflow_merge_provider.core.population import Population
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.report import Report
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.merge_load.job import run
from airflow_merge_provider.jobs.run.population import run_with_population
from tests.conformance.merge_load import MemoryLake, MemoryTarget
from tests.reports import check_report
from tests.tables import read_rows

Rows = Sequence[Mapping[str, Any]]


class Killed(BaseException):
    """An exception that stands for the end of the process: no handler catches it."""


def raise_killed(*args: Any, **more: Any) -> Any:
    """Replace a step before which the process ends."""
    raise Killed


class Loads:
    """A target and the loads that go into it."""

    def __init__(self, spark: SparkSession, folder: Path, strategy: str, **settings: Any) -> None:
        self.spark, self.folder = spark, folder
        self.settings = {"strategy": strategy, "target": "t", "source": "s", **settings}
        self.population: Population | None = None
        self._runs = 0

    @property
    def target(self) -> Path:
        return self.folder / "t"

    def load_rows(
        self, rows: Rows | pa.Table | None = None, run_id: str | None = None, **more: Any
    ) -> dict[str, Any]:
        """Write rows as the source and run once; arguments of the request go there."""
        self._runs += 1
        if rows is not None:
            self.write_source(rows)
        request_names = ("until", "full_refresh", "max_change_ratio", "save_plan")
        request_arguments = {name: more.pop(name) for name in request_names if name in more}
        request = JobRequest(
            job="merge_load",
            config={**self.settings, **more},
            run=RunToken(dag_id="tests", run_id=run_id or str(self._runs), task_id="load"),
            warehouse=str(self.folder),
            started_at=self._runs * 1_000_000,
            population=self.population,
            **request_arguments,
        )
        return check_report(self._run_job(request))

    def check_history(self, **more: Any) -> dict[str, Any]:
        """Check that the target is a valid history."""
        request = JobRequest(
            job="merge_load",
            config={"strategy": "scd2-check", "target": "t", **more},
            run=RunToken(dag_id="tests", run_id="check", task_id="check"),
            warehouse=str(self.folder),
            started_at=0,
        )
        return check_report(self._run_job(request))

    def write_source(self, rows: Rows | pa.Table, name: str = "s") -> None:
        """Write the source anew."""
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist([dict(row) for row in rows])
        self._write_table(table, name)

    def read_rows(self, *names: str) -> list[dict[str, Any]]:
        """Return the rows of the target without NULLs, in a comparable order."""
        return sort_rows(
            {
                name: value
                for name, value in row.items()
                if value is not None and name != "_row_hash" and (not names or name in names)
            }
            for row in self._read_target()
        )

    def rows_of(self, tail: str) -> list[dict[str, Any]]:
        """Return the rows of a side table or of the target, sorted by their content."""
        stored_rows = read_rows(f"{self.target}{tail}")
        rows = [{k: v for k, v in row.items() if v is not None} for row in stored_rows]
        return sorted(
            rows, key=lambda row: [str(row.get(name)) for name in ("_root_id", "_list_index", "id")]
        )

    def read_version(self) -> int | None:
        """Return the target's version, None if there is no target."""
        return DeltaTable(str(self.target)).version() if (self.target / "_delta_log").exists() else None

    def read_history(self, key: str, *state: str) -> dict[Any, list[tuple[Any, Any, Any]]]:
        """Return the versions of each key: from and to as days, and the state."""
        history: dict[Any, list[tuple[Any, Any, Any]]] = {}
        for row in self.read_rows():
            at = tuple(format_day(row.get(name)) for name in ("valid_from", "valid_to"))
            history.setdefault(row[key], []).append((*at, tuple(row.get(name) for name in state)))
        return {name: sorted(versions) for name, versions in history.items()}

    def _run_job(self, request: JobRequest) -> Report:
        return run_with_population(self.spark, request, Progress(out=str), run)

    def _write_table(self, table: pa.Table, name: str) -> None:
        write_deltalake(str(self.folder / name), table, mode="overwrite", schema_mode="overwrite")

    def _read_target(self) -> list[dict[str, Any]]:
        return read_rows(self.target)


class MemoryLoads(Loads):
    """The same with source and target in memory."""

    def __init__(self, spark: SparkSession, folder: Path, strategy: str, **settings: Any) -> None:
        super().__init__(spark, folder, strategy, **settings)
        self._lake = MemoryLake(spark, folder)

    @property
    def target_table(self) -> MemoryTarget:
        """The target with its commits and side tables."""
        return self._lake.target

    def read_version(self) -> int | None:
        """Return the number of commits after the first one, None if there is none."""
        last = self._lake.target.last
        return None if last is None else last.version

    def _run_job(self, request: JobRequest) -> Report:
        return self._lake.run_job(request)

    def _write_table(self, table: pa.Table, name: str) -> None:
        self._lake.write_rows(name, table)

    def _read_target(self) -> list[dict[str, Any]]:
        return [row.asDict(recursive=True) for row in self._lake.target.read_rows().collect()]


def format_day(at: datetime | None) -> int | None:
    """Return the day of a timestamp of January 2024."""
    return None if at is None else at.day


def sort_rows(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows sorted by their content."""
    return sorted(map(dict, rows), key=lambda row: json.dumps(row, sort_keys=True, default=str))
