"""The merge source's run: pin, read keys, connect, render, commit once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.dataset import resolve
from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_source import refusals
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig, warnings
from airflow_merge_provider.core.merge_source.course import course
from airflow_merge_provider.core.merge_source.fingerprint import signature
from airflow_merge_provider.core.merge_source.overrides import Overrides
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.risk import Risk
from airflow_merge_provider.core.source_offset import normalize_uri, read_offsets, write_offsets
from airflow_merge_provider.jobs.delta.side_table import SideTable, append_once
from airflow_merge_provider.jobs.delta.table import PinnedDataset, pin_dataset
from airflow_merge_provider.jobs.merge_source import render
from airflow_merge_provider.jobs.merge_source.before import Before, LookAgainError
from airflow_merge_provider.jobs.merge_source.changes import Changes, changes
from airflow_merge_provider.jobs.merge_source.intake import NONE, Intake, take_in
from airflow_merge_provider.jobs.merge_source.overrides import decided
from airflow_merge_provider.jobs.merge_source.quality import ALL, LOOKED_AT, Run, metrics_row
from airflow_merge_provider.jobs.merge_source.quarantine import QUARANTINE, rows as quarantine_rows
from airflow_merge_provider.jobs.merge_source.report import counted, findings, report
from airflow_merge_provider.jobs.merge_source.shape import added
from airflow_merge_provider.jobs.merge_source.succession import LINEAGE, lineage_rows
from airflow_merge_provider.jobs.merge_source.target import CAPABILITY, DeltaTarget, Target
from airflow_merge_provider.jobs.merge_source.totals import continued, of_outcome
from airflow_merge_provider.jobs.run.change_limit import check_change_limit
from airflow_merge_provider.jobs.run.previous_run import SIDE_TABLE_VERSIONS, PreviousRun, RunCommit
from airflow_merge_provider.jobs.run.progress import Progress
from airflow_merge_provider.jobs.spark.session import adaptive_execution_disabled, override_settings
from airflow_merge_provider.jobs.spark.staging import create_dataframe, stage_table

# Outputs of so many entities are planned once: Delta lists the files of a table in every plan that reads it.
_FEW = 500_000


def run(spark: SparkSession, request: JobRequest, progress: Progress) -> dict[str, Any]:
    """Merge the datasets into the target, or say that nothing has changed since the last run.

    :raises ConfigError: when the configuration is wrong.
    :raises DataError: when an input, the target or the result is; nothing is written then.
    :raises ConflictError: when another run committed first; nothing is written then.
    """
    config = MergeSourceConfig.parse(request.config)
    with progress.step("look"):
        target = DeltaTarget(spark, resolve(config.target or "", request.warehouse, at="target"), request)
        pinned = [
            pin_dataset(spark, resolve(name, request.warehouse, at=f"datasets[{position}]"))
            for position, name in enumerate(config.dataset_ids)
        ]
    return merge_datasets(spark, request, progress, config, target, pinned)


def merge_datasets(
    spark: SparkSession,
    request: JobRequest,
    progress: Progress,
    config: MergeSourceConfig,
    target: Target,
    pinned: Sequence[PinnedDataset],
) -> dict[str, Any]:
    """Merge pinned datasets into a target, wherever both are, and return the report.

    :raises DataError: when an input, the target or the result is wrong; nothing is written then.
    :raises ConflictError: when another run committed first; nothing is written then.
    """
    said = [*warnings(config), *_check_missing(pinned, config)]
    last = target.last
    if last is not None and last.own_commit is not None:
        return report(
            request, target.dataset, pinned, progress.seconds, said, **_describe_commit(last.own_commit)
        )
    state = _state(config, pinned, request)
    before = last.state if last else None
    overrides = _overrides(spark, config, request)
    state["decided"] = overrides.mark
    way, why = course(
        config,
        before,
        [each.offset for each in pinned],
        full_refresh=request.full_refresh,
        decided=overrides.mark,
        target_changes=last.warnings if last else (),
    )
    said += why
    if way == "nothing" or request.until == "plan":
        return report(request, target.dataset, pinned, progress.seconds, said, **_repeated(last, way))
    merge = _Merge(spark, request, config, target, pinned, progress, state, overrides)
    try:
        done = merge.anew() if way == "anew" else merge.compared(everything=way == "everything")
    except LookAgainError as reason:
        said += [str(reason)] if str(reason) else []
        done = merge.compared(everything=True)
    return report(request, target.dataset, pinned, progress.seconds, said, **done)


def _check_missing(pinned: Sequence[PinnedDataset], config: MergeSourceConfig) -> list[str]:
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


def _overrides(spark: SparkSession, config: MergeSourceConfig, request: JobRequest) -> Overrides:
    """Read what people have decided, where the configuration names it."""
    if config.overrides is None or request.until == "plan":
        return NONE
    pinned = pin_dataset(spark, resolve(config.overrides, request.warehouse, at="overrides"))
    return decided(spark, pinned, config.dataset_ids, request.started_at)


def _state(config: MergeSourceConfig, pinned: Sequence[PinnedDataset], request: JobRequest) -> dict[str, Any]:
    """Give what the next run compares itself with."""
    return {
        "token": request.run.model_dump(),
        "fingerprint": signature(config),
        "datasets": list(config.dataset_ids),
        **write_offsets([each.offset for each in pinned]),
    }


def _repeated(last: PreviousRun | None, way: str) -> dict[str, Any]:
    """Give what a run reports that does nothing."""
    if last is None or way != "nothing":
        return {"version": last.version if last else None}
    return {"version": last.run_version, "found": last.state.get("found")}


def _describe_commit(commit: RunCommit) -> dict[str, Any]:
    """Return what the report says of the commit of an earlier attempt."""
    state = commit.state
    return {"changed": state.get("changed", True), "version": commit.version, "found": state.get("found")}


@dataclass(frozen=True)
class _Merge:
    """One run on its way from what it reads to its commit; both ways give what the report needs."""

    spark: SparkSession
    request: JobRequest
    config: MergeSourceConfig
    target: Target
    pinned: Sequence[PinnedDataset]
    progress: Progress
    state: Mapping[str, Any]
    overrides: Overrides

    def anew(self) -> dict[str, Any]:
        """Write the target as if there were none."""
        taken = self._taken(None)
        found = findings(taken)
        if self.request.until == "transform":
            return {"changed": True, "found": found, "more": taken.said}
        with (
            self.progress.step("merge and write"),
            render.outputs(self.spark, taken, written_at=self.request.started_at) as rows,
        ):
            outputs = taken.outcome.outputs
            state = {**self._next(taken, found, outputs), SIDE_TABLE_VERSIONS: {}}
            if self.config.stable_id:
                state["next_stable"] = outputs
            return self._committed(taken, state, partial(self.target.overwrite, rows))

    def compared(self, *, everything: bool) -> dict[str, Any]:
        """Write what differs from the target's rows; nothing when nothing does."""
        last = self.target.last
        if last is None:
            raise AssertionError("there is no target to compare with")
        before = last.state
        standing = self.target.read_rows()
        taken = self._taken(
            Before(
                standing,
                self.target.count_rows(),
                before.get("positions", {}),
                read_offsets(before),
                before.get("evaluated", ()),
                everything=everything,
                # Rows that another writer changed may not be what their members say: all are rendered.
                same_rules=last.changed_by is None and before.get("fingerprint") == self.state["fingerprint"],
                next_stable=last.newest_state.get("next_stable") or before.get("next_stable") or 0,
            )
        )
        difference = taken.difference
        if difference is None:
            raise AssertionError("a run that compares has found no difference")
        at = self.request.started_at
        with (
            self.progress.step("merge and write"),
            override_settings(self.spark, self._planning(taken.labels.num_rows)),
            self._stable(taken) as stable,
            render.outputs(self.spark, taken, written_at=at, stable=stable) as rows,
        ):
            new = added(rows.schema, standing.schema)
            # Numbers of runs that a RESTORE has undone are not given again.
            start = last.newest_state.get("next", before.get("next", difference.next_number))
            with changes(self.spark, rows, standing, difference, start=start, at=at) as found:
                return self._folded(taken, found, standing, start, new)

    def _planning(self, entities: int) -> dict[str, str]:
        """Give the settings that the comparison of some entities' outputs is planned with."""
        return adaptive_execution_disabled(self.spark) if entities <= _FEW else {}

    def _folded(
        self, taken: Intake, found: Changes, standing: DataFrame, start: int, new: Sequence[str]
    ) -> dict[str, Any]:
        """Fold what differs into the target, unless it is too much or nothing is to be written."""
        last = self.target.last
        version, before = (last.version, last.state) if last else (None, {})
        old = before.get("found") or {}
        told = counted(
            found, taken, continued(old.get("totals"), taken.solved.left, of_outcome(taken.outcome))
        )
        emitted = found.emitted + found.replaced + found.removed
        repaired = last is not None and last.changed_by is not None and found.any
        warned = check_change_limit(
            self.request, self.target.dataset, lambda: Risk(emitted, _live(old, standing)), told
        )
        if self.request.until == "transform":
            more = [*warned, *taken.said]
            return {"changed": bool(emitted) or repaired, "version": version, "found": told, "more": more}
        if not found.any:
            return {"version": version, "found": old or told}
        state = self._next(taken, told, start + emitted, changed=bool(emitted) or repaired)
        write = partial(self.target.apply, found, new_columns=bool(new))
        return self._committed(taken, state, write)

    def _stable(self, taken: Intake) -> AbstractContextManager[DataFrame | None]:
        """Give the stable ids of what is rendered, where there are any."""
        stable = taken.solved.stable
        return nullcontext() if stable is None else stage_table(self.spark, stable)

    def _taken(self, before: Before | None) -> Intake:
        existing = [each for each in self.pinned if each.exists]
        taken = take_in(self.spark, existing, self.config, self.progress, before, self.overrides)
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
            "quarantined": len(taken.solved.quarantined),
            "cut": len(taken.solved.cut),
            "next_stable": taken.solved.next_stable,
            SIDE_TABLE_VERSIONS: dict(self.target.last.side_table_versions) if self.target.last else {},
            "next": number,
            "changed": changed,
            "found": found,
        }

    def _committed(
        self, taken: Intake, state: Mapping[str, Any], write: Callable[[], None]
    ) -> dict[str, Any]:
        """Write the side tables, then make the run's one commit, which names their versions."""
        written: dict[str, SideTable] = {}
        named = state[SIDE_TABLE_VERSIONS]
        if taken.solved.quarantined or QUARANTINE in named:
            written[QUARANTINE] = self._side_table(QUARANTINE, named)
            rows = quarantine_rows(taken.solved.quarantined)
            written[QUARANTINE].replace_rows(create_dataframe(self.spark, rows))
        if events := taken.solved.events:
            written[LINEAGE] = self._side_table(LINEAGE, named)
            written[LINEAGE].append_rows(create_dataframe(self.spark, lineage_rows(self._number, events)))
        if self.config.metrics is not None:
            place = resolve(self.config.metrics, self.request.warehouse, at="metrics")
            rows = create_dataframe(self.spark, self._metrics(taken, state))
            writer = normalize_uri(self.target.dataset.uri)
            append_once(self.spark, place, CAPABILITY, writer, self._number, rows)
        versions = {name: table.version for name, table in written.items()}
        state = {**state, SIDE_TABLE_VERSIONS: {**named, **versions}}
        done = self.target.commit(state, write)
        return {
            "changed": state["changed"],
            "version": done.version,
            "found": state["found"],
            "more": taken.said,
        }

    def _side_table(self, name: str, versions: Mapping[str, int]) -> SideTable:
        last = self.target.last
        return SideTable(
            self.spark,
            self.target.dataset.with_suffix(f"__{name}"),
            CAPABILITY,
            versions.get(name),
            run_number=last.run_number if last else 0,
            next_number=self._number,
        )

    @property
    def _number(self) -> int:
        """The number that the run's commit will have."""
        return self.target.last.number + 1 if self.target.last else 1

    def _metrics(self, taken: Intake, state: Mapping[str, Any]) -> pa.Table:
        scope = ALL if taken.solved.left is None else LOOKED_AT
        totals = state["found"].get("totals") or {}
        of = Run(self.target.dataset.uri, self._number, self.request.started_at, scope)
        return metrics_row(of, totals, taken.solved, self.config.identity)


def _live(found: Mapping[str, Any], standing: DataFrame) -> int:
    """Count the outputs that live in the target; its rows are asked only where no run has counted them."""
    totals = found.get("totals")
    return int(totals["golden"]) if totals else standing.where("NOT coalesce(_deleted, false)").count()
