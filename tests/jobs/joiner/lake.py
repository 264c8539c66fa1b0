"""A join in a folder of its own: its inputs are written without Spark, its runs match the operator's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.joiner.job import run
from tests.reports import check_report
from tests.tables import read_rows

TARGET = "joined"
CUSTOMERS = pa.table({"id": [1, 2, 3], "name": ["Alex", "Bob", "Cathie"]})
PURCHASES = pa.table({"purchase": [23, 24, 25, 26], "customer": [1, 2, 2, 9]})
SELECTED = "customers.id, customers.name, purchases.purchase"


class Lake:
    """Tables below one folder, and the target that joins of them write."""

    def __init__(self, spark: SparkSession, folder: Path, **settings: Any) -> None:
        self.spark, self.folder = spark, folder
        self.settings = {
            "inputs": {"customers": "customers", "purchases": "purchases"},
            "join_keys": "customers.id = purchases.customer",
            "required_inputs": "customers",
            "selected_fields": SELECTED,
            "target": TARGET,
            **settings,
        }
        self._runs = 0
        self.write_rows("customers", CUSTOMERS)
        self.write_rows("purchases", PURCHASES)

    def write_rows(self, dataset: str, rows: pa.Table, mode: str = "overwrite") -> None:
        schema_mode = "overwrite" if mode == "overwrite" else None
        write_deltalake(str(self.folder / dataset), rows, mode=mode, schema_mode=schema_mode)

    def run_job(self, run_id: str | None = None, **more: Any) -> dict[str, Any]:
        """Run the job once; arguments of the request go there, all others are configuration."""
        self._runs += 1
        request = self.build_request(run_id or str(self._runs), **more)
        return check_report(run(self.spark, request, Progress(out=str)))

    def build_request(self, run_id: str, **more: Any) -> JobRequest:
        """Build the request that the operator sends to a Spark process."""
        request_names = ("until", "full_refresh", "max_change_ratio", "save_plan")
        request_arguments = {name: more.pop(name) for name in request_names if name in more}
        return JobRequest(
            job="joiner",
            config={name: value for name, value in {**self.settings, **more}.items() if value is not None},
            run=RunToken(dag_id="tests", run_id=run_id, task_id="join"),
            warehouse=str(self.folder),
            started_at=self._runs,
            **request_arguments,
        )

    def read_rows(self) -> list[tuple[Any, ...]]:
        """Return the target's rows, sorted."""
        return sorted((tuple(row.values()) for row in read_rows(self.folder / TARGET)), key=repr)

    def read_version(self) -> int | None:
        """Return the target's version, None if there is no target."""
        path = self.folder / TARGET
        return DeltaTable(str(path)).version() if (path / "_delta_log").exists() else None
