"""Commit a run once, and let an attempt succeed if its own earlier attempt has committed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from pyspark.sql import SparkSession

from airflow_merge_provider.core.change_plan.saved_plan import describe_outdated
from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import ConflictError, DataError, OutdatedPlanError, Problem
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.report import Report
from airflow_merge_provider.core.risk import RiskError
from airflow_merge_provider.core.run.previous_run import PreviousRun
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.core.run.table_log import parse_metadata
from airflow_merge_provider.core.source_offset import RunState
from airflow_merge_provider.core.spark_conf import SINGLE_WRITER, TIME_ZONE
from airflow_merge_provider.jobs.delta.log import read_history
from airflow_merge_provider.jobs.delta.log_store import require_safe_commits
from airflow_merge_provider.jobs.delta.transaction import CommitResult, commit_once
from airflow_merge_provider.jobs.delta.writer import DEFAULT_OPTIONS, WriteOptions, append_rows, set_flag
from airflow_merge_provider.jobs.run.plan_table import load_plan
from airflow_merge_provider.jobs.spark import sql
from airflow_merge_provider.jobs.spark.session import override_settings

Run = Callable[[SparkSession, JobRequest, Progress], Report]


class OwnAttemptWonError(ConflictError):
    """Raised if another attempt of the same run has committed first."""


def run_attempt(spark: SparkSession, request: JobRequest, progress: Progress, run: Run) -> Report:
    """Run a job; if another attempt of the same run commits meanwhile, report that commit.

    An undo checks its target itself, because that may be files.

    :raises SetupError: if another writer of the target could overwrite its commit.
    :raises RiskError: if the plan that the run applies is outdated; its report has the new plan, which was
        computed from the sources as they are now. If nothing is left to do, the run is without work instead.
    """
    if request.job != "undo":
        require_safe_commits(spark, request)
    planned = load_plan(spark, request)
    with override_settings(spark, _choose_settings(spark, request, progress)):
        try:
            return run(spark, planned, progress)
        except OwnAttemptWonError:
            progress.log_line("another attempt of this run has committed: reporting its commit")
            return run(spark, planned, progress)
        except DataError as error:
            if planned.saved_plan is None or isinstance(error, RiskError):
                raise
            outdated = _find_outdated(error)
            progress.log_line(f"{outdated.message}: planning again")
            changes = {"apply_plan": None, "approval": "never", "until": "transform", "save_plan": True}
            report = run(spark, request.model_copy(update=changes), progress)
            if report.run_mode != "noop":
                raise RiskError.from_problem(outdated, report) from error
        # Should a source change just now, the run stops: nobody has approved that change.
        return run(spark, request.model_copy(update={"apply_plan": None, "approval": "always"}), progress)


def _find_outdated(error: DataError) -> Problem:
    """Return why a plan is outdated: its changes are others now, or cannot be computed any more.

    The latter happens if the target is ahead of the sources of the plan. A mistake that has nothing to do
    with the plan is found again while planning, which raises it.
    """
    if isinstance(error, OutdatedPlanError):
        return error.problems[0]
    return describe_outdated(error.problems[0].message)


def _choose_settings(spark: SparkSession, request: JobRequest, progress: Progress) -> dict[str, str]:
    """Return the settings of the session that a run needs, or that a request asks for.

    Every run casts and writes times in one time zone, so that a run with other settings changes no row. A
    single writer is a setting because the log store reads it, inside Spark.
    """
    settings: dict[str, str] = {}
    if (zone := spark.conf.get(TIME_ZONE)) != "UTC":
        settings[TIME_ZONE] = "UTC"
        progress.log_line(f"{TIME_ZONE} is {zone} and has no effect: runs use UTC")
    if request.allow_single_writer:
        settings[SINGLE_WRITER] = "true"
    return settings


def commit_run(
    spark: SparkSession,
    target: Dataset,
    capability: str,
    previous: PreviousRun | None,
    state: RunState,
    write: Callable[[], object],
    *,
    options: WriteOptions = DEFAULT_OPTIONS,
) -> CommitResult:
    """Run ``write`` as the one commit of a run, which carries ``state`` for the next run.

    A target that is populated as soon as a run writes gets its flag before that commit.

    :param previous: the result of ``load_previous_run`` from before any source was read.
    :param write: executes exactly one statement that commits to the target.
    :raises ConflictError: if another run committed first; this one has written nothing then.
    :raises OwnAttemptWonError: if that was another attempt of this run.
    """
    number = previous.number + 1 if previous else 1
    since = previous.version if previous else -1
    metadata = {**state, "capability": capability, "number": number}
    try:
        if previous is not None and options.flagged_uri == target.uri:
            set_flag(spark, target)
        return commit_once(spark, target, capability, number, metadata, write, since=since)
    except ConflictError as error:
        later_entries = [entry for entry in read_history(spark, target, None) if entry.version > since]
        if state.get("token") and any(
            parse_metadata(later_entry).get("token") == state["token"] for later_entry in later_entries
        ):
            raise OwnAttemptWonError(error.message) from error
        raise


def renew_state(
    spark: SparkSession, target: Dataset, capability: str, previous: PreviousRun, options: WriteOptions
) -> None:
    """Commit the state of the previous run again, without rows, so that the log keeps it.

    If another writer commits meanwhile, nothing is written: a later run does it.
    """
    no_rows = spark.table(sql.quote_table(target)).limit(0)
    write = partial(append_rows, target, no_rows)
    with suppress(ConflictError):
        commit_run(spark, target, capability, previous, previous.renewed_state, write, options=options)


def purge_target(spark: SparkSession, target: Dataset) -> int:
    """Rewrite the files that hold deleted rows, in a separate commit, and return the target's version.

    The rows do not change, so the commit is not one of a run: an undo of the run before reverts both.
    """
    spark.sql(f"REORG TABLE {sql.quote_table(target)} APPLY (PURGE)").collect()
    return read_history(spark, target, 1)[0].version
