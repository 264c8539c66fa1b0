"""The merge source's run: pin, read keys, connect, render, commit once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from airflow_merge_provider.core.dataset import Dataset, resolve
from airflow_merge_provider.core.errors import ConfigError, DataError, Problem
from airflow_merge_provider.core.merge_source import refusals
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig, warnings
from airflow_merge_provider.core.merge_source.course import course
from airflow_merge_provider.core.merge_source.fingerprint import signature
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.jobs import tables
from airflow_merge_provider.jobs.merge_source import render
from airflow_merge_provider.jobs.merge_source.changes import changes, write as fold
from airflow_merge_provider.jobs.merge_source.intake import Before, Intake, LookAgainError, take_in
from airflow_merge_provider.jobs.merge_source.report import counted, findings, report
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
    before = last.state if last else None
    way, why = course(config, before, state["sources"], full_refresh=request.full_refresh)
    said += why
    if way == "nothing" or request.until == "plan":
        return report(request, target, pinned, progress.seconds, said, **_repeated(last, state, way))
    merge = _Merge(spark, request, config, target, last, pinned, progress, state)
    try:
        done = merge.anew() if way == "anew" else merge.compared(everything=way == "everything")
    except LookAgainError as reason:
        said += [str(reason)] if str(reason) else []
        done = merge.compared(everything=True)
    return report(request, target, pinned, progress.seconds, said, **done)


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
        "datasets": list(config.dataset_ids),
        "sources": {each.dataset.uri: each.version for each in pinned},
    }


def _repeated(last: LastRun | None, state: Mapping[str, Any], way: str) -> dict[str, Any]:
    """Give what a run reports that does nothing."""
    if last is None or way != "nothing":
        return {"version": last.version if last else None}
    # A retry whose first try had committed reports that commit as its own.
    own = last.state.get("token") == state["token"] and last.state.get("changed", True)
    return {"changed": own, "version": last.run_version, "found": last.state.get("found")}


@dataclass(frozen=True)
class _Merge:
    """One run on its way from what it reads to its commit; both ways give what the report needs."""

    spark: SparkSession
    request: JobRequest
    config: MergeSourceConfig
    target: Dataset
    last: LastRun | None
    pinned: Sequence[Pinned]
    progress: Progress
    state: Mapping[str, Any]

    def anew(self) -> dict[str, Any]:
        """Write the target as if there were none."""
        taken = self._taken(None)
        found = findings(taken.outcome, self.config)
        if self.request.until == "transform":
            return {"changed": True, "found": found}
        with self.progress.step("merge and write"), staged(self.spark, taken.labels) as labels:
            rows = render.rows(taken, labels, written_at=self.request.started_at)

            def write() -> None:
                with tables.settings(self.spark, render.SETTINGS):
                    if self.last is None:
                        tables.create_as(self.target, rows, CAPABILITY)
                    else:
                        tables.overwrite(self.target, rows)

            state = self._next(taken, found, taken.outcome.outputs)
            return self._committed(state, write)

    def compared(self, *, everything: bool) -> dict[str, Any]:
        """Write what differs from the target's rows; nothing when nothing does."""
        last = self.last
        if last is None:
            raise AssertionError("there is no target to compare with")
        before = last.state
        standing = tables.read(self.spark, Pinned(self.target, last.version))
        taken = self._taken(
            Before(
                standing,
                before.get("positions", {}),
                before.get("sources", {}),
                before.get("evaluated", ()),
                everything=everything,
                same_rules=before.get("fingerprint") == self.state["fingerprint"],
            )
        )
        difference = taken.difference
        if difference is None:
            raise AssertionError("a run that compares has found no difference")
        with (
            self.progress.step("merge and write"),
            tables.settings(self.spark, render.SETTINGS),
            staged(self.spark, taken.labels) as labels,
        ):
            rows = render.rows(taken, labels, written_at=self.request.started_at)
            start = before.get("next", difference.next_number)
            at = self.request.started_at
            with changes(self.spark, rows, standing, difference, start=start, at=at) as found:
                told = counted(found, difference, taken.outcome, self.config)
                emitted = found.emitted + difference.retired.num_rows
                if self.request.until == "transform":
                    return {"changed": bool(emitted), "version": last.version, "found": told}
                if not found.any:
                    return {"version": last.version, "found": before.get("found", told)}
                state = self._next(taken, told, start + emitted, changed=bool(emitted))
                write = partial(fold, self.spark, self.target, found, standing.columns)
                return self._committed(state, write)

    def _taken(self, before: Before | None) -> Intake:
        existing = [each for each in self.pinned if each.exists]
        taken = take_in(self.spark, existing, self.config, self.progress, before)
        whole = before is None or before.everything
        if self.config.if_source_empty == "fail" and whole and not len(taken.outcome.graph.hashes):
            raise refusals.empty_source()
        return taken

    def _next(
        self, taken: Intake, found: Mapping[str, Any], number: int, *, changed: bool = True
    ) -> dict[str, Any]:
        """Give what the next run compares itself with."""
        suppressed = taken.outcome.graph.count - taken.outcome.outputs
        return {
            **self.state,
            "positions": dict(taken.positions),
            "evaluated": list(taken.evaluated),
            "suppressed": suppressed,
            "next": number,
            "changed": changed,
            "found": found,
        }

    def _committed(self, state: Mapping[str, Any], write: Callable[[], None]) -> dict[str, Any]:
        """Make the run's one commit."""
        done = tables.commit(self.spark, self.target, CAPABILITY, self.last, state, write)
        return {"changed": state["changed"], "version": done.version, "found": state["found"]}
