"""Tables in memory, which runs read and write if a vector does not need Delta tables.

A Delta table of ten rows costs several Spark jobs for every version that is read, and more for writing. The
result of a run does not depend on where its rows are stored, so most vectors use these tables; some vectors
of each capability run on Delta from end to end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.dataset import Dataset, resolve_dataset
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.report import Measure
from airflow_merge_provider.core.run.previous_run import PreviousRun, RunCommit
from airflow_merge_provider.core.run.reporter import Progress, RunReporter
from airflow_merge_provider.core.run.table_log import PinnedDataset
from airflow_merge_provider.jobs.delta.side_table import SideTable
from airflow_merge_provider.jobs.delta.table import MemoryDataset, build_row_counter, pin_dataset
from airflow_merge_provider.jobs.delta.transaction import CommitResult
from airflow_merge_provider.jobs.spark.staging import create_dataframe


class MemoryTable:
    """A source: its rows and the number of their changes."""

    def __init__(self, name: str, folder: Path) -> None:
        self._dataset = Dataset(name, path=str(folder / name))
        self._version = -1
        self._rows: pa.Table | None = None

    @property
    def rows(self) -> pa.Table | None:
        """Return the rows; None before the first write."""
        return self._rows

    def write_rows(self, rows: pa.Table) -> None:
        """Replace all rows."""
        self._rows = rows
        self._version += 1

    def append_rows(self, rows: pa.Table) -> None:
        """Append rows."""
        self.write_rows(rows if self._rows is None else pa.concat_tables([self._rows, rows]))

    def pin_rows(self, spark: SparkSession) -> PinnedDataset:
        """Return the rows at their version, as a run pins a dataset."""
        if self._rows is None:
            return PinnedDataset(self._dataset, None)
        frame = create_dataframe(spark, self._rows)
        return MemoryDataset(self._dataset, self._version, self._dataset.id, rows=frame)


class MemoryTables:
    """Sources by name."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._folder = spark, folder
        self._tables: dict[str, MemoryTable] = {}

    def append_rows(self, dataset: str, rows: pa.Table) -> None:
        """Append rows to a dataset."""
        self._get_table(dataset).append_rows(rows)

    def write_rows(self, dataset: str, rows: pa.Table) -> None:
        """Replace all rows of a dataset."""
        self._get_table(dataset).write_rows(rows)

    def read_rows(self, dataset: str) -> pa.Table | None:
        """Return all rows of a dataset; None before the first write."""
        return self._get_table(dataset).rows

    def pin_dataset(self, dataset: str) -> PinnedDataset:
        """Return a dataset as a run pins it; a dataset that was never written here is read from Delta."""
        if dataset in self._tables:
            return self._tables[dataset].pin_rows(self._spark)
        return pin_dataset(self._spark, resolve_dataset(dataset, str(self._folder)))

    def _get_table(self, name: str) -> MemoryTable:
        return self._tables.setdefault(name, MemoryTable(name, self._folder))


class MemorySideTable(SideTable):
    """Side table of a target."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.dataset, self.owner = Dataset("memory", path="memory"), "memory"
        self.version: int | None = None
        self._rows: DataFrame | None = None

    def has_rows(self, started_at: int) -> bool:
        """Return whether there are rows."""
        return self._rows is not None and not self._rows.isEmpty()

    def read_rows(self) -> DataFrame | None:
        """Return the rows; None before the first write."""
        return self._rows

    def replace_rows(self, rows: DataFrame, *, metadata: Mapping[str, Any] | None = None) -> CommitResult:
        """Replace all rows."""
        self._rows = self._spark.createDataFrame(rows.toArrow(), rows.schema)
        self.version = 0 if self.version is None else self.version + 1
        return CommitResult(self.version, self.version + 1)

    def append_rows(self, rows: DataFrame, *, new_columns: bool = False) -> CommitResult:
        """Append rows."""
        return self.replace_rows(rows if self._rows is None else self._rows.unionByName(rows))


def build_reporter(
    spark: SparkSession,
    request: JobRequest,
    counts: Sequence[Measure],
    target: Dataset,
    sources: Sequence[PinnedDataset],
    last: PreviousRun | None,
) -> RunReporter:
    """Return the reporter of a run whose source and target were found in memory."""
    named = {source.dataset.id: source for source in sources}
    return RunReporter(build_row_counter(spark), request, Progress(out=str), counts, target, named, last)


class MemoryTarget:
    """The rows that runs write, and the metadata of the last commit."""

    def __init__(self, name: str, folder: Path) -> None:
        self.dataset = Dataset(name, path=str(folder / name))
        self.last: PreviousRun | None = None
        self.rows: DataFrame | None = None
        self._commits: list[RunCommit] = []

    def find_commits(self, request: JobRequest) -> None:
        """Find the commits of earlier attempts of a run, as a run does on a Delta table."""
        if self.last is None:
            return
        commits = [
            commit for commit in reversed(self._commits) if request.run.is_same_run(commit.state["token"])
        ]
        own_commits = [commit for commit in commits if request.run.is_same_attempt(commit.state["token"])]
        self.last = replace(
            self.last, own_commit=next(iter(own_commits), None), cleared_commit=next(iter(commits), None)
        )

    @property
    def commits(self) -> Sequence[RunCommit]:
        """Return the commits, oldest first."""
        return self._commits

    def read_rows(self) -> DataFrame:
        """Return the rows after the last run."""
        if self.rows is None:
            raise AssertionError("nothing was written yet")
        return self.rows

    def count_live_rows(self) -> int:
        """Return the number of rows."""
        return self.read_rows().count()

    def pin_rows(self) -> PinnedDataset:
        """Return the rows as a run pins a dataset."""
        return MemoryDataset(self.dataset, self.last.version if self.last else None, rows=self.rows)

    def store_rows(self, rows: DataFrame) -> None:
        """Compute rows now, because their inputs may have changed when they are read."""
        self.rows = rows.localCheckpoint(eager=True)

    def commit_state(self, state: Mapping[str, Any], write: Callable[[], object]) -> CommitResult:
        """Commit a run, and store its state as the text in the commit metadata."""
        number = self.last.number + 1 if self.last else 1
        write()
        version = number - 1
        stored_state = json.loads(json.dumps({**state, "number": number}))
        self._commits.append(RunCommit(version, stored_state))
        self.last = PreviousRun(number, version, version, stored_state, newest_state=stored_state)
        return CommitResult(version, number)
