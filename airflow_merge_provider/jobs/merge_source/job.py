"""The merge source's run: pin, read keys, connect, render, commit once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from airflow_merge_provider.core.dataset import Dataset, resolve
from airflow_merge_provider.core.errors import ConfigError, DataError, Problem
from airflow_merge_provider.core.merge_source import refusals
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig, warnings
from airflow_merge_provider.core.merge_source.fingerprint import signature
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.jobs import tables
from airflow_merge_provider.jobs.merge_source import render
from airflow_merge_provider.jobs.merge_source.intake import Intake, take_in
from airflow_merge_provider.jobs.merge_source.report import findings, report
from airflow_merge_provider.jobs.merge_source.staging import staged
from airflow_merge_provider.jobs.progress import Progress
from airflow_merge_provider.jobs.tables import LastRun, Pinned

CAPABILITY = "merge_source"


def run(spark: SparkSession, request: JobRequest, progress: Progress) -> dict[str, Any]:
    """Merge the datasets into the target, or say that nothing has changed since the last run.

    :raises ConfigError: when the configuration is wrong.
    :raises DataError: when an input, the target or the result is; nothing is written then.
    :raises ConflictError: when another run committed first; nothing is written then.
    """
    config = MergeSourceConfig.parse(request.config)
    if config.require_populated_input:
        unmet = Problem("require_populated_input", "planned", "cannot be asked for yet", "leave it out")
        raise ConfigError.of([unmet])
    target = resolve(config.target or "", request.warehouse, at="target")
    said = warnings(config)
    with progress.step("look"):
        last = tables.last_run(spark, target, CAPABILITY)
        pinned = [
            tables.pin(spark, resolve(name, request.warehouse, at=f"datasets[{position}]"))
            for position, name in enumerate(config.dataset_ids)
        ]
        said += _missing(pinned, config)
    state = _state(config, pinned, request)
    unchanged = _unchanged(last, state, request, target)
    if unchanged is not None:
        return report(request, target, pinned, progress.seconds, said, **unchanged)
    if request.until == "plan":
        return report(request, target, pinned, progress.seconds, said, version=last.version if last else None)
    taken = take_in(spark, [each for each in pinned if each.exists], config, progress)
    found = findings(taken.outcome, config)
    if config.if_source_empty == "fail" and not found["counts"]["entities"]:
        raise refusals.empty_source()
    if request.until == "transform":
        return report(request, target, pinned, progress.seconds, said, changed=True, found=found)
    with progress.step("merge and write"):
        state["found"] = found
        committed = _write(spark, taken, target, last, state, request.started_at)
    return report(
        request, target, pinned, progress.seconds, said, changed=True, version=committed.version, found=found
    )


def _missing(pinned: list[Pinned], config: MergeSourceConfig) -> list[str]:
    """Take a dataset that does not exist as empty, unless none does or the configuration waits for it."""
    absent = [each.dataset for each in pinned if not each.exists]
    if absent and (len(absent) == len(pinned) or not config.ignore_non_existent_datasets):
        hint = "check the name and the warehouse, or run what makes it first"
        raise DataError.of(
            [
                Problem("datasets", "missing", f"dataset {each.id!r} does not exist at {each.uri}", hint)
                for each in absent
            ]
        )
    return [f"dataset {each.id!r} does not exist at {each.uri}: taken as empty" for each in absent]


def _state(config: MergeSourceConfig, pinned: list[Pinned], request: JobRequest) -> dict[str, Any]:
    """Give what the next run compares itself with."""
    return {
        "token": request.run.model_dump(),
        "fingerprint": signature(config),
        "sources": {each.dataset.uri: each.version for each in pinned},
    }


def _unchanged(
    last: LastRun | None, state: Mapping[str, Any], request: JobRequest, target: Dataset
) -> dict[str, Any] | None:
    """Decide whether there is anything to do; None means yes.

    :raises DataError: when there is, and the target cannot take it without being written anew.
    """
    if last is None or request.full_refresh:
        return None
    before = last.state
    differs = [key for key in ("fingerprint", "sources") if before.get(key) != state[key]]
    if not differs:
        # A retry whose first try had committed reports that commit as its own.
        own = before.get("token") == state["token"]
        return {"changed": own, "version": last.run_version, "found": before.get("found")}
    what = "the configuration" if "fingerprint" in differs else "an input"
    raise DataError.of(
        [
            Problem(
                target.id,
                "changed",
                f"{what} has changed since the last run of {target.uri}",
                "run once with full_refresh=True to write the target anew",
            )
        ]
    )


def _write(
    spark: SparkSession,
    taken: Intake,
    target: Dataset,
    last: LastRun | None,
    state: Mapping[str, Any],
    at: int,
) -> tables.Committed:
    """Make the run's one commit; ``at`` is the time that its rows carry."""
    with staged(spark, taken.outcome.labels) as labels:
        rows = render.rows(taken, labels, written_at=at)

        def write() -> None:
            with tables.settings(spark, render.SETTINGS):
                if last is None:
                    tables.create_as(target, rows, CAPABILITY)
                else:
                    tables.overwrite(target, rows)

        return tables.commit(spark, target, CAPABILITY, last, state, write)
