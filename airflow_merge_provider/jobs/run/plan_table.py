"""Save the change set of a run beside its target, and read the record of a saved plan."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.change_plan.saved_plan import PLAN, PLAN_SUFFIX, PlanChoice, SavedPlan
from airflow_merge_provider.core.change_plan.summary import ChangeSummary, PlanReference
from airflow_merge_provider.core.dataset import Dataset, resolve_dataset
from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.run.reporter import RunReporter
from airflow_merge_provider.core.run.table_log import parse_metadata
from airflow_merge_provider.core.source_offset import write_offsets
from airflow_merge_provider.jobs.delta.log import find_newest_version, read_commit_id, read_history
from airflow_merge_provider.jobs.delta.side_table import SideTable
from airflow_merge_provider.jobs.delta.writer import WriteOptions


def save_plan(reporter: RunReporter, text_rows: DataFrame, summary: ChangeSummary) -> ChangeSummary:
    """Replace the rows of ``<target>__plan``, and return the summary with the version of that table.

    :raises DataError: if the table belongs to another writer.
    :raises ConflictError: if another run saves a plan of the same target at the same time.
    """
    request, dataset = reporter.request, _find_plan_table(reporter.target)
    record = SavedPlan(
        job=request.job,
        config=request.config,
        full_refresh=request.full_refresh,
        target_version=reporter.version_before,
        rows_id=identify_rows(text_rows.sparkSession, reporter),
        offsets=write_offsets(source.offset for source in reporter.sources.values()),
        started_at=request.started_at,
        digest=summary.digest,
    )
    table = SideTable(text_rows.sparkSession, dataset, PLAN, None, options=WriteOptions.from_request(request))
    commit = table.replace_rows(text_rows, metadata={PLAN: record.model_dump()})
    reference = PlanReference(dataset=dataset.id, uri=dataset.uri, version=commit.version)
    reporter.progress.log_line(f"saved the plan in {dataset.uri}, version {commit.version}")
    return summary.model_copy(update={"saved": reference})


def identify_rows(spark: SparkSession, reporter: RunReporter) -> str | None:
    """Return what identifies the rows that the run found in the target; None if there was no target.

    Maintenance keeps it, and so does a ``RESTORE`` to the same rows. A table that was deleted and created
    again has other commits.
    """
    previous, target = reporter.previous, reporter.target
    if previous is None:
        return None
    # Unknown if the commit has aged out; then any later commit counts.
    version = previous.version if previous.rows_version is None else previous.rows_version
    newest = find_newest_version(spark, target) if target.format == "delta" else None
    digest = read_commit_id(spark, newest.location, version) if newest and version >= 0 else None
    return f"{version}:{digest}"


def load_plan(spark: SparkSession, request: JobRequest) -> JobRequest:
    """Return the request with the record of the plan that it applies, and with the time of that plan.

    :raises DataError: if there is no such plan, or another one than that which a person has approved.
    """
    if request.apply_plan is None:
        return request
    target = resolve_dataset(request.config.get("target") or "", request.warehouse, at="target")
    dataset, choice = _find_plan_table(target), request.apply_plan
    for entry in read_history(spark, dataset, None):
        record = SavedPlan.from_metadata(parse_metadata(entry))
        if record is not None and choice.version in (None, entry.version):
            _require_digest(record, choice, f"{dataset.uri}, version {entry.version}")
            return request.model_copy(update={"saved_plan": record, "started_at": record.started_at})
    message = f"{dataset.uri} has no saved plan"
    if choice.version is not None:
        message = f"{dataset.uri} has no saved plan at version {choice.version}"
    hint = "save one with plan='save', or with the command plan --save"
    raise DataError.from_problems([Problem("plan", "missing", message, hint)])


def _require_digest(record: SavedPlan, choice: PlanChoice, table: str) -> None:
    """Refuse another plan than the approved one: a table that was created again has the same versions.

    :raises DataError: if it is another plan.
    """
    if choice.digest not in (None, record.digest):
        message = (
            f"{table}, is another plan ({record.digest[:12]}) than the approved one ({choice.digest[:12]})"
        )
        hint = "nothing was written: save a plan and approve it"
        raise DataError.from_problems([Problem("plan", "other-plan", message, hint)])


def _find_plan_table(target: Dataset) -> Dataset:
    return replace(target.with_suffix(PLAN_SUFFIX), format="delta", options={})
