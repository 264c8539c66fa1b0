"""Runs that many tests share, and the undo of the newest of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.undo import job as undo
from tests.reports import check_report


class Steps:
    """Runs over all types: each step is done once, when a cell asks for it."""

    def __init__(self) -> None:
        self._results: dict[str, Any] = {}

    def find_result(self, step: str) -> Any:
        """Return the result of the method of a step, or raise its error again."""
        if step not in self._results:
            try:
                self._results[step] = getattr(self, f"_{step}")()
            except Exception as error:  # noqa: BLE001 - every cell of the step fails with it
                self._results[step] = error
        result = self._results[step]
        if isinstance(result, Exception):
            raise result
        return result


def undo_newest(spark: SparkSession, folder: Path, target: str) -> None:
    """Undo the newest run of a target."""
    token = RunToken(dag_id="tests", run_id="undo", task_id="undo")
    config = {"target": target}
    request = JobRequest(job="undo", config=config, run=token, warehouse=str(folder), started_at=0)
    check_report(undo.run(spark, request, Progress(out=str)))
