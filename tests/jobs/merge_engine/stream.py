"""A merge engine in a folder of its own: batches are written without Spark, runs match the operator's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction
from pyarrow import parquet
from pyspark.sql import SparkSession

from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.merge_engine.job import run
from tests.reports import check_report
from tests.tables import read_rows


class Stream:
    """A source of changes below one folder, and the target that runs fold it into."""

    def __init__(self, spark: SparkSession, folder: Path, **settings: Any) -> None:
        self.spark, self.folder = spark, folder
        self.settings = {"source": "changes", "target": "state", "primary_key": ["k"], **settings}
        self.log_lines: list[str] = []
        self._runs = 0

    def write_batch(self, columns: Mapping[str, Any], source: str = "changes", **options: Any) -> None:
        """Append a batch, given by its columns, in one commit."""
        arrays = {
            name: values if isinstance(values, pa.Array) else pa.array(values)
            for name, values in columns.items()
        }
        write_deltalake(str(self.folder / source), pa.table(arrays), **{"mode": "append", **options})

    def add_files(self, batches: Mapping[str, Mapping[str, Any]]) -> None:
        """Append the batch of each partition in a file ``data.parquet``, in one commit of another program."""
        folder, actions = self.folder / "changes", []
        for partition, columns in batches.items():
            path = folder / partition / "data.parquet"
            path.parent.mkdir()
            parquet.write_table(pa.table(dict(columns)), path)
            values = dict([partition.split("=")])
            actions.append(AddAction(f"{partition}/data.parquet", path.stat().st_size, values, 0, True, "{}"))
        table = DeltaTable(str(folder))
        table.create_write_transaction(actions, "append", table.schema(), ["day"])

    def run_sql(self, statement: str) -> None:
        """Execute a statement; {source} and {target} stand for the tables."""
        tables = {name: f"delta.`{self.folder / self.settings[name]}`" for name in ("source", "target")}
        self.spark.sql(statement.format(**tables)).collect()

    def run_job(self, run_id: str | None = None, **more: Any) -> dict[str, Any]:
        """Run the job once; settings of the request go there, all others are configuration."""
        self._runs += 1
        request_names = ("until", "full_refresh", "started_at", "max_change_ratio", "save_plan")
        request_fields = {"started_at": self._runs} | {
            name: more.pop(name) for name in request_names if name in more
        }
        request = JobRequest(
            job="merge_engine",
            config={**self.settings, **more},
            run=RunToken(dag_id="tests", run_id=run_id or str(self._runs), task_id="merge"),
            warehouse=str(self.folder),
            **request_fields,
        )
        return check_report(run(self.spark, request, Progress(out=self.log_lines.append)))

    def read_rows(self, table: str = "state", order: Sequence[str] = ("k",)) -> list[tuple[Any, ...]]:
        """Return the rows of a table, ordered by some columns."""
        columns = ", ".join(f'"{name}" NULLS FIRST' for name in order)
        rows = read_rows(self.folder / table, query=f"SELECT * FROM t ORDER BY {columns}")
        return [tuple(row.values()) for row in rows]

    def list_files(self) -> list[str]:
        """Return the files of the target."""
        return sorted(DeltaTable(str(self.folder / "state")).file_uris())

    def read_version(self, table: str = "state") -> int | None:
        """Return a table's version, None if there is no table."""
        path = self.folder / table
        return DeltaTable(str(path)).version() if (path / "_delta_log").exists() else None
