"""Read a request from a file or a URI, run its job, and write the result."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_merge_provider.core.capabilities import JOBS
from airflow_merge_provider.core.capability import load_function
from airflow_merge_provider.core.change_plan.shown_rows import mask_trace, use_shown_rows
from airflow_merge_provider.core.child_process import die_with_parent
from airflow_merge_provider.core.dataset import escape_pattern
from airflow_merge_provider.core.errors import (
    ConfigError,
    MergeError,
    Problem,
    SetupError,
    suggest_name,
)
from airflow_merge_provider.core.expectations.result import ExpectationError, FailedExpectations
from airflow_merge_provider.core.lineage import describe_datasets
from airflow_merge_provider.core.protocol import (
    DatasetDescription,
    JobFailure,
    JobRequest,
    JobResult,
    parse_request,
)
from airflow_merge_provider.core.report import Report, summarize_report
from airflow_merge_provider.core.risk import RiskError
from airflow_merge_provider.core.run.reporter import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def read_text(spark: SparkSession, uri: str) -> str:
    """Return the text of a file."""
    return str(spark.read.text(escape_pattern(uri), wholetext=True).collect()[0][0])


def write_text(spark: SparkSession, uri: str, text: str) -> None:
    """Write a text without line breaks into a folder, which has the file ``_SUCCESS`` when it is complete."""
    rows = spark.createDataFrame([(text,)], "value string")
    rows.coalesce(1).write.mode("overwrite").text(uri)


Run = Callable[[Any, JobRequest, Progress], Report]

_LONGEST_TRACE = 20_000
# The errors with a report that a person needs to assess them.
_REPORTING = (RiskError, ExpectationError)


def main(argv: Sequence[str], jobs: Mapping[str, Run] | None = None) -> int:
    """Run the request file ``argv[0]`` and write the result file ``argv[1]``; return 0 if the run succeeded.

    Both may be URIs. ``argv[2]`` may name a file of session settings. ``jobs`` replaces the capabilities of
    this package.
    """
    die_with_parent()
    if os.environ.get("SPARK_REMOTE"):
        # PySpark's client notifies the server of each plan that is garbage-collected. If Python collects in a
        # thread that gRPC starts under its lock, both wait for ever; and this process lives for one run only.
        gc.disable()
        # The server would continue the statement: it must be notified that the client is gone.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    progress = Progress()
    if "://" in argv[0]:
        return _run_from_uris(argv[0], argv[1], progress, jobs)
    request_file, result_file, *conf_file = (Path(argument) for argument in argv)
    try:
        conf = json.loads(conf_file[0].read_text(encoding="utf-8")) if conf_file else {}
        request = parse_request(request_file.read_text(encoding="utf-8"))
        answer = answer_request(request, conf, progress, jobs)
    except MergeError as error:
        answer = build_failure(error)
    _write_answer(result_file, answer)
    return 0 if answer.ok else 1


def _run_from_uris(
    request_uri: str, result_uri: str, progress: Progress, jobs: Mapping[str, Run] | None
) -> int:
    """Read the request and write the result with Spark, before its session ends.

    :raises SetupError: if Spark cannot start: there is nowhere to write a result then.
    """
    with progress.time_step("session"):
        spark = _open_session({})

    answer: JobResult | JobFailure
    with ExitStack() as stack:
        try:
            request = parse_request(read_text(spark, request_uri))
            stack.enter_context(use_shown_rows(request.shown_rows))
            run = jobs[request.job] if jobs else _import_job(request.job)
            answer = _run_request(spark, request, progress, run)
        except Exception as error:  # noqa: BLE001 - the boundary: every error goes into the result file
            answer = build_failure(error)
    write_text(spark, result_uri, answer.model_dump_json())
    spark.stop()
    return 0 if answer.ok else 1


def answer_request(
    request: JobRequest, conf: Mapping[str, str], progress: Progress, jobs: Mapping[str, Run] | None = None
) -> JobResult | JobFailure:
    """Run one request in the session of this process; return every error as a failure, never raise it."""
    with use_shown_rows(request.shown_rows):
        return _answer_request(request, conf, progress, jobs)


def _answer_request(
    request: JobRequest, conf: Mapping[str, str], progress: Progress, jobs: Mapping[str, Run] | None
) -> JobResult | JobFailure:
    spark = None
    try:
        with progress.time_step("import"):
            run = jobs[request.job] if jobs else _import_job(request.job)
        with progress.time_step("session"):
            spark = _open_session(conf)
        return _run_request(spark, request, progress, run)
    except Exception as error:  # noqa: BLE001 - the boundary: every error goes into the result file
        return build_failure(error, has_begun=spark is not None)
    except SystemExit:
        if spark is not None:
            spark.interruptAll()
        raise
    finally:
        if spark is not None:
            spark.stop()


def _run_request(spark: Any, request: JobRequest, progress: Progress, run: Run) -> JobResult:
    from airflow_merge_provider.jobs.run.population import run_with_population  # noqa: PLC0415 - needs pyspark
    from airflow_merge_provider.jobs.run.retry import run_attempt  # noqa: PLC0415 - needs pyspark

    report = run_with_population(spark, request, progress, partial(run_attempt, run=run))
    datasets = _describe_datasets(spark, request, report, progress)
    progress.log_line(summarize_report(report))
    return JobResult(report=report.with_seconds(progress.list_seconds()), datasets=datasets)


def build_failure(error: Exception, *, has_begun: bool = True) -> JobFailure:
    """Return an error as a message of the protocol.

    :param has_begun: whether the run had a session.
    """
    merge_error: MergeError | None
    if isinstance(error, MergeError):
        merge_error, trace = error, ""
    else:
        from airflow_merge_provider.jobs.spark import errors  # noqa: PLC0415 - pyspark may be missing

        merge_error = errors.convert_error(error, has_begun=has_begun)
        trace = mask_trace("".join(traceback.format_exception(error)))[-_LONGEST_TRACE:]
        if merge_error is None:
            message = errors.describe_unknown_error(error)
            return JobFailure(code="job", message=message, retryable=True, trace=trace)
    return JobFailure(
        code=merge_error.code,
        message=merge_error.message,
        problems=merge_error.problems,
        retryable=merge_error.retryable,
        trace=trace,
        report=merge_error.report if isinstance(merge_error, _REPORTING) else FailedExpectations(),
    )


def _describe_datasets(
    spark: Any, request: JobRequest, report: Report, progress: Progress
) -> dict[str, DatasetDescription]:
    if not request.describes_datasets:
        return {}
    from airflow_merge_provider.jobs.delta.table import SparkLog  # noqa: PLC0415 - needs pyspark

    with progress.time_step("describe datasets"):
        return describe_datasets(SparkLog(spark), request, report, progress)


def _import_job(name: str) -> Run:
    if name not in JOBS:
        hint = suggest_name(name, JOBS, "jobs")
        raise ConfigError.from_problems([Problem("job", "unknown", f"unknown job {name!r}", hint)])
    try:
        return load_function(JOBS[name].job)
    except ImportError as error:
        raise _refuse_missing_library(error) from None


def _open_session(conf: Mapping[str, str]) -> Any:
    try:
        from airflow_merge_provider.jobs.spark.session import get_session  # noqa: PLC0415 - may be missing
    except ImportError as error:
        raise _refuse_missing_library(error) from None
    return get_session(conf)


def _refuse_missing_library(error: ImportError) -> SetupError:
    return SetupError(
        f"The Python of the Spark driver cannot import {(error.name or 'pyspark').partition('.')[0]}: "
        f"run pip install 'airflow-merge-provider[spark]' on the driver ({error})"
    )


def _write_answer(path: Path, answer: JobResult | JobFailure) -> None:
    """Write to a temporary name first, so that a reader finds a complete file or none."""
    part = path.with_name(f"{path.name}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(answer.model_dump_json())
    part.replace(path)
