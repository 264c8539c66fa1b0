"""A job in place of a capability: it adds values to a target, so that a repeated run changes the result.

As a script it is that job in a real Spark process; ``wait`` in its configuration names the moment at which
it stops and waits to be killed.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from pyspark.sql import SparkSession

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.report import Report
from airflow_merge_provider.core.run.previous_run import load_previous_run
from airflow_merge_provider.core.run.reporter import RunReporter, RunResult
from airflow_merge_provider.jobs.delta.table import SparkLog, build_row_counter, pin_dataset, read_dataset
from airflow_merge_provider.jobs.delta.writer import NEW, OLD, WriteOptions, create_table, merge_rows
from airflow_merge_provider.jobs.run.retry import commit_run

CAPABILITY = "probe"
ADD = (
    "WHEN MATCHED THEN UPDATE SET amount = __merge_old.amount + __merge_new.amount",
    "WHEN NOT MATCHED THEN INSERT *",
)


def build_request(source: str, target: str, run_id: str = "r1", **config: Any) -> JobRequest:
    """Build the request for one run of the probe, under a job name that the protocol allows."""
    return JobRequest(
        job="merge_source",
        config={"source": source, "target": target, **config},
        run=RunToken(dag_id="d", run_id=run_id, task_id="t"),
        started_at=1,
    )


def run(spark: SparkSession, request: Any, progress: Any) -> Report:
    """Merge in the order of every capability: resolve inputs, pin versions, read, commit once."""
    target = Dataset(id="target", path=request.config["target"])
    token = request.run.model_dump()
    with progress.time_step("look"):
        last = load_previous_run(SparkLog(spark), target, CAPABILITY, request)
    reporter = RunReporter(build_row_counter(spark), request, progress, (), target, {}, last)
    if last is not None and last.own_commit is not None:
        result = RunResult("noop", "an earlier attempt has committed")
        return reporter.build_report(result, version=last.own_commit.version)
    pinned = pin_dataset(spark, Dataset(id="source", path=request.config["source"]))
    rows = read_dataset(spark, pinned)
    if request.config.get("slow"):
        # The first row is written at once, so that a file shows that the statement has started.
        nothing = "length(java_method('java.lang.Thread', 'sleep', 4000L)) - 4"
        rows = rows.selectExpr("id", f"amount + IF(id > 0, {nothing}, 0) AS amount")
        progress.log_line("slow from here")
    if request.config.get("fail"):
        raise DataError("the source is not to be trusted")
    if request.config.get("broken"):
        rows.selectExpr("assert_true(amount < 0, 'amounts are negative')").collect()
    _wait_at(request, progress, "before")

    options = WriteOptions.from_request(request)

    def write_rows() -> None:
        if last is None:
            create_table(target, rows, CAPABILITY, options=options)
        else:
            merge_rows(
                spark,
                target,
                rows,
                f"{OLD}.id = {NEW}.id",
                ADD,
            )

    with progress.time_step("write"):
        committed = commit_run(spark, target, CAPABILITY, last, {"token": token}, write_rows, options=options)
    _wait_at(request, progress, "after")
    return reporter.build_report(
        RunResult("full", "a probe reads all"), version=committed.version, changed=True
    )


def _wait_at(request: Any, progress: Any, moment: str) -> None:
    if request.config.get("wait") == moment:
        progress.log_line(f"waiting {moment} the commit")
        time.sleep(600)


if __name__ == "__main__":
    from airflow_merge_provider.jobs.run.entry import main

    sys.exit(main(sys.argv[1:], jobs={"merge_source": run}))
